"""The compute cost model: non-decreasing functions of summed table embeddings, evaluated with numpy.

As in NeuroShard (MLSys 2023), a device's cost is a head's function of the sum of its tables' embeddings. Here the
form of both makes three properties hold for any weights:

- an embedding is ``z_h = sum over s of A_hs w_s``: ``w`` are the width features, which are never larger for a table
  than for its slices together, and ``A = exp(MLP)`` does not look at the width and is non-decreasing in everything
  that grows with lookups (the MLP's weights are not negative there, its activations never decrease);
- the head is ``(constant + additive . z) * factor(z)``, where ``factor`` lies between 1 and ``FUSION_LIMIT`` and is
  non-decreasing (an MLP of log z without negative weights).

So a device's cost is *monotone* (at a batch size more tables, lookups or columns never cost less; in the batch size as
far as the reuse law is, which approximates), *cut-monotone* (a table costs at
most what its slices cost on one device), and subadditive up to the limit: ``f(A and B) <= FUSION_LIMIT (f(A) + f(B))``,
while ``constant + additive . z`` is subadditive itself and never above f, which is what a lower bound can rest on.
What tables cost together is more than the sum of what they cost alone on the machines measured, so a model that is
subadditive to the letter is worse: see docs/decisions/0013.
"""

from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import replace
from typing import Self

import numpy as np

from service.cost_models.arrays import Arrays, Shapes, check_arrays
from service.cost_models.assumptions import listed, reuse_assumptions
from service.cost_models.compute_bound import LearnedLeastCosts
from service.cost_models.error_model import ComputeErrors
from service.cost_models.features import FEATURES_VERSION, GROWING, WIDTH, WORK, table_features, width_features
from service.cost_models.measured_domain import MeasuredDomain
from service.cost_models.novelty import Novelty
from service.cost_models.row_memory import RowMemory
from service.domain.error_law import ErrorLaw
from service.domain.errors import DamagedArtifact
from service.domain.ports import Embeddings, Floats, Integers
from service.domain.tables import DIM_MULTIPLE, DataType, Optimizer, Table

FUSION_LIMIT = 2.0
"""Tables together cost at most this many times what the additive part says."""

EMBEDDING_LIMIT = 15.0
"""Logarithms of the parts of an embedding are clipped to plus and minus this."""

LOG_FLOOR, LOG_SCALE = 1e-6, 3.0
"""The head's MLP sees ``log(z + LOG_FLOOR) / LOG_SCALE``."""


WEIGHT_SHAPES: Shapes = {
    "feature_mean": (WORK.stop,),
    "feature_scale": (WORK.stop,),
    "table.0.growing": ("A", GROWING.stop),
    "table.0.free": ("A", WORK.stop - GROWING.stop),
    "table.0.bias": ("A",),
    "table.1.growing": ("P", "A"),
    "table.1.bias": ("P",),
    "constant": ("K",),
    "additive": ("K", "H"),
    "head.0.growing": ("B", "H"),
    "head.0.bias": ("B",),
    "head.1.growing": ("K", "B"),
    "head.1.bias": ("K",),
}
"""Arrays of a version: A and B hidden units, H embedding size, P = H * width features, K costs (forward, backward)."""

NOT_NEGATIVE = (*tuple(name for name in WEIGHT_SHAPES if name.endswith("growing")), "constant", "additive")
"""Arrays that the model's properties need to be so."""


class ComputeModel:
    """A compute cost model of one hardware; implements ``ComputeCostModel``."""

    def __init__(self, version: str, weights: Arrays, features_version: int, measured: MeasuredDomain) -> None:
        _check_features(version, features_version)
        check_arrays(version, weights, WEIGHT_SHAPES)
        _check_signs(version, weights)
        self._version = version
        # In double precision, so that the shape of a batch moves no result by as much as a search can see.
        self._w = {name: array.astype(np.float64) for name, array in weights.items()}
        self._measured = measured
        self._embeddings: RowMemory[Embeddings] = RowMemory()
        self._novelty: Novelty | None = None
        self._errors: ComputeErrors | None = None

    def with_errors(self, arrays: Arrays) -> Self:
        """This model with the novelty and the errors that a version's arrays tell; it prices as before.

        Raises:
            DamagedArtifact: the arrays are not those of ``NOVELTY_SHAPES`` and ``error_shapes``.
        """
        found = copy(self)
        found._novelty = Novelty(self._version, arrays, self._measured)
        found._errors = ComputeErrors(self._version, arrays, found._novelty)
        return found

    @property
    def version(self) -> str:
        """Name of the version."""
        return self._version

    def encode(self, tables: Sequence[Table], batch_size: int, optimizer: Optimizer) -> Embeddings:
        """Embeddings of T tables at a global batch size; [T, H], positive.

        An optimizer or precision that was not measured is priced as the measured one that is nearest.
        """
        return self._embeddings.rows(
            tables, batch_size, optimizer, lambda new: self.embed(self._features(new, batch_size, optimizer))
        )

    def embed(self, features: Embeddings) -> Embeddings:
        """Embeddings of T rows of ``table_features``; [T, F] -> [T, H]."""
        widths = features[:, WIDTH].astype(np.float64)
        embeddings = (self._parts(features) * widths[:, None, :]).sum(axis=2)
        return np.asarray(embeddings, dtype=np.float32)

    def _features(self, tables: Sequence[Table], batch_size: int, optimizer: Optimizer) -> Embeddings:
        return table_features(
            self._as_measured(tables), batch_size, Optimizer(_nearest(optimizer, self._measured.optimizers))
        )

    def _as_measured(self, tables: Sequence[Table]) -> list[Table]:
        known = self._measured.data_types
        nearest = {kind: DataType(_nearest(kind, known)) for kind in {table.data_type for table in tables}}
        return [
            table if nearest[table.data_type] is table.data_type else replace(table, data_type=nearest[table.data_type])
            for table in tables
        ]

    def _parts(self, features: Embeddings) -> Floats:
        """What each feature of width is multiplied by, the same for all slices of a table; [T, F] -> [T, H, P]."""
        w = self._w
        x = (features[:, WORK] - w["feature_mean"]) / w["feature_scale"]
        growing, free = x[:, GROWING] @ w["table.0.growing"].T, x[:, GROWING.stop :] @ w["table.0.free"].T
        hidden = activation(growing + free + w["table.0.bias"])
        log_parts = hidden @ w["table.1.growing"].T + w["table.1.bias"]
        parts = np.exp(np.clip(log_parts, -EMBEDDING_LIMIT, EMBEDDING_LIMIT))
        return parts.reshape(len(features), -1, WIDTH.stop - WIDTH.start)

    def head(self, sums: Embeddings | Floats) -> Floats:
        """Costs in milliseconds for sums of embeddings; [..., H] -> [..., K]."""
        w, z = self._w, sums.astype(np.float64)
        factor = self._factor(np.log(z + LOG_FLOOR) / LOG_SCALE @ w["head.0.growing"].T + w["head.0.bias"])
        empty = z.sum(axis=-1, keepdims=True) <= 0
        return np.where(empty, 0.0, self.additive(sums) * factor)

    def _factor(self, seen: Floats) -> Floats:
        """What the additive part is multiplied by, from pre-activations of the hidden units; [..., B] -> [..., K]."""
        raw = activation(seen) @ self._w["head.1.growing"].T + self._w["head.1.bias"]
        return np.asarray(FUSION_LIMIT ** (0.5 + 0.5 * np.tanh(0.5 * raw)))

    def least_costs(
        self, tables: Sequence[Table], widths: Integers, batch_size: int, optimizer: Optimizer
    ) -> LearnedLeastCosts:
        """What no device costs less than, whatever it holds of T tables; see the port."""
        parts = self._parts(self._features(tables, batch_size, optimizer))
        item_bytes = np.array([table.data_type.item_bytes for table in self._as_measured(tables)])[:, None]
        before = np.concatenate([np.zeros_like(widths[:, :1]), widths[:, :-1]], axis=1)
        narrowest, widest = (
            width_features(columns, item_bytes) @ parts.transpose(0, 2, 1)
            for columns in (np.minimum(before + DIM_MULTIPLE, widths), widths)
        )
        return LearnedLeastCosts(widths, narrowest, widest, self.head, self._factor, self._w, LOG_SCALE)

    def additive(self, sums: Embeddings | Floats) -> Floats:
        """The subadditive part of ``head``, never above it, milliseconds; [..., H] -> [..., K]."""
        return np.asarray(sums.astype(np.float64) @ self._w["additive"].T + self._w["constant"])

    def assumptions(self, tables: Sequence[Table], batch_size: int, optimizer: Optimizer) -> list[str]:
        """What the prediction rests on besides the request."""
        return [
            *reuse_assumptions(tables, batch_size),
            *_beyond(self._measured, tables, batch_size),
            *_unmeasured(self._measured, tables, optimizer),
        ]

    def novelty(self, tables: Sequence[Table], batch_size: int, optimizer: Optimizer) -> Floats:
        """How far each of T tables is from what was measured, see ``Novelty``; [T]. Only of a model with errors."""
        if self._novelty is None:
            raise ValueError(f"{self._version} has no errors fitted")
        return self._novelty.of(tables, batch_size, optimizer)

    def errors(self, costs: Floats, held: Sequence[Sequence[Table]], batch_size: int, optimizer: Optimizer) -> ErrorLaw:
        """How far measured costs may be from these, see ``ComputeErrors``. Only of a model with errors."""
        if self._errors is None:
            raise ValueError(f"{self._version} has no errors fitted")
        return self._errors.law(costs, held, batch_size, optimizer)


def activation(x: Floats) -> Floats:
    """Non-decreasing: a third of the last axis is convex (ELU), a third concave (its mirror), the rest tanh.

    Monotone networks need all three kinds to come near any monotone function (Runje and Shankaranarayana,
    Constrained Monotonic Neural Networks, ICML 2023).
    """
    third = x.shape[-1] // 3
    convex, concave, bounded = x[..., :third], x[..., third : 2 * third], x[..., 2 * third :]
    return np.concatenate(
        [
            np.where(convex > 0, convex, np.expm1(np.minimum(convex, 0))),
            np.where(concave < 0, concave, -np.expm1(np.minimum(-concave, 0))),
            np.tanh(bounded),
        ],
        axis=-1,
    )


def _check_signs(version: str, weights: Arrays) -> None:
    negative = [name for name in NOT_NEGATIVE if (weights[name] < 0).any()]
    if negative:
        raise DamagedArtifact(
            f"{version}: arrays {', '.join(negative)} hold negative numbers, so more work could cost less: restore the "
            "version or train a new one"
        )


def _nearest(wanted: Optimizer | DataType, measured: Sequence[str]) -> str:
    """What was measured of the same kind that is nearest, by the state or the bytes that it has; itself if it was."""
    order = [kind.value for kind in type(wanted)]
    known = [name for name in order if name in measured]
    if not known or wanted.value in known:
        return wanted.value
    place = order.index(wanted.value)
    return min(known, key=lambda name: (abs(order.index(name) - place), order.index(name)))


def _check_features(version: str, features_version: int) -> None:
    hardware = version.partition("/")[0]
    if features_version != FEATURES_VERSION:
        raise DamagedArtifact(
            f"{version} was trained on features version {features_version}, this code makes version "
            f"{FEATURES_VERSION}: retrain it with `shardwright train compute --hardware {hardware}`"
        )


def _beyond(measured: MeasuredDomain, tables: Sequence[Table], batch_size: int) -> list[str]:
    said = []
    low, high = measured.batch_sizes
    if not low <= batch_size <= high:
        said.append(f"global_batch_size {batch_size} is outside the measured {low} to {high}: the cost is extrapolated")
    checks: tuple[tuple[str, tuple[float, float]], ...] = (
        ("embedding_dim", measured.dims),
        ("num_embeddings", measured.rows),
        ("pooling_factor", measured.pooling_factors),
    )
    for field, (least, most) in checks:
        names = [t.name for t in tables if not least <= getattr(t, field) <= most]
        if names:
            said.append(f"{field} of {listed(names)} is outside the measured {least:g} to {most:g}: extrapolated")
    shared = [t.name for t in tables if t.num_features > 1]
    if shared:
        serve = "serve" if len(shared) > 1 else "serves"
        said.append(f"{listed(shared)} {serve} several features, which was not measured: priced by lookups and output")
    return said


def _unmeasured(measured: MeasuredDomain, tables: Sequence[Table], optimizer: Optimizer) -> list[str]:
    said = []
    nearest = _nearest(optimizer, measured.optimizers)
    if optimizer.value != nearest:
        said.append(
            f"compute was measured with {', '.join(measured.optimizers)}: the times for {optimizer.value} are those of "
            f"{nearest}, its memory is counted in full"
        )
    by_type: dict[DataType, list[str]] = {}
    for table in tables:
        by_type.setdefault(table.data_type, []).append(table.name)
    for data_type, names in by_type.items():
        nearest = _nearest(data_type, measured.data_types)
        if data_type.value != nearest:
            said.append(
                f"compute was measured with {', '.join(measured.data_types)}: {data_type.value} of {listed(names)} is "
                f"priced as {nearest}"
            )
    said += _never_together(measured, by_type, optimizer)
    names = [t.name for t in tables if t.pooling_mode.value not in measured.pooling_modes]
    if names:
        said.append(
            f"compute was measured with {', '.join(measured.pooling_modes)} pooling: so is {listed(names)} priced"
        )
    return said


def _never_together(
    measured: MeasuredDomain, by_type: Mapping[DataType, Sequence[str]], optimizer: Optimizer
) -> list[str]:
    return [
        f"{data_type.value} of {listed(names)} was not measured with {optimizer.value}, each only with others: "
        "the cost of the two together is extrapolated"
        for data_type, names in by_type.items()
        if measured.only_apart(optimizer, data_type)
    ]
