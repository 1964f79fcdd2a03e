"""``shardwright worker`` and ``shardwright profiles``."""

import json
import os

import pytest
import typer
from sqlalchemy import Engine, text
from typer.testing import CliRunner

from service.cli import app
from service.cli.working import cpu_set, cpu_sets
from service.storage.profiles import ProfileRepository
from tests.storage.live_worker import live_worker
from tests.storage.test_profiles import HARDWARE, TERMS, profile, run

CORES = sorted(os.sched_getaffinity(0))


def test_cores_are_read_as_ranges_and_lists(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    assert cpu_set("1") == (1,)
    assert cpu_set("0-3,6,2") == (0, 1, 2, 3, 6)
    for wrong in ("", "x", "3-1", "8", "-1", "0-9"):
        with pytest.raises(typer.BadParameter):
            cpu_set(wrong)
    assert cpu_sets(["0-1", "3,2"]) == [(0, 1), (2, 3)]
    with pytest.raises(typer.BadParameter, match="core 2 is given twice"):
        cpu_sets(["0-2", "4,2"])


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--hardware", "no/such"], "no/such"),
        (["--hardware", "x", "--device", "tpu"], "tpu"),
        (["--hardware", "x", "--device", "cuda:0", "--cpus", str(CORES[0])], "--cpus"),
        (["--hardware", "x", "--cpus", "100000"], "may run on"),
        (["--hardware", "x", "--device", "cpu", "--device", "cpu"], "one worker"),
        (["--hardware", "x", "--cpus", str(CORES[0]), "--cpus", str(CORES[0])], f"core {CORES[0]} is given twice"),
    ],
)
def test_what_a_worker_cannot_do_is_said_before_anything_starts(arguments: list[str], said: str) -> None:
    ended = CliRunner().invoke(app, ["worker", *arguments])
    assert ended.exit_code == 2
    assert said in ended.output


@pytest.mark.parametrize(
    ("arguments", "said"),
    [(["--hardware", "h100"], "is a GPU"), (["--hardware", "x", "--device", "cuda:77"], "there is no cuda:77")],
)
def test_a_device_that_is_not_there_or_not_that_hardware_is_refused(arguments: list[str], said: str) -> None:
    ended = CliRunner().invoke(app, ["worker", *arguments])
    assert ended.exit_code == 1
    assert said in str(ended.exception)


def test_operators_list_show_and_retry_profiles(
    engine: Engine, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DATABASE_URL", database_url)
    live_worker(engine, HARDWARE)
    ProfileRepository(engine).queue_new([profile(1), profile(2)], "a", TERMS)
    parked, waiting = profile(1).key, profile(2).key
    run(engine, f"UPDATE profiles SET state = 'parked', attempts = 3, error = 'Trace\nIt broke' WHERE id = '{parked}'")

    def said(*arguments: str) -> str:
        return str(CliRunner().invoke(app, ["profiles", *arguments]).output)

    assert said("list", "--state", "parked") == (
        f"{parked} parked attempts=3 hardware={HARDWARE} num_embeddings=1 embedding_dim=64 pooling_factor=2.0 "
        "num_features=1 pooling_mode=sum data_type=fp32 global_batch_size=512 optimizer=sgd It broke\n"
    )
    assert {line.split()[0] for line in said("list").splitlines()} == {parked, waiting}
    assert said("list", "--hardware", "cpu-y") == ""
    (line,) = said("list", "--state", "parked", "--json").splitlines()
    assert json.loads(line) == json.loads(said("show", parked))
    assert json.loads(said("show", parked))["error"] == "Trace\nIt broke"
    assert "no profile is stored under 'x'" in said("show", "x")
    assert "give ids of profiles, or --parked" in said("retry")
    assert "0 of 1 queued again" in said("retry", waiting)
    assert said("retry", "--parked") == "1 of 1 queued again\n"
    with engine.connect() as connection:
        assert connection.scalar(text("SELECT count(*) FROM profiles WHERE state = 'queued' AND attempts = 0")) == 2
