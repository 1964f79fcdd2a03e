"""Pools of tables to draw combinations from: a generated one, and files."""

import json
from pathlib import Path
from typing import Any

import numpy as np

from service.domain.errors import InvalidInputFile
from service.domain.reuse import reuse_fault, zipf_bins
from service.domain.tables import HISTOGRAM_BINS, ReuseHistogram, Table, histogram_faults

POOL_BATCH_SIZE = 65_536
"""Batch size that histograms without one of their own belong to: that of the public sets."""

# Quantiles of the public 856-table set of 2021 (facebookresearch/dlrm_datasets), as (probability, value).
_ROWS = ((0.0, 100), (0.1, 100), (0.2, 4e3), (0.3, 1.14e6), (0.4, 3.99e6), (0.5, 5.87e6), (0.8, 6.0e6), (0.9, 6.6e6),
         (0.98, 6.62e6), (1.0, 1.254e7))  # fmt: skip
_POOLING = ((0.0, 0.0), (0.042, 0.0), (0.05, 0.026), (0.1, 0.55), (0.2, 1.0), (0.3, 1.09), (0.4, 2.54), (0.5, 4.57),
            (0.6, 9.54), (0.7, 14.4), (0.8, 22.8), (0.9, 43.7), (0.95, 77.4), (0.99, 111.7), (1.0, 193.0))  # fmt: skip
_EXPONENT = ((0.0, 0.6), (0.1, 0.96), (0.5, 1.2), (0.8, 1.58), (0.9, 2.03), (1.0, 2.6))


def generated_pool(size: int = 4_096, seed: int = 2021) -> tuple[Table, ...]:
    """A pool that follows the published statistics of Meta's 856-table set.

    Rows and pooling factors follow its quantiles, independently of each other; ids follow Zipf-Mandelbrot laws whose
    exponents span those of the set's histograms, over a random part of the rows. Every table states its distinct
    rows, so that a model sees how they vary under one histogram.
    """
    rng = np.random.default_rng(seed)
    return tuple(_generated_table(i, rng) for i in range(size))


def _generated_table(index: int, rng: np.random.Generator) -> Table:
    rows = round(_quantile(_ROWS, rng, log=True))
    pooling = _quantile(_POOLING, rng, log=False)
    active = max(1, round(rows * float(10 ** rng.uniform(-2.5, 0))))
    shift = float(10 ** rng.uniform(-1, np.log10(active + 1)))
    exponent = _quantile(_EXPONENT, rng, log=False)
    lookups = round(pooling * POOL_BATCH_SIZE)
    if lookups == 0:
        return Table(f"generated_{index}", rows, 16, 0.0)
    distinct, by_bin = zipf_bins(active, lookups, exponent, shift)
    fractions = tuple(round(float(f), 6) for f in by_bin / by_bin.sum())
    histogram = ReuseHistogram(POOL_BATCH_SIZE, fractions)
    table = Table(
        f"generated_{index}", rows, 16, pooling, distinct_rows=float(round(distinct)), reuse_histogram=histogram
    )
    if reuse_fault(table):
        # Rounding made the pair impossible, as with a handful of ids: the histogram alone stands.
        return Table(table.name, rows, 16, pooling, reuse_histogram=histogram)
    return table


def _quantile(points: tuple[tuple[float, float], ...], rng: np.random.Generator, log: bool) -> float:
    probability, value = np.array(points).T
    u = rng.uniform()
    return float(np.exp(np.interp(u, probability, np.log(value))) if log else np.interp(u, probability, value))


def read_pool(path: Path) -> tuple[Table, ...]:
    """Reads a JSON file of tables.

    Takes ``{"tables": [{name, num_embeddings, embedding_dim, pooling_factor, reuse_histogram?, num_features?,
    distinct_rows?}]}``, where a histogram is 17 fractions at batch 65,536 or ``{batch_size, fractions}``, and
    NeuroShard's table_configs.json: ``{"tables": [{row, dim, pooling_factor, bin_0 .. bin_16}]}``.

    Raises:
        InvalidInputFile: the file cannot be read or a table in it is wrong; names the table and the field.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InvalidInputFile(f"{path}: cannot be read as JSON: {error}") from error
    entries = content.get("tables") if isinstance(content, dict) else None
    if not isinstance(entries, list) or not entries:
        raise InvalidInputFile(f'{path}: needs {{"tables": [...]}} with one table or more')
    return tuple(_read_table(path, i, entry) for i, entry in enumerate(entries))


def _read_table(path: Path, index: int, entry: Any) -> Table:
    where = f"{path}: tables[{index}]"
    if not isinstance(entry, dict):
        raise InvalidInputFile(f"{where}: needs an object")
    published = "row" in entry
    rows, dim = ("row", "dim") if published else ("num_embeddings", "embedding_dim")
    table = Table(
        name=str(entry.get("name", f"table_{index}")),
        num_embeddings=_whole(where, entry, rows),
        embedding_dim=_whole(where, entry, dim),
        pooling_factor=_number(where, entry, "pooling_factor"),
        num_features=_whole(where, entry, "num_features") if "num_features" in entry else 1,
        distinct_rows=_number(where, entry, "distinct_rows") if entry.get("distinct_rows") is not None else None,
        reuse_histogram=_histogram(where, [entry.get(f"bin_{i}", 0.0) for i in range(HISTOGRAM_BINS)])
        if published
        else _histogram(where, entry.get("reuse_histogram")),
    )
    fault = reuse_fault(table)
    if fault:
        raise InvalidInputFile(f"{where} ({table.name}): reuse_histogram: {fault}")
    return table


def _histogram(where: str, value: Any) -> ReuseHistogram | None:
    if value is None:
        return None
    batch, fractions = POOL_BATCH_SIZE, value
    if isinstance(value, dict):
        batch, fractions = _whole(where, value, "batch_size"), value.get("fractions")
    if not isinstance(fractions, list) or not all(isinstance(f, int | float) for f in fractions):
        raise InvalidInputFile(f"{where}: reuse_histogram needs a list of {HISTOGRAM_BINS} numbers")
    fault = histogram_faults(tuple(fractions))
    if fault:
        raise InvalidInputFile(f"{where}: reuse_histogram {fault}")
    return ReuseHistogram(batch, tuple(float(f) for f in fractions))


def _whole(where: str, entry: dict[str, Any], field: str) -> int:
    value = entry.get(field)
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise InvalidInputFile(f"{where}: {field} must be a whole number of 1 or more, got {value!r}")
    return value


def _number(where: str, entry: dict[str, Any], field: str) -> float:
    value = entry.get(field)
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value < float("inf"):
        raise InvalidInputFile(f"{where}: {field} must be a number of 0 or more, got {value!r}")
    return float(value)
