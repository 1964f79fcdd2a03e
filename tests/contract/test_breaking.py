"""Changes of the document that break clients are found, and only those."""

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import pytest

from tests.contract.breaking import breaking_changes
from tests.document import openapi_document

NOW = openapi_document()

BREAKING: list[tuple[Callable[[Any], object], str]] = [
    (lambda d: d["paths"].pop("/estimate"), "POST /estimate: is gone"),
    (lambda d: d["paths"]["/plans/{plan_id}"].pop("delete"), "DELETE /plans/{plan_id}: is gone"),
    (lambda d: _schema(d, "TableBody")["required"].append("data_type"), "/data_type: is required now"),
    (lambda d: _schema(d, "PlanRequest")["properties"].pop("seed"), "POST /plan body/seed: is refused now"),
    (lambda d: _of(d, "TableBody", "num_embeddings").update(maximum=10), "maximum is 10 now"),
    (lambda d: _of(d, "TableBody", "num_embeddings").update(type="string"), "must be string now"),
    (lambda d: _of(d, "TableBody", "embedding_dim").update(multipleOf=8), "multipleOf is 8 now"),
    (lambda d: _schema(d, "Optimizer")["enum"].remove("adam"), "some values are refused now"),
    (lambda d: _body(d, "/estimate")["oneOf"].pop(), "POST /estimate body: some forms are refused now"),
    (lambda d: _schema(d, "PlanAnswer")["properties"].pop("shards"), "POST /plan 200/shards: is gone"),
    (lambda d: _schema(d, "PlanAnswer")["required"].remove("shards"), "POST /plan 200/shards: may be missing now"),
    (lambda d: _of(d, "PlanAnswer", "max_cost_ms").update(type="string"), "max_cost_ms: may be string now"),
    (lambda d: d["paths"]["/profiles"]["post"]["responses"].pop("202"), "POST /profiles 202: is answered no more"),
    (lambda d: d["paths"]["/plans"]["get"]["parameters"].clear(), "GET /plans: the parameter limit is gone"),
    (lambda d: d["paths"]["/plans"]["get"]["parameters"][0].update(required=True), "needs the parameter limit now"),
]

HARMLESS: list[Callable[[Any], object]] = [
    lambda d: None,
    lambda d: d["paths"].update({"/new": d["paths"]["/healthz"]}),
    lambda d: _schema(d, "PlanRequest")["properties"].update(new={"type": "string"}),
    lambda d: _schema(d, "PlanAnswer")["properties"].update(new={"type": "string"}),
    lambda d: _schema(d, "TableBody")["required"].remove("pooling_factor"),
    lambda d: _of(d, "TableBody", "num_embeddings").update(maximum=2**50),
    lambda d: _schema(d, "Optimizer")["enum"].append("lamb"),
    lambda d: d["info"].update(version="9"),
]


def _schema(document: Any, name: str) -> Any:
    return document["components"]["schemas"][name]


def _body(document: Any, path: str) -> Any:
    return document["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]


def _of(document: Any, schema: str, name: str) -> Any:
    return _schema(document, schema)["properties"][name]


@pytest.mark.parametrize(("change", "said"), BREAKING)
def test_what_breaks_clients_is_found(change: Callable[[Any], object], said: str) -> None:
    new = deepcopy(NOW)
    change(new)
    assert any(said in found for found in breaking_changes(NOW, new))


@pytest.mark.parametrize("change", HARMLESS)
def test_what_clients_do_not_notice_is_not(change: Callable[[Any], object]) -> None:
    new = deepcopy(NOW)
    change(new)
    assert breaking_changes(NOW, new) == []
