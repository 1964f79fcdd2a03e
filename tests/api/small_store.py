"""A model store of small models of hardware ``cpu-x``, and questions about it."""

from typing import Any

import numpy as np

from service.domain.versions import Version
from service.registry.store import ModelStore
from tests.api.support import GIB, request, table
from tests.cost_models.small_model import COMMUNICATION_FACTS, FACTS, exchange_weights, weights

HARDWARE = "cpu-x"
COMPUTE_MODEL = (HARDWARE, "compute")


def publish(store: ModelStore, seed: int, padding: int = 0) -> Version:
    """Writes the next compute version, whose costs are its own, and makes its file larger by so many bytes."""
    arrays = {**weights(seed), "padding": np.zeros(padding // 4, dtype=np.float32)}
    return store.write(HARDWARE, "compute", arrays, FACTS)


def small_store(root: str) -> ModelStore:
    """One compute version and one of exchanges."""
    store = ModelStore(root)
    publish(store, 0)
    store.write(HARDWARE, "communication", exchange_weights(), COMMUNICATION_FACTS)
    return store


def question(**changes: Any) -> dict[str, Any]:
    """A request for a plan."""
    devices = {"count": 2, "memory_bytes": GIB, "hardware": HARDWARE}
    return request(devices=devices, global_batch_size=4096, **changes)


def priced(**changes: Any) -> dict[str, Any]:
    """A request for an estimate."""
    shards = [{"table": "t0", "columns": [0, 64], "device": 0}, {"table": "t1", "columns": [0, 64], "device": 1}]
    body = question(tables=[table("t0"), table("t1", pooling_factor=9)], shards=shards, **changes)
    del body["algorithm"]
    return body
