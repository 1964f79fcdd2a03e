"""A whole night in minutes: new tables are planned, measured, learnt, promoted, and planned again; do errors fall?

On a fresh database with the shipped measurements, and a copy of the shipped versions, run the real service (over HTTP)
and a real worker. One plan brings tables of a kind that was never measured: each serves 16 to 32 features, as one table
of items does for the many lists that a user has. They are queued and measured by the operator. Then the night comes:
the worker is started with a cron of the next minute, and retrains the models with the recipes that we ship. Once the
cost models are through, the same tables are planned again, and both versions are judged on what was measured, on
held-out tables apart. The policies, which the night trains next, are stopped with the worker.
Run: taskset -c 0 python -m benchmarks.night [--tables N] [--write FILE]
"""

import argparse
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import numpy as np
from sqlalchemy import Engine, text

from benchmarks.machine import command_line, machine_line
from service.domain.measurements import NOISY, ComputeMeasurement, Split
from service.domain.profiles import QUEUE_PREFIX
from service.domain.trainings import Outcome
from service.domain.versions import COMMUNICATION, COMPUTE, Version
from service.registry.store import ModelStore
from service.storage.embedded import EmbeddedPostgres
from service.storage.engine import build_engine
from service.storage.measurement_files import read_measurements
from service.storage.measurements import MeasurementRepository
from service.storage.migrate import upgrade
from service.storage.trainings import TrainingRepository
from service.training.compute_predictions import metrics_on

HARDWARE = "cpu-fbgemm"
SHIPPED = Path(__file__).resolve().parent.parent / "model_store" / HARDWARE
BATCH_SIZE = 512
PATIENCE_S = 1_800.0

_NO_NIGHT = ""


@dataclass
class Night:
    """What happened.

    Attributes:
        before: the answer to POST /plan before the night.
        after: the same after it.
        outcomes: of the trainings, the first one first.
        seconds: how long each part took.
    """

    before: Mapping[str, Any] = field(default_factory=dict)
    after: Mapping[str, Any] = field(default_factory=dict)
    outcomes: Sequence[Outcome] = ()
    seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def timed(self, part: str) -> Iterator[None]:
        """Notes how long something takes."""
        began = time.monotonic()
        yield
        self.seconds[part] = time.monotonic() - began


@dataclass(frozen=True)
class Machine:
    """One machine: a database, a model store, and processes that use them.

    Attributes:
        folder: for all of it.
        url: of the database.
        engine: on it.
        environment: of the processes.
    """

    folder: Path
    url: str
    engine: Engine
    environment: Mapping[str, str]

    @property
    def models(self) -> ModelStore:
        """The copied versions, and those that are trained."""
        return ModelStore(str(self.folder / "models"))

    @contextmanager
    def running(self, *command: str, stop_s: float = 60.0, **settings: str) -> Iterator[None]:
        """A command of the service, stopped at the end."""
        with (self.folder / "log").open("a") as log:
            arguments = [sys.executable, "-m", "service", *command]
            process = subprocess.Popen(arguments, env={**self.environment, **settings}, stderr=log)
            try:
                yield
            finally:
                process.send_signal(signal.SIGTERM)
                process.wait(stop_s)


def new_tables(count: int, seed: int = 0) -> list[dict[str, Any]]:
    """Tables of a request that serve 16 to 32 features of 1 to 3 ids each; what was measured serves one."""
    rng = np.random.default_rng(seed)
    tables = []
    for i in range(count):
        features = int(rng.integers(16, 33))
        table = {
            "name": f"items_{i}",
            "num_embeddings": int(10 ** rng.uniform(5, 6)),
            "embedding_dim": int(rng.choice([32, 64, 128])),
            "num_features": features,
            "pooling_factor": round(features * float(rng.uniform(1, 3)), 1),
        }
        tables.append(table)
    return tables


def request(tables: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """A body of POST /plan; equal bodies under other versions are other plans."""
    devices = {"count": 8, "memory_bytes": 64 * 2**30, "hardware": HARDWARE}
    body = {"tables": [*tables], "devices": devices, "global_batch_size": BATCH_SIZE, "optimizer": "sgd"}
    return {**body, "time_limit_ms": 20_000}


def next_minute() -> str:
    """A cron of the next minute that has not nearly come, once a day."""
    when = datetime.now(UTC) + timedelta(seconds=75)
    return f"{when.minute} {when.hour} * * *"


def a_night(machine: Machine, client: httpx.Client, tables: Sequence[Mapping[str, Any]]) -> Night:
    """Goes through one."""
    night, body = Night(), request(tables)
    with night.timed("start of the service"):
        wait(lambda: ready(client))
    with machine.running("worker", "--hardware", HARDWARE, SHARDWRIGHT_NIGHTLY_CRON=_NO_NIGHT):
        wait(lambda: bool(count(machine, "SELECT count(*) FROM procrastinate_workers")))
        with night.timed("first plan"):
            night.before = planned(client, body)
        wait(lambda: bool(profiles(machine)))
        with night.timed("measuring"):
            wait(lambda: not profiles(machine).keys() & {"queued", "running"})
    trainings = TrainingRepository(machine.engine)
    with machine.running("worker", "--hardware", HARDWARE, SHARDWRIGHT_NIGHTLY_CRON=next_minute()):
        with night.timed("wait for the night"):
            wait(lambda: bool(count(machine, "SELECT count(*) FROM procrastinate_jobs WHERE status = 'doing'")))
        with night.timed("training, judging and promoting of the cost models"):
            wait(lambda: any(found.model == COMMUNICATION for found in trainings.all(HARDWARE, 10)))
        with night.timed("second plan"):
            night.after = planned(client, body)
        stopped = time.monotonic()
    night.seconds["stop of the worker while it trained the policies"] = time.monotonic() - stopped
    night.outcomes = trainings.all(HARDWARE, 10)[::-1]
    return night


def ready(client: httpx.Client) -> bool:
    """Whether the service answers."""
    try:
        return client.get("/readyz").status_code == 200
    except httpx.ConnectError:
        return False


def planned(client: httpx.Client, body: Mapping[str, Any]) -> Mapping[str, Any]:
    """The answer to POST /plan."""
    answer = client.post("/plan", json=body)
    if answer.status_code != 200:
        raise SystemExit(f"POST /plan: {answer.status_code}: {answer.text}")
    found: Mapping[str, Any] = answer.json()
    return found


def count(machine: Machine, query: str) -> int:
    """The one number of a query."""
    with machine.engine.connect() as connection:
        return int(connection.scalar(text(query)) or 0)


def profiles(machine: Machine) -> dict[str, int]:
    """Profiles in each state."""
    with machine.engine.connect() as connection:
        query = text("SELECT state, count(*) FROM profiles GROUP BY state")
        return {row.state: row[1] for row in connection.execute(query)}


def wait(condition: Callable[[], bool], seconds: float = PATIENCE_S) -> None:
    """Waits until a condition holds."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise SystemExit("what was waited for did not come")
        time.sleep(0.5)


def error_lines(machine: Machine, night: Night) -> list[str]:
    """Both versions on what was measured, new tables and old ones."""
    names = [night.before["models"][COMPUTE], night.after["models"][COMPUTE]]
    models = [machine.models.compute(Version.parse(name)) for name in names]
    rows = [row for row in MeasurementRepository(machine.engine).compute(HARDWARE) if NOISY not in row.environment]
    parts = {
        "new tables, held out": _part(rows, Split.TEST, new=True),
        "new tables, trained on": _part(rows, Split.TRAIN, new=True),
        "shipped measurements, held out": _part(rows, Split.TEST, new=False),
    }
    lines = [f"| measurements | rows | {names[0]} | {names[1]} |", "|---|--:|--:|--:|"]
    for name, part in parts.items():
        errors = [f"{metrics_on(model, part)['total'].mape:.1%}" for model in models] if part else ["", ""]
        lines.append(f"| {name} | {len(part)} | {' | '.join(errors)} |")
    return lines


def _part(rows: Sequence[ComputeMeasurement], part: Split, new: bool) -> list[ComputeMeasurement]:
    return [row for row in rows if row.split is part and row.campaign.startswith(QUEUE_PREFIX) is new]


def report(machine: Machine, night: Night) -> list[str]:
    """What is to be told, as Markdown."""
    states = ", ".join(f"{number} {state}" for state, number in sorted(profiles(machine).items()))
    measured = MeasurementRepository(machine.engine).compute(HARDWARE)
    noisy = sum(NOISY in row.environment for row in measured if row.campaign.startswith(QUEUE_PREFIX))
    versions = [plan["models"][COMPUTE] for plan in (night.before, night.after)]
    costs = [f"{plan['max_cost_ms']:.1f} ms" for plan in (night.before, night.after)]
    told = (
        f"The plan before named {versions[0]} and was to cost {costs[0]}, the one after {versions[1]} and {costs[1]}."
    )
    lines = [
        "# A night in minutes",
        "",
        f"`{command_line('benchmarks.night')}` on {machine_line(['torch', 'fbgemm-gpu-cpu'])}.",
        "",
        *(__doc__ or "").split("Run:")[0].strip().splitlines()[2:],
        "",
        f"New tables: {states}. {noisy} of their measurements were noisy, and are left out.",
        told,
        "",
        "## Error of the total compute cost (MAPE)",
        "",
        *error_lines(machine, night),
        "",
        "## Trainings",
        "",
        "| model | outcome | seconds | reason |",
        "|---|---|--:|---|",
    ]
    for found in night.outcomes:
        seconds = (found.finished_at - found.started_at).total_seconds()
        lines.append(f"| {found.model} | {found.ended.value} | {seconds:.0f} | {found.reason} |")
    lines += ["", "## Times", "", "| part | seconds |", "|---|--:|"]
    return [*lines, *(f"| {part} | {seconds:.1f} |" for part, seconds in night.seconds.items())]


@contextmanager
def one_machine() -> Iterator[tuple[Machine, httpx.Client]]:
    """A fresh database with the shipped measurements, a copy of the shipped versions, and a service of them."""
    with (
        tempfile.TemporaryDirectory(prefix="shardwright-night-") as name,
        EmbeddedPostgres(Path(name) / "var") as url,
        socket.create_server(("127.0.0.1", 0)) as free,
    ):
        folder, port = Path(name), str(free.getsockname()[1])
        free.close()
        shutil.copytree(SHIPPED, folder / "models" / HARDWARE)
        engine = build_engine(url)
        upgrade(engine)
        compute, communication = read_measurements(str(SHIPPED / "measurements" / "measurements.json.gz"))
        store = MeasurementRepository(engine)
        store.add_compute_many(compute)
        store.add_communication_many(communication)
        environment = {
            **os.environ,
            "SHARDWRIGHT_DATABASE_URL": url,
            "SHARDWRIGHT_PORT": port,
            "SHARDWRIGHT_MODEL_STORE": str(folder / "models"),
        }
        machine = Machine(folder, url, engine, environment)
        with (
            machine.running("serve", "--host", "127.0.0.1", SHARDWRIGHT_PLANNER_PROCESSES="1"),
            httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=120, trust_env=False) as client,
        ):
            yield machine, client
        engine.dispose()


def main() -> None:
    """Runs the benchmark; exit code 1 where nothing was promoted."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tables", type=int, default=96)
    parser.add_argument("--write", type=Path, help="file for the report")
    given = parser.parse_args()
    with one_machine() as (machine, client):
        try:
            night = a_night(machine, client, new_tables(given.tables))
        except BaseException:
            sys.stderr.write((machine.folder / "log").read_text(encoding="utf-8")[-20_000:])
            raise
        lines = report(machine, night)
    print("\n".join(lines))
    if given.write:
        given.write.write_text("\n".join(lines) + "\n", encoding="utf-8")
    if night.before["models"][COMPUTE] == night.after["models"][COMPUTE]:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
