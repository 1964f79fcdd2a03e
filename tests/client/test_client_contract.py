"""The client's values are those of openapi.yaml, neither more nor fewer; its names are public on purpose."""

import dataclasses
import inspect
import os
import subprocess
import sys
import types
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest
import yaml

import shardwright_client as package
from shardwright_client import AsyncClient, Client, Plan, PlanRequest, Shard, ShardsEstimateRequest
from shardwright_client.json_values import RAW, encoded
from tests.client.asked import QUESTION, plan_answer
from tests.document import openapi_document

ROOT = Path(__file__).resolve().parents[2]
SCHEMAS = openapi_document()["components"]["schemas"]
ANSWERED = {
    "PlanAnswer": package.Plan,
    "EstimateAnswer": package.Estimate,
    "DeviceAnswer": package.Device,
    "MemoryAnswer": package.Memory,
    "CostAnswer": package.Costs,
    "CostIntervalAnswer": package.CostIntervals,
    "MoveAnswer": package.Move,
    "PlansAnswer": package.PlansPage,
    "ListedPlanAnswer": package.ListedPlan,
    "PostedObservationsAnswer": package.PostedObservations,
    "ObservationAnswer": package.StoredObservation,
    "ObservedCostsAnswer": package.ObservedCosts,
    "ComparedCostAnswer": package.ComparedCost,
    "PartSummaryAnswer": package.PartSummary,
    "ProfilesAnswer": package.Profiles,
    "ProfilesProgress": package.ProfilesProgress,
    "ProfileAnswer": package.Profile,
    "Measured": package.MeasuredTable,
    "WidthAnswer": package.MeasuredWidth,
}
ASKED = {
    "PlanRequest": package.PlanRequest,
    "ShardsEstimateRequest": package.ShardsEstimateRequest,
    "StoredEstimateRequest": package.StoredEstimateRequest,
    "TableBody": package.Table,
    "ReuseHistogramBody": package.ReuseHistogram,
    "DevicesBody": package.Devices,
    "ConstraintsBody": package.Constraints,
    "CostModelsBody": package.CostModels,
    "ModelsBody": package.Models,
    "ShardBody": package.Shard,
    "ObservationsRequest": package.ObservationsRequest,
    "ObservationBody": package.Observation,
    "ProfilesRequest": package.ProfilesRequest,
}
SHARED = {"EstimatedDeviceAnswer": package.Device, "ShardAnswer": package.Shard}
"""Answers that are read as what may have less."""

CHOICES = {
    "Optimizer": package.Optimizer,
    "Algorithm": package.Algorithm,
    "DataType": package.DataType,
    "PoolingModeName": package.PoolingMode,
    "ShardingTypeName": package.ShardingType,
}
PATHS = (
    "/plan",
    "/estimate",
    "/plans",
    "/plans/{plan_id}",
    "/plans/{plan_id}/observations",
    "/profiles",
    "/profiles/{request_id}",
)
KEYED = {
    "plan": "makePlan",
    "estimate": "estimatePlan",
    "observe": "postObservations",
    "profile": "requestProfiles",
}
"""Calls that take an idempotency key, and the contract's names of them."""

OTHERS = {"Problem", "FaultAnswer", "ShardingType", "StoredObservationsAnswer", "UnderWayAnswer"}
"""Problems have a test below; GET observations is no call of the client, which waits for a plan that is being made."""


def _fields(kind: Any) -> dict[str, bool]:
    """Whether each field must be there."""
    missing = dataclasses.MISSING
    return {
        each.name: each.default is missing and each.default_factory is missing
        for each in dataclasses.fields(kind)
        if each.name != RAW
    }


@pytest.mark.parametrize("name", [*ANSWERED, *ASKED])
def test_a_value_has_the_fields_of_its_schema(name: str) -> None:
    schema = SCHEMAS[name]
    kind: Any = (ANSWERED | ASKED)[name]
    required = schema.get("required", [])
    assert _fields(kind) == {field: field in required for field in schema["properties"]}


@pytest.mark.parametrize("name", SHARED)
def test_what_is_read_as_another_has_its_fields(name: str) -> None:
    assert set(SCHEMAS[name]["properties"]) == set(_fields(SHARED[name]))


@pytest.mark.parametrize("name", ASKED)
def test_defaults_are_those_of_the_contract(name: str) -> None:
    for field in dataclasses.fields(ASKED[name]):
        schema = SCHEMAS[name]["properties"][field.name]
        if field.default is not dataclasses.MISSING:
            assert encoded(field.default) == schema.get("default")
        elif field.default_factory is not dataclasses.MISSING:
            assert encoded(field.default_factory()) == schema.get("default", encoded(package.Constraints()))


@pytest.mark.parametrize("name", CHOICES)
def test_choices_are_those_of_the_contract(name: str) -> None:
    assert list(get_args(CHOICES[name])) == SCHEMAS[name]["enum"]


def test_problems_have_the_members_of_the_contract() -> None:
    assert set(_fields(package.Problem)) == set(SCHEMAS["Problem"]["properties"]) | {"extra"}
    assert set(_fields(package.Fault)) == set(SCHEMAS["FaultAnswer"]["properties"])


def test_every_schema_of_the_calls_is_covered() -> None:
    paths = openapi_document()["paths"]
    met: set[str] = set()
    waiting = [name for path in PATHS for name in _references(paths[path])]
    while waiting:
        name = waiting.pop()
        if name not in met:
            met.add(name)
            waiting += _references(SCHEMAS[name])
    assert met == {*ANSWERED, *ASKED, *SHARED, *CHOICES, *OTHERS}


def _references(node: Any) -> list[str]:
    if isinstance(node, dict):
        own = [node["$ref"].rsplit("/", 1)[-1]] if "$ref" in node else []
        return own + [name for value in node.values() for name in _references(value)]
    return [name for value in node for name in _references(value)] if isinstance(node, list) else []


def test_public_names_are_there_and_no_others() -> None:
    assert package.__all__ == sorted(set(package.__all__))
    assert set(package.__all__) == {
        name
        for name, value in vars(package).items()
        if not name.startswith("_") and not isinstance(value, types.ModuleType)
    }


def test_public_names_are_annotated() -> None:
    for name in package.__all__:
        value = getattr(package, name)
        for method, function in inspect.getmembers(value, inspect.isfunction) if inspect.isclass(value) else []:
            if not method.startswith("_"):
                hints = get_type_hints(function)
                parameters = set(inspect.signature(function).parameters) - {"self"}
                assert set(hints) == parameters | {"return"}, f"{name}.{method}"
                assert Any not in hints.values()


def test_both_clients_take_the_same_calls() -> None:
    def signatures(kind: type) -> dict[str, list[str]]:
        methods = inspect.getmembers(kind, inspect.isfunction)
        return {name: list(inspect.signature(each).parameters) for name, each in methods if not name.startswith("_")}

    assert signatures(Client) == signatures(AsyncClient)
    assert set(signatures(Client)) == {
        "plan", "estimate", "get_plan", "list_plans", "delete_plan", "observe", "profile", "get_profile",
        "wait_for_profile", "close",
    }  # fmt: skip
    parameters = [set(inspect.signature(kind).parameters) for kind in (Client, AsyncClient)]
    assert parameters[0] == parameters[1]


def test_calls_take_an_idempotency_key_where_the_contract_has_one() -> None:
    paths = openapi_document()["paths"]
    operations = [operation for path in PATHS for operation in paths[path].values()]
    assert set(KEYED.values()) == {
        operation["operationId"]
        for operation in operations
        if "idempotency-key" in {each["name"].lower() for each in operation.get("parameters", [])}
    }
    methods = inspect.getmembers(Client, inspect.isfunction)
    assert set(KEYED) == {name for name, each in methods if "idempotency_key" in inspect.signature(each).parameters}


def test_importing_it_loads_no_heavy_package() -> None:
    code = "import sys, shardwright_client, shardwright_client.command; print(*sys.modules)"
    environment = os.environ | {"PYTHONPATH": str(ROOT / "client")}
    told = subprocess.run(
        [sys.executable, "-P", "-c", code], env=environment, capture_output=True, check=True, text=True, timeout=60
    )
    loaded = {name.partition(".")[0] for name in told.stdout.split()}
    assert "shardwright_client" in loaded
    assert not loaded & {"service", "torch", "torchrec", "fbgemm_gpu", "numpy", "pydantic", "sqlalchemy", "fastapi"}


def test_it_says_that_it_is_typed() -> None:
    assert (Path(package.__file__).parent / "py.typed").is_file()


def test_requests_are_read_and_written_the_same() -> None:
    for example in sorted((ROOT / "examples").glob("*.json")):
        request = PlanRequest.from_json(yaml.safe_load(example.read_text()))
        assert PlanRequest.from_json(encoded(request)) == request


def test_a_plan_knows_what_is_on_a_device() -> None:
    plan = Plan.from_json(plan_answer().json())
    assert plan.shards_of(0) == (Shard("t0", (0, 64), 0, "table_wise"),)
    assert plan.shards_of(1) == ()
    assert (plan.shards[0].width, plan.max_cost_ms, plan.assumptions) == (64, 1.0, ("something",))
    assert plan.devices[0].memory_bytes.total == 6
    assert plan.max_cost_interval_ms is None


def test_another_placement_of_a_question_is_priced_under_its_terms() -> None:
    pinned = dataclasses.replace(QUESTION, models=package.Models(compute="fake/compute/1", dreamshard="fake/d/1"))
    estimate = ShardsEstimateRequest.of(pinned, [Shard("t0", (0, 64), 1)])
    assert (estimate.tables, estimate.constraints) == (pinned.tables, pinned.constraints)
    assert encoded(estimate.models) == {"compute": "fake/compute/1"}
    assert ShardsEstimateRequest.of(QUESTION, []).models is None
