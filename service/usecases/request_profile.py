"""Which tables are to be measured, and asking for it."""

from collections.abc import Sequence

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


def request_profiles(problem: Problem, store: ProfileStore, caller: str, terms: ProfileTerms) -> ProfileRequest:
    """Asks for the profiles of all tables of a problem, by the tables' names.

    Raises:
        NoWorker: there are new ones, and no live worker serves their hardware.
        ProfileQuotaExceeded: there are more new ones than the caller may queue today.
        StorageUnavailable: the database cannot be reached.
    """
    hardware, batch_size, optimizer = problem.topology.hardware, problem.global_batch_size, problem.optimizer
    named = [(table.name, TableProfile(hardware, table, batch_size, optimizer)) for table in problem.tables]
    return store.request(named, caller, terms)
