"""Cost models of hardware that nobody has measured: data-sheet figures, and the bytes that the operator has to move.

The fused lookup operator is bound by memory. Forward reads a row for every lookup and writes the pooled vectors;
backward sorts the lookups by row, reads for each of them the gradient of its bag, and reads and writes every row
touched once. Bytes add up over the tables of a device, so they are the embedding; the head turns their sums into
milliseconds. The sum is not the whole cost: launches are paid once, and the tables of a device share its cache.
"""

from collections.abc import Sequence
from dataclasses import asdict
from statistics import NormalDist
from typing import Any

import numpy as np

from service.cost_models.analytic_bound import AnalyticLeastCosts
from service.cost_models.analytic_work import (
    BAGS,
    DISTINCT,
    EMBEDDING_SIZE,
    GRADIENT_AGAIN,
    GRADIENT_FIRST,
    LOOKUPS,
    OUTPUT_BYTES,
    ROWS_AGAIN,
    ROWS_FIRST,
    STATE_BYTES,
    TABLES,
    work_of,
)
from service.cost_models.assumptions import reuse_assumptions
from service.cost_models.communication import exchanged_bytes
from service.cost_models.data_sheets import ASSUMED, DataSheet, Processor
from service.domain.error_law import QUANTILES, ErrorLaw, normal_scores
from service.domain.plan import content_hash
from service.domain.ports import Embeddings, Floats, Integers
from service.domain.tables import DIM_MULTIPLE, Optimizer, Table

ANALYTIC_VERSION = 2
"""Number in the versions' names; raised when a formula here changes."""

FORWARD_TERMS = ("launches", "tables", "bags", "lookups", "row starts", "new rows", "row misses", "rows again",
                 "output")  # fmt: skip
"""What the time of forward is the sum of; misses are what reads again cost more than those from the cache."""

BACKWARD_TERMS = ("launches", "tables", "bags", "lookups", "row starts", "sorting", "new gradients",
                  "gradient misses", "gradients again", "updates", "optimizer state")  # fmt: skip
"""What the time of backward is the sum of."""

_INDEX_BYTES = 8
_GB_PER_S = 1e6
"""Bytes a millisecond."""

_NORMAL = NormalDist()
_ASSUMED_DEVIATION = float(np.log(ASSUMED.error_factor) / _NORMAL.inv_cdf(0.95))


class AnalyticCompute:
    """Prices the fused lookup operator by a data sheet; implements ``ComputeCostModel``."""

    def __init__(self, version: str, processor: Processor) -> None:
        self._version = version
        self._processor = processor
        self._operator = processor.operator
        self._bytes_per_ms = processor.memory_gb_s.value * _GB_PER_S * processor.operator.memory_share
        self._cache_bytes = processor.cache_mib.value * 2**20

    @property
    def version(self) -> str:
        """Name of the version."""
        return self._version

    def encode(self, tables: Sequence[Table], batch_size: int, optimizer: Optimizer) -> Embeddings:
        """What each of T tables adds to a device's work at a global batch size; [T, EMBEDDING_SIZE]."""
        columns = np.array([[table.embedding_dim] for table in tables], dtype=np.int64).reshape(-1, 1)
        return self.works(tables, columns, batch_size, optimizer)[:, 0].astype(np.float32)

    def works(self, tables: Sequence[Table], columns: Integers, batch_size: int, optimizer: Optimizer) -> Floats:
        """What slices of T tables add to a device's work; columns [T, W] -> [T, W, EMBEDDING_SIZE]."""
        sector = self._operator.sector_bytes
        rows = [work_of(t, wide, batch_size, optimizer, sector) for t, wide in zip(tables, columns, strict=True)]
        return np.array(rows, dtype=np.float64).reshape(*columns.shape, EMBEDDING_SIZE)

    def head(self, sums: Embeddings) -> Floats:
        """Forward and backward compute in milliseconds for sums of embeddings; [..., EMBEDDING_SIZE] -> [..., 2]."""
        return np.stack([terms.sum(axis=-1) for terms in self.terms(sums)], axis=-1)

    def terms(self, sums: Embeddings | Floats) -> tuple[Floats, Floats]:
        """Milliseconds of each ``FORWARD_TERMS`` and ``BACKWARD_TERMS`` for sums of embeddings; [..., F], [..., B]."""
        work, operator = sums.astype(np.float64), self._operator
        tables, lookups, offsets = work[..., TABLES], work[..., LOOKUPS], work[..., BAGS] * _INDEX_BYTES
        overhead = lookups * operator.row_overhead_bytes
        starts = work[..., DISTINCT] * operator.new_row_bytes
        new_rows = work[..., ROWS_FIRST].sum(axis=-1)
        misses, again = self._again(work[..., ROWS_FIRST], work[..., ROWS_AGAIN])
        new = work[..., GRADIENT_FIRST]
        gradients = np.stack([new, *self._again(new[..., None], work[..., GRADIENT_AGAIN, None])], axis=-1)
        forward = [offsets, lookups * _INDEX_BYTES + overhead, starts, new_rows, misses, again, work[..., OUTPUT_BYTES]]
        backward = [
            offsets,
            overhead / operator.gradient_share,
            starts,
            lookups * operator.sort_bytes,
            *np.moveaxis(gradients / operator.gradient_share, -1, 0),
            2 * new_rows,
            work[..., STATE_BYTES],
        ]
        launch, started = operator.launch_ms * (tables > 0), operator.table_ms * tables

        def timed(kernels: int, moved: list[Floats]) -> Floats:
            return np.stack(
                [kernels * launch, started, *(bytes_of / self._bytes_per_ms for bytes_of in moved)], axis=-1
            )

        return timed(operator.forward_kernels, forward), timed(operator.backward_kernels, backward)

    def pooled_terms(self, works: Floats, devices: int) -> tuple[Floats, Floats]:
        """Mean terms, at least, of devices that share this work of T tables; [T, EMBEDDING_SIZE] -> [F] and [B].

        All terms but the launches and the misses are linear. Launches are paid in full: the device that costs the most
        has work. Devices keep no more in their caches than one of all their bytes would if it could choose.
        """
        forward, backward = self.terms(works.sum(axis=0) / devices)
        missed = (
            self._pooled_misses(works[:, ROWS_FIRST], works[:, ROWS_AGAIN], devices),
            self._pooled_misses(works[:, GRADIENT_FIRST], works[:, GRADIENT_AGAIN], devices)
            / self._operator.gradient_share,
        )
        forward[FORWARD_TERMS.index("row misses")] = missed[0] / self._bytes_per_ms / devices
        backward[BACKWARD_TERMS.index("gradient misses")] = missed[1] / self._bytes_per_ms / devices
        return forward, backward

    def least_costs(
        self, tables: Sequence[Table], widths: Integers, batch_size: int, optimizer: Optimizer
    ) -> AnalyticLeastCosts:
        """What no device costs less than, whatever it holds of T tables; see the port."""
        ones = np.ones(len(FORWARD_TERMS)), np.ones(len(BACKWARD_TERMS))
        return self.corrected_least_costs(tables, widths, batch_size, optimizer, ones)

    def corrected_least_costs(
        self,
        tables: Sequence[Table],
        widths: Integers,
        batch_size: int,
        optimizer: Optimizer,
        coefficients: tuple[Floats, Floats],
    ) -> AnalyticLeastCosts:
        """The same where each term of forward and backward is multiplied by at least these coefficients."""
        before = np.concatenate([np.zeros_like(widths[:, :1]), widths[:, :-1]], axis=1)
        columns = np.concatenate([np.minimum(before + DIM_MULTIPLE, widths), widths[:, -1:]], axis=1)
        works = self.works(tables, columns, batch_size, optimizer)
        return AnalyticLeastCosts(widths, works, self.terms, self.pooled_terms, coefficients)

    def assumptions(self, tables: Sequence[Table], batch_size: int, optimizer: Optimizer) -> list[str]:
        """That nothing was measured and what changes that, and what the prices rest on besides the request."""
        name = self._processor.hardware
        return [
            f"compute of {name} was not measured: its times are analytic, from {_source(self._processor)}; "
            f"`shardwright profile --device {_device(self._processor)} --hardware {name}` and `shardwright train "
            f"compute --hardware {name}` put measured ones in their place; with `--from-analytic` few of them will do",
            _assumed_intervals("compute"),
            *reuse_assumptions(tables, batch_size),
        ]

    def novelty(self, tables: Sequence[Table], batch_size: int, optimizer: Optimizer) -> Floats:
        """Infinite for each of T tables: nothing was measured; [T]."""
        return np.full(len(tables), np.inf)

    def errors(self, costs: Floats, held: Sequence[Sequence[Table]], batch_size: int, optimizer: Optimizer) -> ErrorLaw:
        """The assumed law, the same for all devices and for the total; see ``Assumed.error_factor``."""
        return _assumed_law(len(costs), kinds=3)

    def _again(self, first: Floats, again: Floats) -> tuple[Floats, Floats]:
        """Bytes of reads again: what misses cost more, and all at the cache's speed; two [..., K] -> two [...].

        The last columns are what is read most often, and the cache keeps that: what is left of its size after them
        is left to the columns before. More bytes in any column make neither part smaller, so that more work costs
        more whatever coefficients the parts are given.
        """
        hotter = np.cumsum(first[..., ::-1], axis=-1)[..., ::-1] - first
        left = self._cache_bytes - hotter
        kept = np.where(first > 0, np.clip(left, 0.0, first) / np.where(first > 0, first, 1.0), left > 0)
        cached = 1.0 / self._operator.cache_speedup
        return ((1.0 - kept) * again).sum(axis=-1) * (1.0 - cached), again.sum(axis=-1) * cached

    def _pooled_misses(self, first: Floats, again: Floats, devices: int) -> float:
        """What misses cost at least more than hits, bytes, where the caches keep what is read most often; any shape."""
        sizes, repeats = first.ravel(), again.ravel()
        order = np.argsort(np.divide(sizes, repeats, out=np.full_like(sizes, np.inf), where=repeats > 0))
        sizes, repeats = sizes[order], repeats[order]
        before = np.cumsum(sizes) - sizes
        room = np.clip(self._cache_bytes * devices - before, 0.0, sizes)
        kept = np.divide(room, sizes, out=np.ones_like(sizes), where=sizes > 0)
        return float(((1.0 - kept) * repeats).sum()) * (1.0 - 1.0 / self._operator.cache_speedup)


class AnalyticCommunication:
    """Prices all-to-all exchanges by a data sheet: latency + bytes / bandwidth; implements ``CommunicationCostModel``.

    The same line in both directions, for any number of devices.
    """

    def __init__(self, version: str, sheet: DataSheet) -> None:
        self._version = version
        self._sheet = sheet
        self._bytes_per_ms = sheet.link_gb_s.value * _GB_PER_S * sheet.exchange_share.value

    @property
    def version(self) -> str:
        """Name of the version."""
        return self._version

    def forward_transfer(self, widths: Floats, wait_ms: Floats, batch_size: int) -> Floats:
        """Milliseconds of exchanging pooled vectors, the same whatever the waits; [..., D] -> [..., D]."""
        return self._exchange(widths, batch_size)

    def backward(self, widths: Floats, batch_size: int) -> Floats:
        """Milliseconds of exchanging gradients; [..., D] -> [..., D]."""
        return self._exchange(widths, batch_size)

    def least_exchange(self, width: int, devices: int, batch_size: int) -> float:
        """Both exchanges of equally wide devices, see the port: where one sends less, it receives more."""
        return 2.0 * float(self._exchange(np.full(devices, width / devices), batch_size)[0])

    def assumptions(self, widths: Floats, wait_ms: Floats, batch_size: int) -> list[str]:
        """That nothing was measured and what changes that, and what is taken for granted of many devices."""
        devices = len(widths)
        if devices == 1:
            return []
        sheet = self._sheet
        said = [
            f"exchanges of {sheet.hardware} were not measured: their times are analytic, from the {sheet.link.value} "
            f"bandwidth of the data sheet; `shardwright profile --device cuda --hardware {sheet.hardware}` and "
            f"`shardwright train communication --hardware {sheet.hardware}` put measured ones in their place",
            _assumed_intervals("exchanges"),
        ]
        if sheet.exchange_note:
            said.append(f"exchanges of {sheet.hardware} {sheet.exchange_note}")
        if devices > ASSUMED.domain:
            said.append(
                f"all {devices} devices are taken to reach each other over {sheet.link.value}, as the "
                f"{ASSUMED.domain} of a host do: a slower network between hosts is not in the cost"
            )
        return said

    def errors(self, costs: Floats, widths: Floats, batch_size: int) -> ErrorLaw:
        """The assumed law, the same for all devices; see ``Assumed.error_factor``."""
        return _assumed_law(len(costs), kinds=2)

    def _exchange(self, widths: Floats, batch_size: int) -> Floats:
        if widths.shape[-1] == 1:
            return np.zeros_like(widths)
        return np.asarray(ASSUMED.exchange_latency_ms + exchanged_bytes(widths, batch_size) / self._bytes_per_ms)


def fingerprint(processor: Processor) -> str:
    """Hash of all that prices depend on besides the request; 32 hex digits."""
    figures: dict[str, Any] = {
        "memory_gb_s": processor.memory_gb_s.value,
        "cache_mib": processor.cache_mib.value,
        "operator": asdict(processor.operator),
    }
    if isinstance(processor, DataSheet):
        figures |= {
            "link": processor.link.value,
            "link_gb_s": processor.link_gb_s.value,
            "exchange_share": processor.exchange_share.value,
        }
    return content_hash({"version": ANALYTIC_VERSION, "figures": figures, "assumed": asdict(ASSUMED)})


def _source(processor: Processor) -> str:
    if isinstance(processor, DataSheet):
        return f"the data sheet of the {processor.product} {processor.memory_gb.value:g} GB"
    return f"figures of {processor.product}"


def _device(processor: Processor) -> str:
    return "cuda" if isinstance(processor, DataSheet) else "cpu"


def _assumed_intervals(what: str) -> str:
    factor = ASSUMED.error_factor
    return f"intervals of analytic {what} are assumed, not measured: a factor of {factor:g} either way at 90%"


def _assumed_law(devices: int, kinds: int) -> ErrorLaw:
    """A normal law of the logarithm that has nine tenths within the assumed factor."""
    quantiles = np.tile(normal_scores(QUANTILES), (kinds, 1))
    return ErrorLaw(np.full((devices, kinds), _ASSUMED_DEVIATION), quantiles, ASSUMED.error_shared)
