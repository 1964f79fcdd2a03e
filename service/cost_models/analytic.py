"""Cost models of GPUs that nobody has measured: data-sheet figures, and the bytes that the operator has to move.

The fused lookup operator is bound by memory. Forward reads a row for every lookup and writes the pooled vectors;
backward sorts the lookups by row, reads for each of them the gradient of its bag, and reads and writes every row
touched once. Bytes add up over the tables of a device, so they are the embedding; the head turns their sums into
milliseconds. The sum is not the whole cost: launches are paid once, and the tables of a device share its cache.
"""

from collections.abc import Sequence
from dataclasses import asdict

import numpy as np

from service.cost_models.assumptions import reuse_assumptions
from service.cost_models.communication import exchanged_bytes
from service.cost_models.data_sheets import ASSUMED, DataSheet
from service.domain.id_counts import BIN_HIGH, BIN_LOW
from service.domain.memory import optimizer_bytes
from service.domain.plan import content_hash
from service.domain.ports import BACKWARD, Embeddings, Floats
from service.domain.reuse import ReuseProfile, reuse_profile
from service.domain.tables import HISTOGRAM_BINS, Optimizer, Table

ANALYTIC_VERSION = 1
"""Number in the versions' names; raised when a formula here changes."""

ANALYTIC = "analytic-"
"""What marks the number in a version's name: ``h100/compute/analytic-1``."""

TABLES, LOOKUPS, BAGS, OUTPUT_BYTES, GRADIENT_FIRST, GRADIENT_AGAIN = range(6)
"""Columns of an embedding: counts of tables, lookups and bags; bytes of pooled output; and bytes of gradients, those
that are read for the first time apart from those that were read before."""

ROWS_FIRST = slice(6, 6 + HISTOGRAM_BINS)
"""Columns of bytes of rows read for the first time, by the histogram bin of how often the row is looked up."""

ROWS_AGAIN = slice(ROWS_FIRST.stop, ROWS_FIRST.stop + HISTOGRAM_BINS)
"""Columns of bytes of rows read again, by the same bins."""

EMBEDDING_SIZE = ROWS_AGAIN.stop
"""Columns of an embedding."""

_SECTOR_BYTES = 32
"""Memory is read in sectors of 32 bytes (CUDA C++ Best Practices Guide): a row is a whole number of them."""

_FLOAT_BYTES = 4
_INDEX_BYTES = 8
_GB_PER_S = 1e6
"""Bytes a millisecond."""

_TYPICAL_COUNTS = np.sqrt(BIN_LOW * BIN_HIGH.astype(np.float64))


class AnalyticCompute:
    """Prices the fused lookup operator of a GPU by its data sheet; implements ``ComputeCostModel``."""

    def __init__(self, version: str, sheet: DataSheet) -> None:
        self._version = version
        self._sheet = sheet
        self._bytes_per_ms = sheet.memory_gb_s.value * _GB_PER_S * ASSUMED.memory_share
        self._cache_bytes = sheet.l2_mib.value * 2**20

    @property
    def version(self) -> str:
        """Name of the version."""
        return self._version

    def encode(self, tables: Sequence[Table], batch_size: int, optimizer: Optimizer) -> Embeddings:
        """What each of T tables adds to a device's work at a global batch size; [T, EMBEDDING_SIZE]."""
        rows = [_quantities(table, batch_size) for table in tables]
        return np.array(rows, dtype=np.float32).reshape(len(tables), EMBEDDING_SIZE)

    def head(self, sums: Embeddings) -> Floats:
        """Forward and backward compute in milliseconds for sums of embeddings; [..., EMBEDDING_SIZE] -> [..., 2]."""
        work = sums.astype(np.float64)
        lookups, offsets = work[..., LOOKUPS], work[..., BAGS] * _INDEX_BYTES
        overhead = lookups * ASSUMED.row_overhead_bytes
        rows = self._traffic(work[..., ROWS_FIRST], work[..., ROWS_AGAIN])
        gradients = self._traffic(work[..., GRADIENT_FIRST, None], work[..., GRADIENT_AGAIN, None])
        updates = 2 * work[..., ROWS_FIRST].sum(axis=-1)
        forward = rows + overhead + lookups * _INDEX_BYTES + offsets + work[..., OUTPUT_BYTES]
        backward = (gradients + overhead) / ASSUMED.gradient_share + lookups * ASSUMED.sort_bytes + offsets + updates
        launches = ASSUMED.launch_ms * np.array([ASSUMED.forward_kernels, ASSUMED.backward_kernels])
        costs = launches + np.stack([forward, backward], axis=-1) / self._bytes_per_ms
        return np.asarray(np.where(work[..., TABLES, None] > 0, costs, 0.0))

    def assumptions(self, tables: Sequence[Table], batch_size: int, optimizer: Optimizer) -> list[str]:
        """That nothing was measured and what changes that, and what the prices rest on besides the request."""
        sheet = self._sheet
        said = [
            f"compute of {sheet.hardware} was not measured: its times are analytic, from the data sheet of the "
            f"{sheet.product} {sheet.memory_gb.value:g} GB; `shardwright profile --device cuda --hardware "
            f"{sheet.hardware}` and `shardwright train compute --hardware {sheet.hardware}` put measured ones in "
            "their place"
        ]
        if optimizer is not Optimizer.SGD and tables:
            share = self._state_share(tables, batch_size, optimizer)
            said.append(
                f"compute is priced with the memory traffic of sgd: that of the state of {optimizer.value} would add "
                f"about {share:.0%} to backward and is not in the times; its memory is counted in full"
            )
        return [*said, *reuse_assumptions(tables, batch_size)]

    def _state_share(self, tables: Sequence[Table], batch_size: int, optimizer: Optimizer) -> float:
        """What reading and writing the optimizer's state would take, as a share of backward, all on one device."""
        backward = self.head(self.encode(tables, batch_size, optimizer).sum(axis=0))[BACKWARD]
        state = sum(_state_traffic(table, batch_size, optimizer) for table in tables)
        return float(state / self._bytes_per_ms / backward)

    def _traffic(self, first: Floats, again: Floats) -> Floats:
        """Bytes that reads cost, a hit in the cache at its share of a byte from memory; two [..., K] -> [...].

        The last columns are what is read most often, and the cache keeps that: what is left of its size after them
        is left to the columns before.
        """
        hotter = np.cumsum(first[..., ::-1], axis=-1)[..., ::-1] - first
        kept = np.clip(self._cache_bytes - hotter, 0.0, first) / np.where(first > 0, first, 1.0)
        saved = (1 - 1 / ASSUMED.l2_speedup) * kept * again
        return np.asarray((first + again - saved).sum(axis=-1))


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

    def assumptions(self, widths: Floats, wait_ms: Floats, batch_size: int) -> list[str]:
        """That nothing was measured and what changes that, and what is taken for granted of many devices."""
        devices = len(widths)
        if devices == 1:
            return []
        sheet = self._sheet
        said = [
            f"exchanges of {sheet.hardware} were not measured: their times are analytic, from the {sheet.link.value} "
            f"bandwidth of the data sheet; `shardwright profile --device cuda --hardware {sheet.hardware}` and "
            f"`shardwright train communication --hardware {sheet.hardware}` put measured ones in their place"
        ]
        if sheet.exchange_note:
            said.append(f"exchanges of {sheet.hardware} {sheet.exchange_note}")
        if devices > ASSUMED.domain:
            said.append(
                f"all {devices} devices are taken to reach each other over {sheet.link.value}, as the "
                f"{ASSUMED.domain} of a host do: a slower network between hosts is not in the cost"
            )
        return said

    def _exchange(self, widths: Floats, batch_size: int) -> Floats:
        if widths.shape[-1] == 1:
            return np.zeros_like(widths)
        return np.asarray(ASSUMED.exchange_latency_ms + exchanged_bytes(widths, batch_size) / self._bytes_per_ms)


def is_analytic(version: str) -> bool:
    """Whether a version of this name is no measured one."""
    return version.rsplit("/", 1)[-1].startswith(ANALYTIC)


def fingerprint(sheet: DataSheet) -> str:
    """Hash of all that the prices of a GPU depend on besides the request; 32 hex digits."""
    peaks = {
        "memory_gb_s": sheet.memory_gb_s.value,
        "l2_mib": sheet.l2_mib.value,
        "link": sheet.link.value,
        "link_gb_s": sheet.link_gb_s.value,
        "exchange_share": sheet.exchange_share.value,
    }
    return content_hash({"version": ANALYTIC_VERSION, "peaks": peaks, "assumed": asdict(ASSUMED)})


def _quantities(table: Table, batch_size: int) -> Floats:
    profile = reuse_profile(table, batch_size)
    row = _whole_sectors(table.row_bytes)
    gradient = _whole_sectors(table.embedding_dim * _FLOAT_BYTES)
    bags = batch_size * table.num_features
    read_bags = min(bags, profile.lookups)
    work = np.zeros(EMBEDDING_SIZE)
    work[TABLES] = 1
    work[LOOKUPS] = profile.lookups
    work[BAGS] = bags
    work[OUTPUT_BYTES] = bags * table.embedding_dim * _FLOAT_BYTES
    work[GRADIENT_FIRST] = read_bags * gradient
    work[GRADIENT_AGAIN] = (profile.lookups - read_bags) * gradient
    work[ROWS_FIRST] = profile.distinct * profile.fractions * row
    work[ROWS_AGAIN] = _repeats(profile) * row
    return work


def _state_traffic(table: Table, batch_size: int, optimizer: Optimizer) -> float:
    """Bytes of optimizer state that a step reads and writes: that of each row touched, once."""
    row = optimizer_bytes(table, optimizer) // table.num_embeddings
    return 2 * reuse_profile(table, batch_size).distinct * _whole_sectors(row)


def _repeats(profile: ReuseProfile) -> Floats:
    """Lookups of ids that occurred before, by bin; [17]. Their sum is exact, the shares are by typical counts."""
    weights = profile.fractions * (_TYPICAL_COUNTS - 1)
    if not weights.any():
        weights = profile.fractions
    total = float(weights.sum())
    return np.asarray(weights * (max(profile.lookups - profile.distinct, 0.0) / total if total else 0.0))


def _whole_sectors(size: int) -> int:
    return -(-size // _SECTOR_BYTES) * _SECTOR_BYTES
