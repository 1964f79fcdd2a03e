"""Who is let in, who is not, and what they are told; on a service that requires keys."""

import json
import re
import statistics
import time
from collections.abc import Collection
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import anyio
import httpx
import pytest
from sqlalchemy.engine import make_url

from service.api.access import Access, Headers, Refusal
from service.api.access_documents import OPEN
from service.api.rate_limits import RateLimits
from service.domain.access import Allowance, ApiKey, Keys, RateLimited, Unauthenticated, new_secret, secret_hash
from service.domain.callers import Scope
from service.domain.errors import ShardwrightError, StorageUnavailable
from service.settings import Settings
from tests.api.here import Clock, fresh_metrics
from tests.api.keyed import Keyed, hostile_headers, hostile_values, keyed, raw_answer
from tests.api.processes import wait_for
from tests.api.support import kind, request
from tests.conftest import Databases
from tests.document import openapi_document

PLAN, OBSERVE, ADMIN = Scope.PLAN, Scope.OBSERVE, Scope.ADMIN
UNKNOWN = "0" * 32


def operations() -> list[tuple[str, str, str]]:
    """Every operation of the document that needs a key: method, path, id."""
    paths = openapi_document()["paths"]
    found = [(path, method, told) for path, told_of in paths.items() for method, told in told_of.items()]
    return [(method.upper(), path, told["operationId"]) for path, method, told in found if path not in OPEN]


def filled(path: str) -> str:
    return path.replace("{version}", "1").replace("{hardware}", "fake").replace("{model}", "compute").replace(
        "{request_id}", UNKNOWN
    ).replace("{plan_id}", UNKNOWN).replace("{from_plan_id}", UNKNOWN).replace("{to_plan_id}", UNKNOWN)  # fmt: skip


def told(response: httpx.Response) -> dict[str, Any]:
    """A problem without what differs between two requests anyway."""
    return {name: value for name, value in response.json().items() if name != "instance"}


def test_every_operation_needs_a_key_before_anything_else_is_looked_at(keyed_service: Keyed) -> None:
    found = operations()
    assert len(found) >= 13
    with keyed_service.caller({}) as client:
        answers = [client.request(method, filled(path), content=b"x" * 200_000) for method, path, _ in found]
        assert {(answer.status_code, kind(answer)) for answer in answers} == {(401, "unauthenticated")}
        assert {answer.headers["www-authenticate"] for answer in answers} == {"Bearer"}
        for path in (*OPEN, "/openapi.json", "/docs"):
            assert client.get(path).status_code == 200


def test_every_operation_says_in_the_document_what_becomes_of_who_may_not() -> None:
    document = openapi_document()
    assert set(document["components"]["securitySchemes"]) == {"bearer", "apiKey"}
    for path, told_of in document["paths"].items():
        for operation in told_of.values():
            assert ("security" in operation) is (path not in OPEN)
            assert path in OPEN or {"401", "403", "429"} <= set(operation["responses"])


@pytest.mark.parametrize(
    ("scope", "may"),
    [(PLAN, {"plan"}), (OBSERVE, {"observe"}), (ADMIN, {"plan", "observe", "admin"})],
)
def test_a_key_opens_what_its_scope_is_for_and_403_names_the_one_that_is_missing(
    keyed_service: Keyed, scope: Scope, may: set[str]
) -> None:
    refused: dict[str, str] = {}
    with keyed_service.client(f"scoped-{scope}", scope) as client:
        for method, path, name in operations():
            answer = client.request(method, filled(path))
            assert answer.status_code != 401
            if answer.status_code == 403:
                assert kind(answer) == "insufficient_scope"
                refused[name] = answer.json()["scope"]
                assert answer.json()["scope"] in answer.json()["detail"]
                assert f'scope="{refused[name]}"' in answer.headers["www-authenticate"]
    admin = {"promoteModel": "admin", "rollBackModel": "admin"}
    observe = {"postObservations": "observe", "getObservations": "observe"}
    plan = {name: "plan" for _, _, name in operations() if name not in admin | observe}
    assert refused == {name: needed for name, needed in (admin | observe | plan).items() if needed not in may}


@pytest.mark.parametrize("form", ["Authorization: Bearer {}", "authorization: bEARER  {}", "X-API-Key: {}"])
def test_a_key_is_sent_in_one_of_two_headers_and_works_as_soon_as_it_is_made(keyed_service: Keyed, form: str) -> None:
    _, secret = keyed_service.key("forms", PLAN)
    name, _, value = form.format(secret).partition(": ")
    with keyed_service.caller({name: value}) as client:
        assert client.get("/models").status_code == 200


def test_all_who_have_no_valid_key_are_told_the_same(keyed_service: Keyed) -> None:
    (_, valid), (old, revoked), (_, expired) = (
        keyed_service.key("same", PLAN, valid_days=days) for days in (None, None, 1e-9)
    )
    keyed_service.keys.revoke(old.id, "a test")
    hostile = [*hostile_values(valid.encode()), revoked.encode(), expired.encode()]
    answers = [raw_answer(keyed_service.port, headers) for headers in [[], *hostile_headers(valid.encode(), hostile)]]
    assert set(answers) == {answers[0]}
    status, names, body = answers[0]
    assert (status, json.loads(body)["detail"]) == (401, str(Unauthenticated()))
    assert b"www-authenticate" in names


def test_a_revoked_key_is_refused_within_seconds_and_others_go_on(keyed_service: Keyed) -> None:
    made, secret = keyed_service.key("leaver", PLAN)
    with keyed_service.client("stayer", PLAN) as stayer, keyed_service.caller({"X-API-Key": secret}) as leaver:
        assert leaver.get("/models").status_code == 200
        keyed_service.keys.revoke(made.id, "a test")
        wait_for(lambda: leaver.get("/models").status_code == 401, 5)
        assert stayer.get("/models").status_code == 200


def test_a_use_is_noted_to_the_hour(keyed_service: Keyed) -> None:
    made, secret = keyed_service.key("noted", PLAN)
    with keyed_service.caller({"X-API-Key": secret}) as client:
        for _ in range(3):
            client.get("/models")
    wait_for(lambda: keyed_service.keys.all()[secret_hash(secret.encode())].last_used_at is not None)
    assert made.last_used_at is None


def test_over_its_limit_a_key_gets_429_and_when_to_return(keyed_service: Keyed) -> None:
    with keyed_service.client("hasty", PLAN, requests_per_minute=6, burst=2) as client:
        answers = [client.get("/models") for _ in range(3)]
        assert [answer.status_code for answer in answers] == [200, 200, 429]
        assert kind(answers[2]) == "rate_limited"
        assert 8 <= int(answers[2].headers["retry-after"]) <= 10
        metrics = client.get("/metrics").text
    assert re.search(r'^shardwright_calls_refused_total\{reason="rate"\} [1-9]', metrics, re.MULTILINE)


def test_what_a_key_is_not_for_counts_as_well(keyed_service: Keyed) -> None:
    with keyed_service.client("lost", OBSERVE, requests_per_minute=1, burst=2) as client:
        answers = [client.get("/models") for _ in range(3)]
    assert [kind(answer) for answer in answers] == ["insufficient_scope"] * 2 + ["rate_limited"]


def test_a_limit_is_a_pace_and_a_burst() -> None:
    clock = Clock()
    limits, allowance = RateLimits(clock), Allowance(requests_per_minute=60, burst=5)

    def taken(key: str = "a") -> int:
        for count in range(100):
            try:
                limits.take(key, allowance)
            except RateLimited as error:
                clock.now += error.data["retry_after_s"] - 1e-3
                with pytest.raises(RateLimited):
                    limits.take(key, allowance)
                clock.now += 1e-3
                return count
        return 100

    assert taken() == 5
    assert [taken() for _ in range(20)] == [1] * 20
    clock.now += 3
    assert taken() == 4
    assert taken("b") == 5
    clock.now += 1e6
    assert taken() == 5


def test_answers_have_the_headers_that_keep_browsers_from_guessing(keyed_service: Keyed, client: httpx.Client) -> None:
    plan = client.post("/plan", json=request())
    stored = client.get(f"/plans/{plan.json()['plan_id']}")
    with keyed_service.caller({}) as stranger:
        others = [client.get("/none"), client.get("/healthz"), stranger.get("/models"), client.post("/plan"), plan]
        page = stranger.get("/docs").headers["content-security-policy"]
    for answer in [*others, stored]:
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["x-frame-options"] == "DENY"
        assert answer.headers["referrer-policy"] == "no-referrer"
        assert answer.headers["content-security-policy"] == "default-src 'none'; frame-ancestors 'none'"
    assert {answer.headers["cache-control"] for answer in others} == {"no-store"}
    assert stored.headers["cache-control"] == "private, no-cache"
    assert "connect-src 'self'" in page


@pytest.mark.parametrize(
    ("host", "required"),
    [("127.0.0.1", False), ("::1", False), ("localhost", False), ("0.0.0.0", True), ("db.lan", True)],
)
def test_keys_are_required_by_default_where_others_than_this_machine_can_ask(host: str, required: bool) -> None:
    assert Settings(host=host).require_keys is required
    assert Settings(host=host, require_keys=not required).require_keys is not required


@pytest.mark.parametrize(
    ("header", "value"),
    [
        *((name, "203.0.113.7") for name in ("Forwarded", "X-Forwarded-For", "X-Forwarded-Port", "X-Real-IP", "Via")),
        *(("Origin", f"http://{host}") for host in ("evil.example:8000", "127.0.0.1.evil.example", "localhost.evil")),
        ("Origin", "null"),
    ],
)
def test_where_keys_are_not_required_who_may_be_anyone_is_no_admin(
    client: httpx.Client, header: str, value: str
) -> None:
    through = {header: value}
    for path in ("/models/fake/compute/1/promote", "/models/fake/compute/rollback"):
        answer = client.post(path, json={}, headers=through)
        assert (answer.status_code, kind(answer)) == (403, "admin_through_proxy")
        assert "SHARDWRIGHT_REQUIRE_KEYS" in answer.json()["detail"]
    assert client.post("/plan", json=request(), headers=through).status_code == 200
    for local in (
        {},
        {"Origin": "http://localhost:8000"},
        {"Origin": "http://127.0.0.1"},
        {"Origin": "http://[::1]:80"},
    ):
        assert client.post("/models/fake/compute/1/promote", json={}, headers=local).status_code == 200


def test_a_wrong_key_is_refused_also_where_none_is_required(client: httpx.Client) -> None:
    assert client.get("/models", headers={"X-API-Key": new_secret()}).status_code == 401


class Kept:
    """Keys in memory, or in a database that is away."""

    def __init__(self, **keys: ApiKey) -> None:
        self.keys: dict[str, ApiKey] = {secret_hash(secret.encode()): key for secret, key in keys.items()}
        self.asked = 0
        self.away = False
        self.noted: list[set[str]] = []

    def all(self) -> Keys:
        self.asked += 1
        if self.away:
            raise StorageUnavailable("gone", retry_after_s=2)
        return dict(self.keys)

    def used(self, ids: Collection[str]) -> None:
        if self.away:
            raise StorageUnavailable("gone", retry_after_s=2)
        self.noted.append(set(ids))


KEY = ApiKey("1", "n", frozenset({PLAN}), datetime.now(UTC), None, None, None, None, None, None)


def access(store: Kept, clock: Clock) -> Access:
    made = Access(store, fresh_metrics(), required=True, default=Allowance(10**6, 10**6), clock=clock)
    made.follow(store.all())
    return made


def let_in(made: Access, *headers: tuple[bytes, bytes], scope: Scope = PLAN) -> bool:
    async def asked(given: Headers) -> bool:
        try:
            await made.admitted(given, scope)
        except Unauthenticated:
            return False
        return True

    return anyio.run(asked, headers)


def sent(secret: str) -> tuple[bytes, bytes]:
    return b"x-api-key", secret.encode()


def test_with_the_database_away_known_keys_get_plans(databases: Databases, database_url: str) -> None:
    name = make_url(database_url).database
    with keyed(database_url) as service, service.client("ann", PLAN) as ann, service.caller({}) as stranger:
        plan_id = ann.post("/plan", json=request()).json()["plan_id"]
        databases.execute(f"ALTER DATABASE {name} ALLOW_CONNECTIONS false")
        databases.execute(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{name}'")
        assert ann.post("/plan", json=request(seed=1)).json()["saved"] is False
        assert ann.get(f"/plans/{plan_id}").status_code == 503
        assert ann.delete(f"/plans/{plan_id}").status_code == 503
        assert stranger.get("/models", headers={"X-API-Key": new_secret()}).status_code == 401
        databases.execute(f"ALTER DATABASE {name} ALLOW_CONNECTIONS true")
        wait_for(lambda: ann.delete(f"/plans/{plan_id}").status_code == 204)
        with service.client("new", PLAN) as new:
            wait_for(lambda: new.get("/models").status_code == 200)


def test_with_the_database_away_the_last_copy_serves() -> None:
    store, clock = Kept(k1=KEY), Clock()
    made = access(store, clock)
    store.away = True
    store.keys.clear()
    for _ in range(3):
        assert let_in(made, sent("k1"))
        assert not let_in(made, sent("k2"))
    # Not asked again for each wrong key.
    assert store.asked == 2
    store.away = False
    store.keys = Kept(k2=replace(KEY, id="2")).keys
    clock.now += 3
    assert let_in(made, sent("k2"))
    assert not let_in(made, sent("k1"))
    assert store.noted == [{"1"}]


def test_every_reason_for_which_calls_are_not_let_in_is_counted_from_the_start() -> None:
    metrics = fresh_metrics()
    Access(Kept(), metrics, required=True, default=Allowance(1, 1))
    shown = re.findall(
        r'^shardwright_calls_refused_total\{reason="(\w+)"\} 0\.0$', metrics.exposition().decode(), re.MULTILINE
    )
    assert set(shown) == set(Refusal)


def test_a_use_that_cannot_be_noted_is_noted_later() -> None:
    store = Kept(k1=KEY)
    made = access(store, Clock())
    assert let_in(made, sent("k1"))
    known = store.all()
    store.away = True
    with pytest.raises(StorageUnavailable):
        made.follow(known)
    store.away = False
    for _ in range(2):
        made.follow(known)
    assert store.noted == [{"1"}]


def test_wrong_keys_ask_the_database_a_few_times_a_second_at_most() -> None:
    store, clock = Kept(k1=KEY), Clock()
    made = access(store, clock)
    for _ in range(1_000):
        assert not let_in(made, sent("wrong"))
        clock.now += 0.01
    assert store.asked <= 1 + 10 / 0.2 + 1


def test_of_many_who_come_with_a_new_key_at_once_all_are_let_in_by_one_look() -> None:
    store, clock = Kept(k1=KEY), Clock()
    made = access(store, clock)
    store.keys = Kept(k2=KEY).keys

    async def all_at_once() -> int:
        admitted = []

        async def one() -> None:
            admitted.append(await made.admitted([sent("k2")], PLAN))

        async with anyio.create_task_group() as group:
            for _ in range(50):
                group.start_soon(one)
        return len(admitted)

    assert anyio.run(all_at_once) == 50
    assert store.asked == 2


def test_a_key_expires_by_a_clock_that_nobody_sets() -> None:
    store, clock = Kept(k1=replace(KEY, expires_in_s=10.0)), Clock()
    made = access(store, clock)
    clock.now += 9.9
    assert let_in(made, sent("k1"))
    clock.now += 0.2
    assert not let_in(made, sent("k1"))


def test_no_key_is_locked_out_but_a_valid_one() -> None:
    clock = Clock()
    for store, locked_out in [(Kept(), True), (Kept(k=KEY), False), (Kept(k=replace(KEY, expires_in_s=-1.0)), True)]:
        assert access(store, clock).locked_out is locked_out
    assert not Access(Kept(), fresh_metrics(), required=False, default=Allowance(1, 1)).locked_out


def test_what_a_wrong_key_shares_with_a_right_one_does_not_show_in_its_time() -> None:
    """2,000 wrong keys that share 0 or all but one of their characters with a real one (BUG-09)."""
    secret, clock = new_secret(), Clock()
    made = access(Kept(**{secret: KEY}), clock)
    pairs = [(new_secret(), secret[:-1] + "~") for _ in range(1_000)]
    spent: tuple[list[int], list[int]] = [], []

    async def measured() -> None:
        for pair in pairs:
            for wrong, times in zip(pair, spent, strict=True):
                began = time.perf_counter_ns()
                with pytest.raises(ShardwrightError):
                    await made.admitted([sent(wrong)], PLAN)
                times.append(time.perf_counter_ns() - began)

    anyio.run(measured)
    assert 0.9 < statistics.median(spent[0]) / statistics.median(spent[1]) < 1.1
