"""The analytic compute model corrected by a few measurements of the device, evaluated with numpy.

Each term of the analytic price (see ``FORWARD_TERMS`` and ``BACKWARD_TERMS``) has a positive coefficient; without
measurements it would be 1. Coefficients differ by kind, a pair of optimizer and precision, because the operator has
another kernel for each; those of a device are the geometric mean over its lookups and bags. No term gets smaller with
more work, so more work of one kind never costs less, and prices move with tables as the analytic ones do, far from
what was measured too.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from service.cost_models.analytic import ANALYTIC_VERSION, BACKWARD_TERMS, FORWARD_TERMS, AnalyticCompute
from service.cost_models.analytic_bound import AnalyticLeastCosts
from service.cost_models.analytic_work import BAGS, EMBEDDING_SIZE, LOOKUPS
from service.cost_models.arrays import Arrays, Shapes, check_arrays
from service.cost_models.assumptions import listed, reuse_assumptions
from service.cost_models.data_sheets import Figure, Processor
from service.cost_models.measured_domain import MeasuredDomain
from service.cost_models.operators import Operator
from service.domain.error_law import ErrorLaw
from service.domain.errors import DamagedArtifact
from service.domain.ports import Embeddings, Floats, Integers
from service.domain.tables import DataType, Optimizer, Table

CALIBRATED = "calibrated"
"""``kind`` in the manifest of such a version."""

KINDS = tuple((optimizer, data_type) for optimizer in Optimizer for data_type in DataType)
"""Pairs that have coefficients of their own."""

COSTS = ("forward", "backward")

ERRORS = (*COSTS, "total")
"""What the errors have a law of, in the order of ``ComputeCostModel.errors``."""

WEIGHT_SHAPES: Shapes = {
    "forward.common": (len(FORWARD_TERMS),),
    "forward.kinds": (len(KINDS), len(FORWARD_TERMS)),
    "backward.common": (len(BACKWARD_TERMS),),
    "backward.kinds": (len(KINDS), len(BACKWARD_TERMS)),
    "quantiles": (len(ERRORS), "Q"),
}
"""Arrays of a version: logarithms of the coefficients, what each kind adds to them, and Q quantiles of the errors."""

INSIDE, OUTSIDE = 0.5, 2.0
"""Novelty of tables inside and outside the ranges that were measured: so few measurements tell no finer distance."""

SHARED = 0.25
"""``ErrorLaw.shared`` of these errors. Held-out combinations of one optimizer, precision and batch size, as the devices
of a plan are, err alike by 0.25 for versions made from 30 samples, 0.14 from 50, 0.06 from 200 and 0.04 from 800 (the
thread of ``cpu-fbgemm``, means of six draws). That of the fewest is taken."""

_OUTSIDE_SCALE = 2.0


@dataclass(frozen=True, slots=True)
class Calibration:
    """What a version was corrected by.

    Attributes:
        samples: combinations that were measured.
        device: what they were measured on.
        measured: what they cover.
    """

    samples: int
    device: str
    measured: MeasuredDomain


class CalibratedCompute:
    """A corrected analytic model of one hardware; implements ``ComputeCostModel``."""

    def __init__(self, version: str, analytic: AnalyticCompute, weights: Arrays, calibration: Calibration) -> None:
        check_arrays(version, weights, WEIGHT_SHAPES)
        self._version = version
        self._analytic = analytic
        self._calibration = calibration
        w = {name: array.astype(np.float64) for name, array in weights.items()}
        self._coefficients = tuple((w[f"{cost}.common"], w[f"{cost}.kinds"]) for cost in COSTS)
        self._quantiles = w["quantiles"]

    @property
    def version(self) -> str:
        """Name of the version."""
        return self._version

    def encode(self, tables: Sequence[Table], batch_size: int, optimizer: Optimizer) -> Embeddings:
        """Analytic embeddings of T tables with their work by kind; [T, EMBEDDING_SIZE + len(KINDS)]."""
        return work_by_kind(self._analytic, tables, batch_size, optimizer)

    def head(self, sums: Embeddings) -> Floats:
        """Forward and backward compute in milliseconds for sums of embeddings; [..., H] -> [..., 2]."""
        terms, shares = terms_and_shares(self._analytic, sums)
        return np.stack(
            [
                (part * np.exp(common + shares @ kinds)).sum(axis=-1)
                for part, (common, kinds) in zip(terms, self._coefficients, strict=True)
            ],
            axis=-1,
        )

    def least_costs(
        self, tables: Sequence[Table], widths: Integers, batch_size: int, optimizer: Optimizer
    ) -> AnalyticLeastCosts:
        """What no device costs less than, whatever it holds of T tables; see the port.

        A coefficient is at least the smallest of the kinds that there are.
        """
        kinds = sorted({KINDS.index((optimizer, table.data_type)) for table in tables})
        forward, backward = (np.exp(common + own[kinds].min(axis=0)) for common, own in self._coefficients)
        return self._analytic.corrected_least_costs(tables, widths, batch_size, optimizer, (forward, backward))

    def assumptions(self, tables: Sequence[Table], batch_size: int, optimizer: Optimizer) -> list[str]:
        """That few measurements are behind the prices, and what these rest on besides the request."""
        found = self._calibration
        said = [f"compute is the analytic model corrected by {found.samples} measurements of {found.device}"]
        outside = [table.name for table in tables if not _inside(found.measured, table, batch_size, optimizer)]
        if outside:
            said.append(
                f"{listed(outside)} at batch {batch_size} with {optimizer.value}: not like what was measured, so the "
                f"correction is extrapolated, in intervals {_OUTSIDE_SCALE:g} times as wide"
            )
        return [*said, *reuse_assumptions(tables, batch_size)]

    def novelty(self, tables: Sequence[Table], batch_size: int, optimizer: Optimizer) -> Floats:
        """``INSIDE`` for those of T tables that lie inside all ranges that were measured, else ``OUTSIDE``; [T]."""
        measured = self._calibration.measured
        return np.array([INSIDE if _inside(measured, t, batch_size, optimizer) else OUTSIDE for t in tables])

    def errors(self, costs: Floats, held: Sequence[Sequence[Table]], batch_size: int, optimizer: Optimizer) -> ErrorLaw:
        """The law of the cross-validated errors; that of devices with a table outside the ranges is assumed wider."""
        wide = [bool((self.novelty(tables, batch_size, optimizer) > 1).any()) for tables in held]
        scales = np.where(wide, _OUTSIDE_SCALE, 1.0)
        return ErrorLaw(np.repeat(scales[:, None], len(ERRORS), axis=1), self._quantiles, SHARED)


def work_by_kind(
    analytic: AnalyticCompute, tables: Sequence[Table], batch_size: int, optimizer: Optimizer
) -> Embeddings:
    """Embeddings of ``CalibratedCompute``: the analytic ones of T tables, then lookups and bags under their kinds."""
    work = analytic.encode(tables, batch_size, optimizer)
    kinds = np.zeros((len(tables), len(KINDS)), dtype=np.float32)
    own = [KINDS.index((optimizer, table.data_type)) for table in tables]
    kinds[np.arange(len(tables)), own] = work[:, LOOKUPS] + work[:, BAGS]
    return np.concatenate([work, kinds], axis=1)


def terms_and_shares(analytic: AnalyticCompute, sums: Embeddings) -> tuple[tuple[Floats, Floats], Floats]:
    """Analytic terms of sums of ``work_by_kind``, and the share of each kind; [..., F] and [..., B], [..., KINDS]."""
    kinds = sums[..., EMBEDDING_SIZE:].astype(np.float64)
    total = kinds.sum(axis=-1, keepdims=True)
    return analytic.terms(sums[..., :EMBEDDING_SIZE]), kinds / np.where(total > 0, total, 1.0)


def figures(processor: Processor) -> dict[str, Any]:
    """What a version's analytic part is made from, for its manifest: a later data sheet does not change its prices."""
    return {
        "analytic_version": ANALYTIC_VERSION,
        "product": processor.product,
        "memory_gb_s": asdict(processor.memory_gb_s),
        "cache_mib": asdict(processor.cache_mib),
        "operator": asdict(processor.operator),
    }


def analytic_of(version: str, hardware: str, content: Mapping[str, Any]) -> AnalyticCompute:
    """The analytic part of a version, from the ``figures`` in its manifest.

    Raises:
        DamagedArtifact: it was made from other formulas than this code's.
        KeyError, TypeError: a figure is missing or of another form.
    """
    if content["analytic_version"] != ANALYTIC_VERSION:
        raise DamagedArtifact(
            f"{version} corrects analytic version {content['analytic_version']}, this code has {ANALYTIC_VERSION}: "
            f"train it again with `shardwright train compute --from-analytic --hardware {hardware}`"
        )
    processor = Processor(
        hardware=hardware,
        product=content["product"],
        memory_gb_s=Figure(**content["memory_gb_s"]),
        cache_mib=Figure(**content["cache_mib"]),
        operator=Operator(**content["operator"]),
    )
    return AnalyticCompute(version, processor)


def _inside(measured: MeasuredDomain, table: Table, batch_size: int, optimizer: Optimizer) -> bool:
    ranges = (
        (batch_size, measured.batch_sizes),
        (table.embedding_dim, measured.dims),
        (table.num_embeddings, measured.rows),
        (table.pooling_factor, measured.pooling_factors),
    )
    return (
        all(low <= value <= high for value, (low, high) in ranges)
        and optimizer.value in measured.optimizers
        and table.data_type.value in measured.data_types
        and table.pooling_mode.value in measured.pooling_modes
        and not measured.only_apart(optimizer, table.data_type)
        and table.num_features == 1
    )
