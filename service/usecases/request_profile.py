"""Which tables are to be measured, and asking for it."""

from collections.abc import Collection, Sequence

from service.domain.errors import Fault, InvalidRequest
from service.domain.fused_operator import unsupported
from service.domain.plan import Problem
from service.domain.ports import ProfileStore
from service.domain.profiles import ProfileRequest, ProfileTerms, TableProfile


def new_profiles(problem: Problem, novelty: Sequence[float], threshold: float) -> list[TableProfile]:
    """Profiles of the tables that are unlike what was measured.

    Args:
        problem: whose tables were planned or priced.
        novelty: of each of its tables, see ``ComputeCostModel.novelty``; T entries.
        threshold: novelty above which a table is new.
    """
    new = [table for table, score in zip(problem.tables, novelty, strict=True) if score > threshold]
    hardware, batch_size, optimizer = problem.topology.hardware, problem.global_batch_size, problem.optimizer
    return [TableProfile(hardware, table, batch_size, optimizer) for table in new]


def queue_profiles(profiles: Sequence[TableProfile], store: ProfileStore, caller: str, terms: ProfileTerms) -> int:
    """Queues those of one hardware that are new and that its workers can measure; how many that were.

    Raises:
        NoWorker: there are new ones, and no live worker serves their hardware.
        StorageUnavailable: the database cannot be reached.
    """
    devices = store.devices(profiles[0].hardware, terms)
    return store.queue_new([one for one in profiles if not _lacking(one, devices)], caller, terms)


def request_profiles(problem: Problem, store: ProfileStore, caller: str, terms: ProfileTerms) -> ProfileRequest:
    """Asks for the profiles of all tables of a problem, by the tables' names.

    Raises:
        InvalidRequest: the operator of the hardware's workers cannot run some table, or any with this optimizer.
        NoWorker: there are new ones, and no live worker serves their hardware.
        ProfileQuotaExceeded: there are more new ones than the caller may queue today.
        StorageUnavailable: the database cannot be reached.
    """
    hardware, batch_size, optimizer = problem.topology.hardware, problem.global_batch_size, problem.optimizer
    named = [(table.name, TableProfile(hardware, table, batch_size, optimizer)) for table in problem.tables]
    devices = store.devices(hardware, terms)
    faults = [
        Fault("/optimizer", reason) if field == "optimizer" else Fault(f"/tables/{i}/{field}", reason, name)
        for i, (name, profile) in enumerate(named)
        for field, reason in _lacking(profile, devices)
    ]
    if faults:
        # The optimizer is all tables' and is told of once.
        raise InvalidRequest(list(dict.fromkeys(faults)))
    return store.request(named, caller, terms)


def _lacking(profile: TableProfile, devices: Collection[str]) -> list[tuple[str, str]]:
    """What no worker's operator has of a profile; empty where one has all, or there is no worker to ask."""
    found = [unsupported(device, profile.table.data_type, profile.optimizer) for device in sorted(devices)]
    return found[0] if found and all(found) else []
