"""From measuring to serving on the command line, with the real operator and a real Postgres."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from sqlalchemy import Engine, func, select
from typer.testing import CliRunner

from service.cli import app
from service.domain.errors import InvalidInputFile, MeasurementRefused, TooFewMeasurements
from service.profiling import comm_campaign
from service.profiling.comm_bench import Exchange, ExchangeTiming
from service.profiling.comm_campaign import CommunicationCampaign
from service.storage.measurements import MeasurementRepository
from service.storage.rows import ComputeMeasurementRow
from tests.api.processes import clean_environment, is_alive, kill, planning_processes, wait_for
from tests.profiling.made_up_bench import MadeUpBench
from tests.training.test_compute_training import synthetic

SMALL = ["--hardware", "cpu-test", "--memory-gib", "0.03", "--ranks", "2"]


@pytest.fixture
def environment(database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    given = {"DATABASE_URL": database_url, "SHARDWRIGHT_MODEL_STORE": str(tmp_path / "models")}
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    return {**os.environ, **given}


@pytest.fixture
def pool(tmp_path: Path) -> Path:
    tables = [
        {"name": f"t{i}", "num_embeddings": 300 * (i + 1), "embedding_dim": 16, "pooling_factor": i / 4}
        for i in range(24)
    ]
    path = tmp_path / "pool.json"
    path.write_text(json.dumps({"tables": tables}))
    return path


def run(*arguments: str) -> str:
    result = CliRunner().invoke(app, list(arguments), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def test_profile_train_export_seed_and_plan(
    environment: dict[str, str],
    engine: Engine,
    empty_database_url: str,
    pool: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert environment
    output = run("profile", *SMALL, "--tables", str(pool), "--samples", "20", "--exchanges", "3")
    assert "3 measured, 0 stored before\n" in output
    assert "20 measured, 0 stored before, 0 refused" in output
    # Enough to train on, without the minutes that measuring them takes.
    store = MeasurementRepository(engine)
    more = CommunicationCampaign("cpu-test", ranks=4, seed=1)
    assert [*more.runs(store, 147, bench=MadeUpBench())][-1].measured == 147
    as_measured = store.compute("cpu-test")[0].environment
    assert all(store.add_compute(replace(row, hardware="cpu-test", environment=as_measured)) for row in synthetic(320))
    assert "cpu-test/compute/1" in run("train", "compute", "--hardware", "cpu-test", "--epochs", "5")
    trained = run("train", "communication", "--hardware", "cpu-test", "--epochs", "5")
    assert "cpu-test/communication/1" in trained
    assert "340 combinations and 150 exchanges" in run("db", "export", "--hardware", "cpu-test")
    assert "0 of 340 combinations and 0 of 150 exchanges added" in run("db", "seed")
    monkeypatch.setenv("DATABASE_URL", empty_database_url)
    assert "340 of 340 combinations and 150 of 150 exchanges added" in run("db", "seed", "--hardware", "cpu-test")

    body = {
        "tables": json.loads(pool.read_text())["tables"],
        "devices": {"count": 2, "memory_bytes": 2**30, "hardware": "cpu-test"},
        "global_batch_size": 2048,
        "optimizer": "sgd",
    }
    request = tmp_path / "request.json"
    request.write_text(json.dumps(body))
    answer = json.loads(run("plan", str(request)))
    assert answer["models"] == {"compute": "cpu-test/compute/1", "communication": "cpu-test/communication/1"}
    assert answer["max_cost_ms"] > 0
    assert {shard["table"] for shard in answer["shards"]} == {t["name"] for t in body["tables"]}


def test_ctrl_c_loses_nothing_and_the_same_command_goes_on(
    environment: dict[str, str], pool: Path, engine: Engine
) -> None:
    command = [sys.executable, "-m", "service", "profile", *SMALL, "--tables", str(pool), "--kind", "compute"]

    def stored() -> int:
        with engine.connect() as connection:
            return connection.scalar(select(func.count()).select_from(ComputeMeasurementRow)) or 0

    process = subprocess.Popen([*command, "--samples", "100000"], env=environment, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 60
    while stored() < 3 and time.monotonic() < deadline:
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors
    assert "the same command goes on" in errors
    kept = stored()
    assert kept >= 3
    output = run("profile", *SMALL, "--tables", str(pool), "--kind", "compute", "--samples", str(kept + 2))
    assert f"2 measured, {kept} stored before" in output
    assert stored() == kept + 2


def test_a_rank_that_dies_is_one_line_and_exit_code_1(environment: dict[str, str]) -> None:
    arguments = ["profile", *SMALL, "--kind", "communication", "--exchanges", "60"]
    process = subprocess.Popen(
        [sys.executable, "-m", "service", *arguments],
        env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    wait_for(lambda: len(planning_processes(process.pid)) == 2, 60)
    ranks = sorted(planning_processes(process.pid))
    kill(ranks[0])
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "shardwright: rank 0 of 2 (numbered from 0) was ended by SIGKILL" in errors
    assert "Traceback" not in errors
    assert not any(map(is_alive, ranks))


def test_refused_exchanges_are_reported_and_the_rest_is_measured(
    environment: dict[str, str], pool: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert environment

    def bench(exchanges: Sequence[Exchange], device: str, repeats: int) -> list[ExchangeTiming]:
        if len(exchanges[0].widths) == 2:
            raise MeasurementRefused("rank 1 of 2 was ended by SIGKILL: measure again")
        return MadeUpBench()(exchanges)

    monkeypatch.setattr(comm_campaign, "measure_exchanges", bench)
    arguments = ["profile", *SMALL, "--ranks", "3", "--tables", str(pool), "--samples", "2", "--exchanges", "60"]
    result = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert result.exit_code == 1
    assert "shardwright: rank 1 of 2 was ended by SIGKILL: measure again\n" in result.stderr
    assert re.search(r"exchange-2-\w+: 0 measured", result.stdout)
    assert re.search(r"exchange-3-\w+: 60 measured", result.stdout)
    assert "2 measured, 0 stored before, 0 refused" in result.stdout


def test_no_time_left_measures_nothing_and_says_so(environment: dict[str, str]) -> None:
    assert environment
    output = run("profile", "--hardware", "cpu-test", "--minutes", "0", "--kind", "communication", "--ranks", "2",
                 "--ranks", "3")  # fmt: skip
    assert output.count("0 measured, 0 stored before") == 2
    assert "exchange-2-" in output
    assert "exchange-3-" in output


def test_sigterm_stops_the_database_that_profile_started(pool: Path, server_folder: Path) -> None:
    data_dir = server_folder / "var"
    arguments = ["profile", *SMALL, "--tables", str(pool), "--kind", "compute", "--data-dir", str(data_dir)]
    process = subprocess.Popen([sys.executable, "-m", "service", *arguments], env=clean_environment())
    note = data_dir / "postgres" / "postmaster.pid"
    wait_for(lambda: note.exists() and "ready" in note.read_text(), 60)
    server = int(note.read_text().splitlines()[0])
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 128 + signal.SIGTERM
    wait_for(lambda: not is_alive(server))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--hardware", "h100"], "hardware h100 is a GPU, NVIDIA H100"),
        pytest.param(
            ["--hardware", "gpu-x", "--device", "cuda"],
            "there is no cuda: this machine has 0 GPUs",
            marks=pytest.mark.skipif(torch.cuda.is_available(), reason="there is one"),
        ),
    ],
)
def test_what_cannot_be_measured_here_is_refused_before_anything_is(
    environment: dict[str, str], arguments: list[str], said: str
) -> None:
    assert environment
    with pytest.raises(MeasurementRefused, match=said):
        run("profile", *arguments)


def test_a_device_that_torch_does_not_know_is_refused_by_every_command_that_takes_one() -> None:
    for arguments in (["profile", "--device", "gpu"], ["measure", "r.json", "p.json", "--device", "cuda:x"]):
        result = CliRunner().invoke(app, arguments)
        assert result.exit_code == 2
        assert "must be cpu, cuda or cuda:<n>" in " ".join(result.stderr.replace("│", " ").split())


def test_a_campaign_of_which_all_is_refused_says_why_and_fails(environment: dict[str, str], pool: Path) -> None:
    assert environment
    arguments = ["profile", *SMALL, "--tables", str(pool), "--kind", "compute", "--samples", "3", "--optimizer", "adam"]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 1
    assert "0 measured, 0 stored before, 3 refused" in result.stdout
    assert "has no adam: measure it on cuda, or use adagrad" in result.stderr


@pytest.mark.parametrize("name", ["../x", "", ".hidden", "a/b", "x" * 65])
@pytest.mark.parametrize("command", [["profile"], ["db", "export"], ["db", "seed"], ["train", "compute"]])
def test_a_hardware_name_that_no_request_may_have_is_refused(command: list[str], name: str) -> None:
    result = CliRunner().invoke(app, [*command, "--hardware", name])
    assert result.exit_code == 2
    assert "hardware" in result.stderr


def test_training_on_nothing_says_what_to_do(environment: dict[str, str]) -> None:
    assert environment
    with pytest.raises(TooFewMeasurements, match="shardwright profile"):
        run("train", "compute", "--hardware", "cpu-test")


def test_seeding_from_a_store_without_measurements_fails_clearly(environment: dict[str, str]) -> None:
    result = CliRunner().invoke(app, ["db", "seed"])
    assert result.exit_code == 1
    assert environment["SHARDWRIGHT_MODEL_STORE"] in result.stderr


def test_tables_from_dlrm_writes_what_profile_and_plan_take(tmp_path: Path) -> None:
    file, output = tmp_path / "batch.pt", tmp_path / "tables.json"
    torch.save((torch.tensor([5, 5, 9]), torch.tensor([0, 2, 3]), torch.tensor([[2, 1]])), file)
    assert json.loads(run("tables", "from-dlrm", str(file)))["tables"][0]["pooling_factor"] == 1.5
    run("tables", "from-dlrm", str(file), "--embedding-dim", "64", "-o", str(output))
    assert json.loads(output.read_text())["tables"][0]["embedding_dim"] == 64
    with pytest.raises(InvalidInputFile, match=r"none\.pt"):
        run("tables", "from-dlrm", str(tmp_path / "none.pt"))
    for arguments, said in (
        (["--embedding-dim", "6"], "multiple of 4"),
        (["-o", str(tmp_path / "nowhere" / "x.json")], "cannot write"),
    ):
        result = CliRunner().invoke(app, ["tables", "from-dlrm", str(file), *arguments])
        assert result.exit_code == 1
        assert said in result.stderr
