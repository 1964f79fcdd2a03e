"""Requests about random tables."""

from typing import Any

import numpy as np

TABLES, DEVICES = 100, 8
_GIB = 2**30


def tables(table_seed: int = 0, count: int = TABLES) -> list[dict[str, Any]]:
    """Tables of random sizes without histograms."""
    rng = np.random.default_rng(table_seed)
    return [
        {
            "name": f"cat_{i}",
            "num_embeddings": int(10 ** rng.uniform(3, 6.5)),
            "embedding_dim": int(rng.choice([16, 32, 64, 128])),
            "pooling_factor": float(round(rng.uniform(0.5, 40), 2)),
        }
        for i in range(count)
    ]


def plan_body(table_seed: int = 0, **changes: Any) -> dict[str, Any]:
    """A planning question about the tables of a seed."""
    devices = {"count": DEVICES, "memory_bytes": 64 * _GIB, "hardware": "cpu-fbgemm"}
    return {"tables": tables(table_seed), "devices": devices, "global_batch_size": 16_384, "optimizer": "sgd"} | changes


def estimate_body(placement: int = 0, table_seed: int = 0) -> dict[str, Any]:
    """What one of many random placements costs."""
    body, rng = plan_body(table_seed), np.random.default_rng(placement)
    return body | {"shards": [shard for table in body["tables"] for shard in _shards(table, rng)]}


def _shards(table: dict[str, Any], rng: np.random.Generator) -> list[dict[str, Any]]:
    """A table whole on one device, or one in ten as two halves on two."""
    dim = table["embedding_dim"]
    first, second = (int(device) for device in rng.choice(DEVICES, 2, replace=False))
    if rng.random() < 0.9:
        return [{"table": table["name"], "columns": [0, dim], "device": first}]
    return [
        {"table": table["name"], "columns": [0, dim // 2], "device": first},
        {"table": table["name"], "columns": [dim // 2, dim], "device": second},
    ]
