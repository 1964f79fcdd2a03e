"""``shardwright measure``: plans in files, carried out with the real operator and real ranks."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from service import local_planning
from service.cli import app
from service.cli.pretty import print_measured
from service.domain.ports import CostModels
from service.settings import Settings
from tests.api.support import FACTORY, request, table

PARTS = ("forward_compute", "backward_compute", "forward_wait", "forward_transfer", "backward_comm")
TABLES = [table("big", num_embeddings=100_000), table("small", pooling_factor=1.0), table("[wide]", embedding_dim=128)]
BODY = request(tables=TABLES)
SHARDS = [
    {"table": "big", "columns": [0, 64], "device": 0},
    {"table": "small", "columns": [0, 64], "device": 1},
    {"table": "[wide]", "columns": [0, 128], "device": 1},
]
CUT = [*SHARDS[:2], {"table": "[wide]", "columns": [0, 64], "device": 0}, {**SHARDS[2], "columns": [64, 128]}]


@pytest.fixture(scope="module", autouse=True)
def _fake_models() -> Iterator[None]:
    made = local_planning.local_models

    def models(settings: Settings, hardware: str) -> CostModels:
        return made(settings, hardware, FACTORY)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(local_planning, "local_models", models)
        yield


def measure(folder: Path, body: object, plans: dict[str, object], *options: str) -> Result:
    """Runs the command on files of these contents."""
    paths = [folder / name for name in ("request.json", *plans)]
    for path, content in zip(paths, (body, *plans.values()), strict=True):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(content))
    return CliRunner().invoke(app, ["measure", *map(str, paths), *options])


@pytest.fixture(scope="module")
def answer(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    plans: dict[str, object] = {
        "whole.json": {"shards": SHARDS, "max_cost_ms": 1.0},
        "a/cut.json": {"shards": CUT},
        "b/cut.json": {"shards": list(reversed(CUT))},
    }
    result = measure(tmp_path_factory.mktemp("plans"), BODY, plans, "--repeats", "2", "--memory-gib", "0.02")
    assert result.exit_code == 0, result.output
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def test_predicted_and_measured_costs_are_side_by_side(answer: dict[str, Any]) -> None:
    assert [plan["name"].split(os.sep)[-2:] for plan in answer["plans"]] == [
        ["whole"],
        ["a", "cut.json"],
        ["b", "cut.json"],
    ]
    for plan in answer["plans"]:
        assert [device["device"] for device in plan["devices"]] == [0, 1]
        for which in ("predicted", "measured"):
            costs = [device[f"{which}_ms"] for device in plan["devices"]]
            assert all(cost[part] > 0 for cost in costs for part in PARTS if part != "forward_wait")
            assert plan["max_cost_ms"][which] >= max(cost["total"] for cost in costs)
        for cost in (device["predicted_ms"] for device in plan["devices"]):
            assert cost["total"] == pytest.approx(sum(cost[part] for part in PARTS), abs=1e-3)
        low, high = plan["max_cost_ms"]["interval"]
        assert low < plan["max_cost_ms"]["predicted"] < high
        assert plan["max_cost_ms"]["predicted"] == max(d["predicted_ms"]["total"] for d in plan["devices"])
        assert plan["cost_spread"] >= 0
        assert plan["fits"]
    predicted = [plan["max_cost_ms"]["predicted"] for plan in answer["plans"]]
    assert predicted[0] != predicted[1] == predicted[2]


def test_the_answer_says_what_was_run_and_how_far_predictions_hold(answer: dict[str, Any]) -> None:
    assert answer["rows_capped"]["tables"] == {"big": 100_000}
    assert answer["rows_capped"]["cap"] < 0.02 * 2**30 / 256
    assert any("rows of big were cut" in said for said in answer["assumptions"])
    assert any("no reuse histogram" in said for said in answer["assumptions"])
    assert any("predicted for fake and measured on" in said for said in answer["assumptions"])
    (told,) = answer["plans"][0]["assumptions"]
    assert "says that it costs 1.000 ms" in told
    assert all(plan["assumptions"] == [] for plan in answer["plans"][1:])
    assert answer["oversubscribed"] == (answer["cores"] < 2)
    assert answer["repeats"] == 2
    assert answer["models"] == {"compute": "fake/compute/1", "communication": "fake/communication/1"}
    assert answer["environment"]["fbgemm_gpu"]
    summary = answer["summary"]
    assert [summary[what]["count"] for what in ("compute", "device_total", "plan")] == [6, 6, 3]
    kinds = ("pairs", "pairs_within_noise", "pairs_predicted_alike")
    assert sum(summary["order"][kind] for kind in kinds) == 3
    assert sorted(summary["order"]["by_measurement"]) == sorted(plan["name"] for plan in answer["plans"])
    assert summary["order"]["regret_ms"] >= 0


def test_pretty_prints_every_plan_and_the_summary(
    answer: dict[str, Any], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr("service.cli.output._on_terminal", lambda: True)
    print_measured(answer)
    printed = capsys.readouterr().out
    measured = answer["plans"][0]["max_cost_ms"]["measured"]
    words = " ".join(printed.split())
    for said in ("whole", "need not add up", f"{measured:.2f}", "device compute: MAPE", "within noise", "were cut"):
        assert said in words
    assert [line for line in printed.splitlines() if "…" in line] == []
    print_measured({**answer, "plans": answer["plans"][:1], "summary": {**answer["summary"], "order": None}})
    assert "pairs" not in capsys.readouterr().out


def test_every_fault_is_told_with_its_file_field_and_table(tmp_path: Path) -> None:
    bad = [
        {**SHARDS[0], "table": "nothing"},
        {**SHARDS[1], "device": 7},
        {**SHARDS[2], "columns": [0, 6]},
    ]
    plans: dict[str, object] = {
        "bad.json": {"shards": bad},
        "gap.json": {"shards": CUT[:3]},
        "typed.json": {"shards": [{**SHARDS[0], "device": "one"}]},
        "none.json": {"placement": []},
        "fine.json": {"shards": SHARDS},
    }
    result = measure(tmp_path, BODY, plans)
    assert (result.exit_code, result.stdout) == (1, "")
    problem = json.loads(result.stderr)
    found = [(Path(f["file"]).stem, f["pointer"], f["table"]) for f in problem["faults"]]
    assert found == [
        ("bad", "/shards/0/table", "nothing"),
        ("bad", "/shards/1/device", "small"),
        ("bad", "/shards/2/columns", "[wide]"),
        ("gap", "/shards", "[wide]"),
        ("typed", "/shards/0/device", "big"),
        ("none", "/shards", None),
    ]
    assert problem["fault_count"] == 6
    assert "bad.json: /shards/0/table" in problem["detail"]


@pytest.mark.parametrize(
    ("body", "plan", "kind", "file"),
    [
        (request(tables=[]), {"shards": SHARDS}, "invalid_request", "request.json"),
        (request(tables=[TABLES[0], TABLES[0]]), {"shards": SHARDS}, "invalid_request", "request.json"),
        (request(devices={"count": 2, "memory_bytes": 1, "hardware": "x"}), {}, "unknown_hardware", "request.json"),
        (BODY, {"shards": [{**SHARDS[0], "sharding_type": "row_wise"}]}, "unsupported_sharding", "plan.json"),
    ],
)
def test_a_refusal_is_a_problem_that_names_the_file(
    tmp_path: Path, body: object, plan: object, kind: str, file: str
) -> None:
    result = measure(tmp_path, body, {"plan.json": plan})
    assert (result.exit_code, result.stdout) == (1, "")
    problem = json.loads(result.stderr)
    assert problem["type"] == f"urn:shardwright:problem:{kind}"
    assert Path(problem["file"]).name == file


def test_what_the_operator_cannot_run_here_is_refused(tmp_path: Path) -> None:
    result = measure(tmp_path, {**BODY, "optimizer": "adam"}, {"plan.json": {"shards": SHARDS}}, "--memory-gib", "0.2")
    assert (result.exit_code, result.stdout) == (1, "")
    problem = json.loads(result.stderr[result.stderr.index("{") :])
    assert problem["type"] == "urn:shardwright:problem:measurement_refused"
    assert "device 0 (fp32, sum: big)" in problem["detail"]


@pytest.mark.parametrize(
    ("options", "said"),
    [(["--device", "tpu"], "tpu"), (["--repeats", "0"], "repeats"), (["--memory-gib", "0"], "memory-gib")],
)
def test_wrong_options_exit_with_2(tmp_path: Path, options: list[str], said: str) -> None:
    result = measure(tmp_path, BODY, {"plan.json": {"shards": SHARDS}}, *options)
    assert result.exit_code == 2
    assert said in result.stderr


def test_a_plan_given_twice_is_wrong_usage(tmp_path: Path) -> None:
    plan = tmp_path / "plan.json"
    result = CliRunner().invoke(app, ["measure", "request.json", str(plan), str(plan)])
    assert result.exit_code == 2
    assert "twice" in result.stderr


def test_a_plan_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "request.json").write_text(json.dumps(BODY))
    result = CliRunner().invoke(app, ["measure", str(tmp_path / "request.json"), str(tmp_path / "none.json")])
    assert result.exit_code == 1
    assert result.stderr.strip().endswith("No such file or directory")
