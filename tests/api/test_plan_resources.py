"""Plans as resources: entity tags, and pages of those that there are."""

import httpx
import pytest

from service.domain.callers import Scope
from tests.api.keyed import Keyed
from tests.api.support import kind, request


def _made(client: httpx.Client, count: int, first_seed: int = 0) -> list[str]:
    """Ids of new plans, the newest first."""
    answers = [client.post("/plan", json=request(seed=first_seed + i)).raise_for_status().json() for i in range(count)]
    return [answer["plan_id"] for answer in reversed(answers)]


def test_who_has_a_plan_is_told_so_instead_of_being_sent_it_again(client: httpx.Client) -> None:
    (plan_id,) = _made(client, 1)
    first = client.get(f"/plans/{plan_id}")
    tag = first.headers["etag"]
    assert tag.startswith('"')
    assert first.headers["cache-control"] == "private, no-cache"
    assert client.get(f"/plans/{plan_id}").headers["etag"] == tag
    for named in (tag, f"W/{tag}", "*", f'"other", {tag}', f'W/"a,b",{tag} , "c"'):
        again = client.get(f"/plans/{plan_id}", headers={"if-none-match": named})
        assert (again.status_code, again.content) == (304, b"")
        assert (again.headers["etag"], again.headers["cache-control"]) == (tag, "private, no-cache")
    for named in ("", '"other"', tag.strip('"'), tag[:-1], "W/"):
        assert client.get(f"/plans/{plan_id}", headers={"if-none-match": named}).content == first.content


def test_a_plan_that_is_not_there_has_no_tag_that_could_match(client: httpx.Client) -> None:
    assert client.get(f"/plans/{'0' * 32}", headers={"if-none-match": "*"}).status_code == 404


def test_other_plans_have_other_tags(client: httpx.Client) -> None:
    tags = {client.get(f"/plans/{plan_id}").headers["etag"] for plan_id in _made(client, 3)}
    assert len(tags) == 3


def test_pages_have_every_plan_of_a_caller_once_the_newest_first(keyed_service: Keyed) -> None:
    with keyed_service.client("lister", Scope.PLAN) as lister:
        assert lister.get("/plans").json() == {"plans": [], "next_cursor": None}
        # Of nobody else: a plan that was stored before is as old as it was.
        made = _made(lister, 5, first_seed=71_000)
        seen, url, pages = [], "/plans?limit=2", 0
        while url:
            page = lister.get(url).raise_for_status()
            seen += [plan["plan_id"] for plan in page.json()["plans"]]
            url, pages = page.links.get("next", {}).get("url", ""), pages + 1
            assert bool(url) == (page.json()["next_cursor"] is not None)
        assert (seen, pages) == (made, 3)
        assert [plan["plan_id"] for plan in lister.get("/plans").json()["plans"]] == made
        newest = lister.get("/plans?limit=1").json()["plans"][0]
        plan = lister.get(f"/plans/{made[0]}").json()
        assert {name: newest[name] for name in ("algorithm", "status", "max_cost_ms")} == {
            name: plan[name] for name in ("algorithm", "status", "max_cost_ms")
        }


def test_plans_of_others_are_listed_for_admins_alone(keyed_service: Keyed) -> None:
    with keyed_service.client("owner", Scope.PLAN) as owner, keyed_service.client("other", Scope.PLAN) as other:
        (plan_id,) = _made(owner, 1, first_seed=74_000)
        assert other.get("/plans").json()["plans"] == []
        with keyed_service.client("boss", Scope.ADMIN) as boss:
            assert boss.get("/plans?limit=1").json()["plans"][0]["plan_id"] == plan_id
        owner.delete(f"/plans/{plan_id}").raise_for_status()
        assert owner.get("/plans").json()["plans"] == []


def test_a_page_that_was_begun_goes_on_where_plans_came_and_went(keyed_service: Keyed) -> None:
    with keyed_service.client("walker", Scope.PLAN) as walker:
        made = _made(walker, 4, first_seed=72_000)
        first = walker.get("/plans?limit=2").json()
        walker.delete(f"/plans/{made[1]}").raise_for_status()
        _made(walker, 1, first_seed=73_000)
        second = walker.get("/plans", params={"limit": 2, "cursor": first["next_cursor"]}).json()
        assert [plan["plan_id"] for plan in second["plans"]] == made[2:]


@pytest.mark.parametrize(
    "query", ["limit=0", "limit=1001", "cursor=1", "cursor=-", f"cursor=99999999999999999-{'0' * 32}"]
)
def test_pages_that_cannot_be_are_refused(client: httpx.Client, query: str) -> None:
    response = client.get(f"/plans?{query}")
    assert (response.status_code, kind(response)) == (422, "invalid_request")
    assert response.json()["faults"][0]["parameter"] == query.partition("=")[0]


def test_limits_name_their_setting(client: httpx.Client) -> None:
    large = client.post("/plan", content=b" " * 100_001, headers={"content-type": "application/json"})
    assert "SHARDWRIGHT_MAX_BODY_BYTES" in large.json()["detail"]
    many = client.post("/plan", json=request(tables=[{}] * 101))
    assert "SHARDWRIGHT_MAX_TABLES is 100" in many.json()["faults"][0]["message"]
    late = client.post("/plan", json=request(time_limit_ms=60_001))
    assert "60000 (SHARDWRIGHT_MAX_TIME_LIMIT_MS)" in late.json()["faults"][0]["message"]
