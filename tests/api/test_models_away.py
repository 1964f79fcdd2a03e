"""What is answered while the model store is not there, and once it is."""

from pathlib import Path

from service.wiring import MODEL_STORE, running_app
from tests.api.small_store import priced, question, small_store
from tests.api.support import kind, listening, settings


def test_a_missing_model_store_is_no_fault_of_the_caller_and_once_it_is_there_it_serves(
    database_url: str, tmp_path: Path
) -> None:
    folder = tmp_path / "mount"
    calls = {"/plan": question(algorithm="dim_greedy"), "/estimate": priced()}
    with running_app(settings(database_url, model_store=str(folder)), MODEL_STORE) as app, listening(app) as client:
        for path, body in calls.items():
            response = client.post(path, json=body)
            assert (response.status_code, kind(response)) == (503, "models_unavailable")
            assert int(response.headers["retry-after"]) == response.json()["retry_after_s"] > 0
            assert "SHARDWRIGHT_MODEL_STORE" in response.json()["detail"]
            assert str(folder) not in response.text
        assert client.get("/readyz").json()["checks"]["models"].startswith("no measured cost models")

        small_store(str(folder))
        assert {path: client.post(path, json=body).status_code for path, body in calls.items()} == dict.fromkeys(
            calls, 200
        )
        response = client.post("/plan", json=question() | {"devices": question()["devices"] | {"hardware": "abacus"}})
        assert (response.status_code, kind(response)) == (422, "unknown_hardware")
