"""A source of fake cost models that planning processes can import without more than they need."""

import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from service.domain.errors import DamagedArtifact, UnknownHardware
from service.domain.plan import Algorithm
from service.domain.ports import CostModels, Embeddings
from service.domain.tables import Optimizer, Table
from tests.fakes import FakeCommunication, FakeCompute
from tests.policies.random_networks import random_networks


class SlowCompute(FakeCompute):
    """Takes its time over every question that it is asked."""

    seconds = 1.0

    def encode(self, tables: Sequence[Table], batch_size: int, optimizer: Optimizer) -> Embeddings:
        time.sleep(self.seconds)
        return super().encode(tables, batch_size, optimizer)


class StuckCompute(SlowCompute):
    """Does not come to an end while anyone looks."""

    seconds = 3600.0


class BrokenCompute(FakeCompute):
    """Has a defect."""

    def encode(self, tables: Sequence[Table], batch_size: int, optimizer: Optimizer) -> Embeddings:
        raise LookupError("secret")


_COMPUTE = {"broken": BrokenCompute, "fake": FakeCompute, "slow": SlowCompute, "stuck": StuckCompute}


class FakeStore:
    """Cost models of hardware ``fake``; of ``slow``, which takes a second over a plan; of ``stuck``; of ``broken``.

    Hardware ``fake`` has a policy of DreamShard, none has one of AutoShard.

    Two files in the root, where they are there, change what is found: ``latest`` has the number of the newest compute
    version, ``damaged`` the names of hardware whose models cannot be read.
    """

    def __init__(self, root: str) -> None:
        self.root = Path(root)

    def hardware(self) -> list[str]:
        return list(_COMPUTE)

    def policies(self, hardware: str) -> list[Algorithm]:
        return [Algorithm.DREAMSHARD] if hardware == "fake" else []

    def cost_models(
        self, hardware: str, versions: Mapping[str, str] | None = None, policy: Algorithm | None = None
    ) -> CostModels:
        if hardware not in _COMPUTE:
            raise UnknownHardware(f"no cost models for {hardware!r}", known=self.hardware())
        if hardware in self._said("damaged").split():
            raise DamagedArtifact(f"{hardware}/compute/1: manifest.json cannot be read: '/secret/manifest.json'")
        compute = _COMPUTE[hardware]()
        compute.version = versions["compute"] if versions else f"fake/compute/{self._said('latest') or 1}"
        named = Algorithm.DREAMSHARD.value in (versions or {})
        placing = random_networks(3) if named or policy in self.policies(hardware) else None
        return CostModels(compute, FakeCommunication(), policy=placing)

    def _said(self, name: str) -> str:
        path = self.root / name
        return path.read_text() if path.is_file() else ""
