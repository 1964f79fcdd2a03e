"""/models: what there is and serves, promotion and rollback over HTTP, and pinned versions."""

from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import URL, Engine, make_url

from service.domain.callers import ANONYMOUS
from service.domain.trainings import Ended, Outcome
from service.domain.versions import Version
from service.registry.store import ModelStore
from service.settings import Settings
from service.storage.trainings import TrainingRepository
from service.wiring import running_app
from tests.api.processes import wait_for
from tests.api.small_store import HARDWARE, priced, publish, question, small_store
from tests.api.support import kind, listening, pointers, settings
from tests.conftest import Databases

PATH = f"/models/{HARDWARE}/compute"
NAMES = [f"{HARDWARE}/compute/{number}" for number in (1, 2, 3)]


@pytest.fixture
def store(tmp_path: Path) -> ModelStore:
    return small_store(str(tmp_path / "models"))


@pytest.fixture
def configured(store: ModelStore, tmp_path: Path, database_url: str) -> Settings:
    return settings(database_url, model_store=str(tmp_path / "models"))


@pytest.fixture
def client(configured: Settings) -> Iterator[httpx.Client]:
    with running_app(configured) as app, listening(app) as served:
        yield served


@pytest.fixture(scope="module")
def untouched(
    databases: Databases, migrated_template: URL, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[httpx.Client]:
    """A client of one service for all tests that leave it as it was."""
    url, models = databases.create(migrated_template), str(tmp_path_factory.mktemp("untouched") / "models")
    small_store(models)
    configured = settings(url.render_as_string(hide_password=False), model_store=models)
    with running_app(configured) as app, listening(app) as served:
        yield served
    databases.drop(url)


def _serves(client: httpx.Client, name: str) -> None:
    wait_for(lambda: client.get(PATH).json()["serves"] == name, 5)


def _decide(client: httpx.Client, path: str, **body: Any) -> dict[str, Any]:
    response = client.post(path, json=body)
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


def test_a_version_is_promoted_and_rolled_back_and_plans_follow(client: httpx.Client, store: ModelStore) -> None:
    first = client.post("/plan", json=question()).json()
    assert first["models"]["compute"] == NAMES[0]
    publish(store, 1)
    assert client.post("/plan", json=question()).json() == first

    promoted = _decide(client, f"{PATH}/2/promote", reason="it is better")
    assert (promoted["version"], promoted["promoted_by"], promoted["reason"]) == (NAMES[1], ANONYMOUS, "it is better")
    assert (promoted["rollback"], promoted["comparison"]) == (False, None)
    _serves(client, NAMES[1])
    second = client.post("/plan", json=question()).json()
    assert second["models"]["compute"] == NAMES[1]
    assert second["plan_id"] != first["plan_id"]
    assert second["max_cost_ms"] != first["max_cost_ms"]
    assert client.post("/estimate", json={"plan_id": first["plan_id"]}).json()["models"] == second["models"]

    back = _decide(client, f"{PATH}/rollback")
    assert (back["version"], back["rollback"], back["reason"]) == (NAMES[0], True, "")
    _serves(client, NAMES[0])
    assert client.post("/plan", json=question()).json() == first

    detail = client.get(PATH).json()
    assert [p["version"] for p in detail["promotions"]] == [NAMES[0], NAMES[1], NAMES[0]]
    assert detail["promotions"][-1]["promoted_by"] == "the service"
    assert [(v["version"], v["serves"]) for v in detail["versions"]] == [(NAMES[0], True), (NAMES[1], False)]


def test_all_models_are_listed_with_what_serves(untouched: httpx.Client) -> None:
    models = {(m["hardware"], m["model"]): m["serves"] for m in untouched.get("/models").json()["models"]}
    assert models[HARDWARE, "compute"] == NAMES[0]
    assert models["h100", "compute"] == "h100/compute/analytic-2"


def test_the_models_that_serve_are_listed_while_the_database_is_away(
    databases: Databases, database_url: str, client: httpx.Client
) -> None:
    name = make_url(database_url).database
    databases.execute(f"ALTER DATABASE {name} ALLOW_CONNECTIONS false")
    databases.execute(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{name}'")
    assert client.get("/models").status_code == 200
    assert client.post("/estimate", json=priced()).json()["models"]["compute"] == NAMES[0]
    for response in (
        client.get(PATH),
        client.post(f"{PATH}/1/promote", json={}),
        client.post(f"{PATH}/rollback", json={}),
    ):
        assert (response.status_code, kind(response)) == (503, "storage_unavailable")
    databases.execute(f"ALTER DATABASE {name} ALLOW_CONNECTIONS true")
    wait_for(lambda: client.get(PATH).status_code == 200)


@pytest.mark.parametrize("number", ["2", "0", "x", "analytic", "%2e%2e"])
def test_versions_that_are_not_there_are_404(untouched: httpx.Client, number: str) -> None:
    response = untouched.post(f"{PATH}/{number}/promote", json={})
    assert (response.status_code, kind(response)) == (404, "unknown_model_version")
    assert response.json()["known"] == [NAMES[0]]


@pytest.mark.parametrize(
    "path",
    ["/models/cpu-y/compute", f"/models/{HARDWARE}/autoshard", "/models/%2e%2e/compute", f"/models/{HARDWARE}/%00"],
)
def test_models_that_are_not_there_are_404(untouched: httpx.Client, path: str) -> None:
    decided = [untouched.post(f"{path}/{decision}", json={}) for decision in ("1/promote", "rollback")]
    for response in (untouched.get(path), *decided):
        assert (response.status_code, kind(response)) == (404, "unknown_model_version")
        assert f"{HARDWARE}/compute" in response.json()["known"]


def test_a_rollback_without_a_version_before_is_409(untouched: httpx.Client) -> None:
    response = untouched.post(f"{PATH}/rollback", json={})
    assert (response.status_code, kind(response)) == (409, "nothing_to_roll_back_to")


def test_a_damaged_version_is_not_promoted_and_no_path_is_told(
    client: httpx.Client, store: ModelStore, tmp_path: Path
) -> None:
    publish(store, 1)
    (tmp_path / "models" / HARDWARE / "compute" / "2" / "weights.safetensors").unlink()
    response = client.post(f"{PATH}/2/promote", json={})
    assert (response.status_code, kind(response)) == (503, "damaged_artifact")
    assert str(tmp_path) not in response.text
    assert client.get(PATH).json()["serves"] == NAMES[0]


def test_what_serves_is_kept_for_a_service_that_starts_beside_newer_versions(
    configured: Settings, store: ModelStore
) -> None:
    with running_app(configured) as app, listening(app) as client:
        _serves(client, NAMES[0])
    publish(store, 1)
    with running_app(configured) as app, listening(app) as client:
        assert client.post("/plan", json=question()).json()["models"]["compute"] == NAMES[0]
        assert client.get(PATH).json()["serves"] == NAMES[0]
        # It never served anything else.
        assert "shardwright_promotions_followed_total{" not in client.get("/metrics").text


def test_a_body_is_needed_so_that_no_foreign_page_can_decide(untouched: httpx.Client) -> None:
    assert kind(untouched.post(f"{PATH}/1/promote")) == "unsupported_media_type"
    assert kind(untouched.post(f"{PATH}/rollback", content="{}", headers={"content-type": "text/plain"})) == (
        "unsupported_media_type"
    )
    assert pointers(untouched.post(f"{PATH}/1/promote", json={"why": 1, "reason": 2})) == {"/why", "/reason"}


def test_a_request_may_pin_versions_and_is_another_question_then(client: httpx.Client, store: ModelStore) -> None:
    plain = client.post("/plan", json=question()).json()
    assert client.post("/plan", json=question(models=None)).json() == plain
    assert client.post("/plan", json=question(models={})).json() == plain
    assert client.post("/plan", json=question(models={"compute": None})).json() == plain
    publish(store, 1)
    pinned = client.post("/plan", json=question(models={"compute": NAMES[1]})).json()
    assert pinned["models"] == {**plain["models"], "compute": NAMES[1]}
    assert pinned["plan_id"] != plain["plan_id"]
    assert pinned["max_cost_ms"] != plain["max_cost_ms"]
    assert client.post("/plan", json=question(models={"compute": NAMES[1]})).json() == pinned
    # The models of today, whatever the plan was made with; or those that are asked for.
    again = client.post("/estimate", json={"plan_id": pinned["plan_id"]}).json()
    assert again["models"] == plain["models"]
    same = client.post("/estimate", json={"plan_id": pinned["plan_id"], "models": {"compute": NAMES[1]}}).json()
    assert (same["models"], same["max_cost_ms"]) == (pinned["models"], pinned["max_cost_ms"])
    given = client.post("/estimate", json=priced(models={"compute": NAMES[1]})).json()
    assert given["models"]["compute"] == NAMES[1]
    assert given["max_cost_ms"] != client.post("/estimate", json=priced()).json()["max_cost_ms"]


@pytest.mark.parametrize(
    ("models", "pointer"),
    [
        ({"compute": f"{HARDWARE}/compute/9"}, "/models/compute"),
        ({"compute": "cpu-y/compute/1"}, "/models/compute"),
        ({"compute": f"{HARDWARE}/communication/1"}, "/models/compute"),
        ({"compute": "../../etc/passwd"}, "/models/compute"),
        ({"compute": f"{HARDWARE}/compute/1\n"}, "/models/compute"),
        ({"computes": NAMES[0]}, "/models/computes"),
        ({"dreamshard": f"{HARDWARE}/dreamshard/1"}, "/models/dreamshard"),
        ([], "/models"),
    ],
)
def test_a_pinned_version_that_cannot_be_is_422_at_its_field(
    untouched: httpx.Client, models: Any, pointer: str
) -> None:
    assert pointers(untouched.post("/plan", json=question(models=models))) == {pointer}
    assert pointers(untouched.post("/estimate", json=priced(models=models))) == {pointer}


def test_a_pinned_version_that_is_damaged_is_503(client: httpx.Client, store: ModelStore, tmp_path: Path) -> None:
    version = publish(store, 1)
    assert version == Version(HARDWARE, "compute", 2)
    (tmp_path / "models" / HARDWARE / "compute" / "2" / "weights.safetensors").write_bytes(b"")
    response = client.post("/plan", json=question(models={"compute": NAMES[1]}))
    assert (response.status_code, kind(response)) == (503, "damaged_artifact")
    told = response.json()
    assert (told["pointer"], told["version"]) == ("/models/compute", NAMES[1])
    assert told["detail"].startswith(f"{NAMES[1]} is incomplete or altered")
    assert told["remedies"] == [
        "leave compute out of models: the version that serves answers then",
        f"pin another one: there are {NAMES[0]}",
    ]
    assert client.post("/plan", json=question()).status_code == 200


def test_a_pinned_name_that_is_none_is_told_what_one_looks_like(untouched: httpx.Client) -> None:
    response = untouched.post("/plan", json=question(models={"compute": f"{HARDWARE}/compute/analytic"}))
    assert pointers(response) == {"/models/compute"}
    for said in ("<hardware>/<model>/<number>", "h100/compute/analytic-2"):
        assert said in response.json()["detail"]


def test_a_decision_without_a_body_is_told_that_an_empty_object_will_do(untouched: httpx.Client) -> None:
    bare = untouched.post(f"{PATH}/1/promote")
    assert (bare.status_code, kind(bare)) == (415, "unsupported_media_type")
    empty = untouched.post(f"{PATH}/1/promote", headers={"Content-Type": "application/json"})
    assert pointers(empty) == {""}
    for response in (bare, empty):
        assert "{}" in response.json()["detail"]


def test_what_serves_is_in_the_metrics_and_its_predecessor_is_not(client: httpx.Client, store: ModelStore) -> None:
    publish(store, 1)
    _decide(client, f"{PATH}/2/promote")
    _serves(client, NAMES[1])
    shown = [line for line in client.get("/metrics").text.splitlines() if line.startswith("shardwright_model_info{")]
    mine = [line for line in shown if f'hardware="{HARDWARE}",kind="compute"' in line]
    assert mine == [f'shardwright_model_info{{hardware="{HARDWARE}",kind="compute",version="{NAMES[1]}"}} 1.0']


def test_trainings_are_told_beside_the_versions_and_in_metrics(client: httpx.Client, engine: Engine) -> None:
    trainings = TrainingRepository(engine)
    assert client.get(PATH).json()["trainings"] == []
    began = trainings.now()
    refused = Outcome(HARDWARE, "compute", Ended.REFUSED, "no better", began, began, None, NAMES[0], {"margin": 0.01})
    trainings.add(replace(refused, ended=Ended.PROMOTED, trained=NAMES[1], comparison=None))
    trainings.add(refused)
    told, first = client.get(PATH).json()["trainings"]
    assert (told["outcome"], told["reason"], told["trained"]) == ("refused", "no better", None)
    assert (told["serving"], told["comparison"]) == (NAMES[0], {"margin": 0.01})
    assert datetime.fromisoformat(told["started_at"]) == began
    assert (first["outcome"], first["trained"]) == ("promoted", NAMES[1])
    assert client.get(f"/models/{HARDWARE}/communication").json()["trainings"] == []
    lines = dict(line.rsplit(" ", 1) for line in client.get("/metrics").text.splitlines() if line[0] != "#")
    labels = f'hardware="{HARDWARE}",kind="compute"'
    last = [line for line in lines if line.startswith("shardwright_training_last")]
    assert last == [f'shardwright_training_last{{{labels},outcome="refused"}}']
    assert 0 <= float(lines[f"shardwright_training_age_seconds{{{labels}}}"]) < 30
    assert lines["shardwright_trainings_readable"] == "1.0"


def test_metrics_are_read_while_the_database_is_away(
    databases: Databases, database_url: str, client: httpx.Client
) -> None:
    name = make_url(database_url).database
    databases.execute(f"ALTER DATABASE {name} ALLOW_CONNECTIONS false")
    databases.execute(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{name}'")
    told = client.get("/metrics")
    databases.execute(f"ALTER DATABASE {name} ALLOW_CONNECTIONS true")
    assert told.status_code == 200
    assert "shardwright_trainings_readable 0.0" in told.text
    assert "shardwright_model_info" in told.text
