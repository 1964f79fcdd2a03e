"""Outcomes of trainings as they are kept, and that models of a hardware are retrained by one process at a time."""

import subprocess
import sys
import time
from dataclasses import replace
from datetime import timedelta

import pytest
from sqlalchemy import Engine, exc, text

from service.domain.errors import RetrainingUnderWay, StorageUnavailable
from service.domain.ports import TrainingStore
from service.domain.trainings import Ended, Outcome
from service.storage.trainings import TrainingRepository

_HOLDS = """
import sys, time
from service.storage.engine import build_engine
from service.storage.trainings import TrainingRepository
with TrainingRepository(build_engine(sys.argv[1])).alone("cpu-x"):
    print("held", flush=True)
    time.sleep(60)
"""


def _outcome(store: TrainingStore, model: str = "compute", ended: Ended = Ended.REFUSED, ago_s: float = 0.0) -> Outcome:
    now = store.now() - timedelta(seconds=ago_s)
    return Outcome("cpu-x", model, ended, "it is no better", now - timedelta(minutes=1), now)


def test_an_outcome_comes_back_as_it_was_stored(engine: Engine) -> None:
    store: TrainingStore = TrainingRepository(engine)
    bare = _outcome(store)
    whole = replace(
        bare, ended=Ended.PROMOTED, trained="cpu-x/compute/4", serving="cpu-x/compute/3", basis="b",
        comparison={"held_out": {"new": [0.1, None]}},
    )  # fmt: skip
    store.add(bare)
    store.add(whole)
    store.add(_outcome(store, "communication"))
    assert store.of_model("cpu-x", "compute", 10) == [whole, bare]
    assert store.of_model("cpu-x", "compute", 1) == [whole]
    assert store.of_model("cpu-y", "compute", 10) == []


def test_the_last_of_each_model_is_told_with_its_age(engine: Engine) -> None:
    store = TrainingRepository(engine)
    for model, ended, ago_s in (("compute", Ended.REFUSED, 500), ("dreamshard", Ended.FAILED, 30)):
        store.add(_outcome(store, model, ended, ago_s))
    store.add(_outcome(store, "compute", Ended.NOTHING_NEW, 100))
    (compute, age), (policy, other_age) = store.last_of_each()
    assert (compute.ended, policy.ended) == (Ended.NOTHING_NEW, Ended.FAILED)
    assert [age, other_age] == pytest.approx([100, 30], abs=20)
    assert [o.model for o in store.all("cpu-x", 10)] == ["compute", "dreamshard", "compute"]
    assert [o.model for o in store.all(None, 1)] == ["compute"]
    assert store.all("cpu-y", 10) == []


def test_a_version_belongs_to_what_was_promoted_and_to_nothing_else(engine: Engine) -> None:
    store = TrainingRepository(engine)
    for outcome in (_outcome(store, ended=Ended.PROMOTED), replace(_outcome(store), trained="cpu-x/compute/4")):
        with pytest.raises(exc.IntegrityError, match="ck_trainings_promoted_was_trained"):
            store.add(outcome)


def test_a_hardware_is_retrained_by_one_at_a_time(engine: Engine) -> None:
    store, other = TrainingRepository(engine), TrainingRepository(engine)
    with store.alone("cpu-x") as make_sure:
        with pytest.raises(RetrainingUnderWay, match="cpu-x"), other.alone("cpu-x"):
            pass
        with other.alone("cpu-y"):
            make_sure()
    with other.alone("cpu-x"):
        pass


def test_a_process_that_is_killed_lets_others_in(engine: Engine, database_url: str) -> None:
    store = TrainingRepository(engine)
    holder = subprocess.Popen([sys.executable, "-c", _HOLDS, database_url], stdout=subprocess.PIPE, text=True)
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(RetrainingUnderWay), store.alone("cpu-x"):
            pass
    finally:
        holder.kill()
        holder.communicate()
    deadline = time.monotonic() + 10
    while True:
        try:
            with store.alone("cpu-x"):
                return
        except RetrainingUnderWay:
            assert time.monotonic() < deadline
            time.sleep(0.05)


def test_a_lost_connection_is_noticed(engine: Engine) -> None:
    with TrainingRepository(engine).alone("cpu-x") as make_sure:
        make_sure()
        with engine.begin() as connection:
            connection.execute(
                text(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                    "WHERE application_name = 'shardwright retraining' AND datname = current_database()"
                )
            )
        with pytest.raises(StorageUnavailable):
            make_sure()
