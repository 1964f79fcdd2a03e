"""A source of fake cost models that planning processes can import without more than they need."""

import time
from collections.abc import Sequence

from service.domain.errors import UnknownHardware
from service.domain.ports import CostModels, Embeddings
from service.domain.tables import Table
from tests.fakes import FakeCommunication, FakeCompute, fake_models


class SlowCompute(FakeCompute):
    """Takes its time over every question that it is asked."""

    def encode(self, tables: Sequence[Table], batch_size: int) -> Embeddings:
        time.sleep(1.0)
        return super().encode(tables, batch_size)


class BrokenCompute(FakeCompute):
    """Has a defect."""

    def encode(self, tables: Sequence[Table], batch_size: int) -> Embeddings:
        raise LookupError("secret")


class FakeStore:
    """Cost models of hardware ``fake``; of ``slow``, which takes a second over a plan; of ``broken``, which fails."""

    def __init__(self, root: str) -> None:
        self.root = root

    def hardware(self) -> list[str]:
        return ["broken", "fake", "slow"]

    def cost_models(self, hardware: str) -> CostModels:
        if hardware == "slow":
            return CostModels(SlowCompute(), FakeCommunication())
        if hardware == "broken":
            return CostModels(BrokenCompute(), FakeCommunication())
        if hardware == "fake":
            return fake_models()
        raise UnknownHardware(f"no cost models for {hardware!r}", known=self.hardware())
