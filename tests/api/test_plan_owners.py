"""Plans are there for those who asked for them, and for admins; whoever has one may give it up."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import httpx
import pytest
from sqlalchemy import text

from service.domain.access import Action
from service.domain.callers import Scope
from service.storage.audit import AuditTrail
from tests.api.keyed import Keyed
from tests.api.support import GIB, kind, request
from tests.api.test_access import told

OBSERVATION = {
    "launch_id": None,
    "observations": [{"rank": 0, "steps": [0, 10], "forward_compute_ms": 1.0, "backward_compute_ms": 2.0}],
}


@pytest.fixture(scope="module")
def callers(keyed_service: Keyed) -> Iterator[dict[str, httpx.Client]]:
    """Two callers, the first with two keys, and an admin."""
    both = (Scope.PLAN, Scope.OBSERVE)
    with ExitStack() as stack:
        yield {
            "ann": stack.enter_context(keyed_service.client("ann", *both)),
            "ann again": stack.enter_context(keyed_service.client("ann", *both)),
            "bob": stack.enter_context(keyed_service.client("bob", *both)),
            "admin": stack.enter_context(keyed_service.client("root", Scope.ADMIN)),
        }


def planned(client: httpx.Client, **changes: Any) -> str:
    answer = client.post("/plan", json=request(**changes))
    assert (answer.status_code, answer.json()["saved"]) == (200, True)
    return str(answer.json()["plan_id"])


def asked_about(client: httpx.Client, plan_id: str, known: str) -> list[httpx.Response]:
    """Every way to a stored plan."""
    return [
        client.get(f"/plans/{plan_id}"),
        client.get(f"/plans/{plan_id}/diff/{known}"),
        client.get(f"/plans/{known}/diff/{plan_id}"),
        client.get(f"/plans/{plan_id}/observations"),
        client.post(f"/plans/{plan_id}/observations", json=OBSERVATION),
        client.post("/estimate", json={"plan_id": plan_id}),
        client.post("/plan", json=request(previous_plan_id=plan_id, seed=99)),
    ]


def stored(keyed_service: Keyed, plan_id: str) -> bool:
    with keyed_service.engine.connect() as connection:
        query = text("SELECT count(*) FROM plans WHERE plan_id = :id")
        return bool(connection.scalar(query, {"id": plan_id}))


def test_a_plan_of_another_is_as_one_that_is_not_there(callers: dict[str, httpx.Client]) -> None:
    ann, bob = callers["ann"], callers["bob"]
    plan_id, own = planned(ann, seed=1), planned(bob, seed=2)
    missing = "0" * 32
    for theirs, none in zip(asked_about(bob, plan_id, own), asked_about(bob, missing, own), strict=True):
        assert (theirs.status_code, kind(theirs)) == (404, "plan_not_found")
        assert told(theirs) == {**told(none), "detail": told(none)["detail"].replace(missing, plan_id)}
    assert bob.delete(f"/plans/{plan_id}").status_code == 404
    for name in ("ann", "ann again"):
        assert {answer.status_code for answer in asked_about(callers[name], plan_id, plan_id)} <= {200, 201}
    planned(callers["admin"], seed=2)
    assert {answer.status_code for answer in asked_about(callers["admin"], plan_id, own)} <= {200, 201}


def test_who_asks_the_same_question_has_the_same_plan(callers: dict[str, httpx.Client], keyed_service: Keyed) -> None:
    ann, bob = callers["ann"], callers["bob"]
    plan_id = planned(ann, seed=3)
    assert bob.get(f"/plans/{plan_id}").status_code == 404
    assert planned(bob, seed=3) == plan_id
    assert bob.get(f"/plans/{plan_id}").json() == ann.get(f"/plans/{plan_id}").json()

    assert ann.delete(f"/plans/{plan_id}").status_code == 204
    assert ann.get(f"/plans/{plan_id}").status_code == ann.delete(f"/plans/{plan_id}").status_code == 404
    assert bob.get(f"/plans/{plan_id}").status_code == 200
    assert bob.delete(f"/plans/{plan_id}").status_code == 204
    assert not stored(keyed_service, plan_id)
    assert planned(ann, seed=3) == plan_id


def test_two_who_ask_the_same_at_the_same_moment_both_have_the_plan(callers: dict[str, httpx.Client]) -> None:
    slow = {"devices": {"count": 2, "memory_bytes": GIB, "hardware": "slow"}, "time_limit_ms": 30_000}
    with ThreadPoolExecutor(2) as threads:
        (plan_id,) = set(threads.map(lambda name: planned(callers[name], **slow), ("ann", "bob")))
    assert [callers[name].get(f"/plans/{plan_id}").status_code for name in ("ann", "bob")] == [200, 200]


def test_what_another_has_observed_of_the_same_plan_is_theirs(callers: dict[str, httpx.Client]) -> None:
    seen = [{"rank": 0, "steps": [0, 10], "forward_compute_ms": ms, "backward_compute_ms": 2.0} for ms in (1.0, 7.0)]
    for name, own in zip(("ann", "bob"), seen, strict=True):
        path = f"/plans/{planned(callers[name], seed=8)}/observations"
        posted = callers[name].post(path, json={"launch_id": "night", "observations": [own]}).json()
        assert posted["stored"] == 1
        for answer in (posted, callers[name].get(path).json()):
            found = [each["costs"]["forward_compute"]["measured_ms"] for each in answer["observations"]]
            assert found == [own["forward_compute_ms"]]
    assert len(callers["ann again"].get(path).json()["observations"]) == 1
    assert len(callers["admin"].get(path).json()["observations"]) == 2


def test_an_admin_deletes_for_all_which_is_put_on_record(
    callers: dict[str, httpx.Client], keyed_service: Keyed
) -> None:
    plan_id = planned(callers["ann"], seed=4)
    planned(callers["bob"], seed=4)
    answer = callers["admin"].delete(f"/plans/{plan_id}", headers={"X-Request-ID": "why-me"})
    assert answer.status_code == 204
    assert callers["admin"].delete(f"/plans/{plan_id}").status_code == 404
    assert callers["bob"].get(f"/plans/{plan_id}").status_code == 404
    assert not stored(keyed_service, plan_id)
    failed, done = AuditTrail(keyed_service.engine).newest(2)
    assert (done.outcome, done.request_id, done.call.action) == ("done", "why-me", Action.DELETE_PLAN)
    assert done.call.subject == plan_id
    assert done.call.actor.startswith("root (key ")
    assert failed.outcome == "plan_not_found"


def test_what_was_observed_or_moved_from_stays_for_admins_alone(
    callers: dict[str, httpx.Client], keyed_service: Keyed
) -> None:
    ann, admin = callers["ann"], callers["admin"]
    observed, before = planned(ann, seed=5), planned(ann, seed=6)
    assert ann.post(f"/plans/{observed}/observations", json=OBSERVATION).status_code == 201
    after = planned(ann, seed=6, previous_plan_id=before)
    for plan_id in (observed, before):
        assert ann.delete(f"/plans/{plan_id}").status_code == 204
        assert ann.get(f"/plans/{plan_id}").status_code == 404
        assert admin.get(f"/plans/{plan_id}").status_code == 200
    assert ann.get(f"/plans/{after}").status_code == 200


def test_a_launch_is_one_callers_and_goes_with_its_plan(callers: dict[str, httpx.Client], keyed_service: Keyed) -> None:
    ann, bob = callers["ann"], callers["bob"]
    plan_id = planned(ann, seed=7, launch_id="night")
    assert planned(callers["ann again"], seed=7, launch_id="night") == plan_id
    planned(bob, seed=7, launch_id="night")

    def launches() -> list[tuple[str, str]]:
        with keyed_service.engine.connect() as connection:
            query = text("SELECT key, launch_id FROM launches WHERE plan_id = :id ORDER BY key")
            return [(row.key, row.launch_id) for row in connection.execute(query, {"id": plan_id})]

    assert launches() == [("ann", "night"), ("bob", "night")]
    assert ann.delete(f"/plans/{plan_id}").status_code == 204
    assert launches() == [("bob", "night")]
    assert bob.delete(f"/plans/{plan_id}").status_code == 204
    assert not stored(keyed_service, plan_id)
    assert planned(ann, seed=7, launch_id="night") == plan_id


@pytest.mark.parametrize("plan_id", ["x", "%00", "%ff", "a" * 32])
def test_a_plan_that_cannot_be_there_is_not_there_to_delete(callers: dict[str, httpx.Client], plan_id: str) -> None:
    for name in ("ann", "admin"):
        answer = callers[name].delete(f"/plans/{plan_id}")
        assert (answer.status_code, kind(answer)) == (404, "plan_not_found")
