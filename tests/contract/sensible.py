"""Makes bodies that were made up sensible, so that what is behind validation is fuzzed too."""

from collections.abc import Mapping
from typing import Any

HARDWARE = "cpu-fbgemm"
_TABLES = 8


def sensible_plan(body: Mapping[str, Any]) -> dict[str, Any]:
    """A question that has a plan, with what can be kept of one that was made up."""
    kept = {name: body[name] for name in ("optimizer", "seed", "launch_id") if name in body}
    count = _at_most(body["devices"]["count"], 8)
    return kept | {
        "tables": sensible_tables(body["tables"]),
        "devices": {"count": count, "memory_bytes": 2**40, "hardware": HARDWARE},
        "global_batch_size": _at_most(body["global_batch_size"], 4_096),
        "algorithm": "dim_greedy",
    }


def sensible_profiles(body: Mapping[str, Any]) -> dict[str, Any]:
    """A request for profiles that can be queued."""
    size = _at_most(body["global_batch_size"], 4_096)
    return {**body, "tables": sensible_tables(body["tables"]), "hardware": HARDWARE, "global_batch_size": size}


def sensible_tables(tables: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Few tables, of other names and of a size that is met."""
    return [
        {
            "name": f"{i} {table['name']}"[:255],
            "num_embeddings": _at_most(table["num_embeddings"], 10**6),
            "embedding_dim": _at_most(table["embedding_dim"], 256),
            "pooling_factor": _at_most(table["pooling_factor"], 20),
        }
        for i, table in enumerate(tables[:_TABLES])
    ]


def _at_most(value: float, most: int) -> float:
    return min(value, most)
