"""A source of fake cost models that planning processes can import without more than they need."""

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from service.domain.errors import DamagedArtifact, UnknownHardware
from service.domain.plan import Algorithm
from service.domain.ports import CostModels, Embeddings
from service.domain.tables import Optimizer, Table
from service.domain.versions import ModelName, Version
from service.policies.dreamshard import DreamShardNetworks
from service.policies.table_features import POLICY_FEATURES_VERSION
from tests.fakes import FakeCommunication, FakeCompute
from tests.policies.random_networks import random_arrays


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

    def models(self) -> list[ModelName]:
        kinds = ("communication", "compute", Algorithm.DREAMSHARD.value)
        return [(hardware, kind) for hardware in sorted(_COMPUTE) for kind in kinds if self.newest(hardware, kind)]

    def versions(self, hardware: str, model: str) -> list[Version]:
        known = hardware in _COMPUTE and model in ("compute", "communication", *self.policies(hardware))
        count = int(self._said("latest") or 1) if model == "compute" else 1
        return [Version(hardware, model, n) for n in range(1, 1 + count * known)]

    def newest(self, hardware: str, model: str) -> Version | None:
        return next(reversed(self.versions(hardware, model)), None)

    def analytic(self, hardware: str, model: str) -> Version | None:
        return None

    def has(self, version: Version) -> bool:
        return version in self.versions(*version.of)

    def check(self, version: Version) -> None:
        self._refuse_damaged(version.hardware)

    def facts(self, version: Version) -> Mapping[str, Any]:
        self._refuse_damaged(version.hardware)
        return {}

    def cost_models(
        self, hardware: str, versions: Mapping[str, str] | None = None, policy: Algorithm | None = None
    ) -> CostModels:
        if hardware not in _COMPUTE:
            raise UnknownHardware(f"no cost models for {hardware!r}", known=self.hardware())
        self._refuse_damaged(hardware)
        compute, communication = _COMPUTE[hardware](), FakeCommunication()
        named = versions or {kind: str(self.newest(hardware, kind)) for kind in ("compute", "communication")}
        compute.version, communication.version = named["compute"], named["communication"]
        placing = named.get("dreamshard") or (f"{hardware}/dreamshard/1" if policy in self.policies(hardware) else None)
        networks = DreamShardNetworks(placing, random_arrays(3), POLICY_FEATURES_VERSION) if placing else None
        return CostModels(compute, communication, policy=networks)

    def _refuse_damaged(self, hardware: str) -> None:
        if hardware in self._said("damaged").split():
            raise DamagedArtifact(f"{hardware}/compute/1: manifest.json cannot be read: '/secret/manifest.json'")

    def _said(self, name: str) -> str:
        path = self.root / name
        return path.read_text() if path.is_file() else ""


class LateStore(FakeStore):
    """Takes its time to be there at all."""

    def __init__(self, root: str) -> None:
        time.sleep(2.0)
        super().__init__(root)
