"""The committed OpenAPI document and the example requests keep to what the service does."""

import json
import re
from pathlib import Path
from typing import Any

import httpx
import pytest
from openapi_schema_validator import OAS31Validator
from openapi_spec_validator import validate

from service.api.app import openapi_yaml
from service.api.conversion import posed_problem
from service.api.parsing import Limits, parse_plan
from service.api.problems import kinds as problem_kinds
from tests.document import openapi_document

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = sorted((ROOT / "examples").glob("*.json"))
LIMITS = Limits(default_time_limit_ms=2_000, max_time_limit_ms=60_000, max_tables=10_000)


def test_the_committed_document_is_what_the_code_makes() -> None:
    assert (ROOT / "openapi.yaml").read_text() == openapi_yaml(), "run: shardwright openapi > openapi.yaml"


def test_the_committed_document_is_what_the_service_serves(client: httpx.Client) -> None:
    assert openapi_document() == client.get("/openapi.json").json()


def test_every_reference_leads_somewhere_and_every_error_is_a_problem() -> None:
    document = openapi_document()
    schemas = document["components"]["schemas"]
    for reference in _references(document):
        assert reference.removeprefix("#/components/schemas/") in schemas
    for path, operations in document["paths"].items():
        for operation in operations.values():
            assert operation["operationId"].isalnum()
            for status, response in operation["responses"].items():
                if status >= "400" and path != "/readyz":
                    assert list(response["content"]) == ["application/problem+json"]


def test_the_document_is_valid_openapi() -> None:
    validate(openapi_document())


def test_every_operation_has_a_tag_that_is_described() -> None:
    document = openapi_document()
    used = [operation["tags"] for operations in document["paths"].values() for operation in operations.values()]
    assert all(len(tags) == 1 for tags in used)
    assert {tag for tags in used for tag in tags} == {tag["name"] for tag in document["tags"]}


def test_examples_of_bodies_are_valid_and_examples_of_problems_are_problems() -> None:
    document = openapi_document()
    schemas = {"components": document["components"]}
    kinds, bodies = set(), 0
    for operations in document["paths"].values():
        for operation in operations.values():
            media = [*operation.get("requestBody", {}).get("content", {}).values()]
            bodies += len(media)
            problems = [
                (int(status), content)
                for status, response in operation["responses"].items()
                for kind, content in response.get("content", {}).items()
                if kind == "application/problem+json"
            ]
            for content in [*media, *(content for _, content in problems)]:
                assert content["examples"], operation["operationId"]
                validator = OAS31Validator(content["schema"] | schemas)
                for example in content["examples"].values():
                    validator.validate(example["value"])
            for status, content in problems:
                assert {example["value"]["status"] for example in content["examples"].values()} == {status}
                kinds |= set(content["examples"])
    assert bodies == 6
    elsewhere = {"not_found", "method_not_allowed", "http_error", "internal_error", "client_closed_request"}
    assert kinds == set(problem_kinds()) - elsewhere


@pytest.mark.parametrize(
    ("answer", "names", "may_lack"),
    [
        ("PlanAnswer", {"max_cost_interval_ms", "lower_bound_ms"}, True),
        ("DeviceAnswer", {"cost_interval_ms"}, True),
        ("EstimateAnswer", {"max_cost_interval_ms"}, False),
        ("EstimatedDeviceAnswer", {"cost_interval_ms"}, False),
    ],
)
def test_what_came_later_may_be_missing_from_stored_plans_alone(answer: str, names: set[str], may_lack: bool) -> None:
    schema = openapi_document()["components"]["schemas"][answer]
    assert names & set(schema["required"]) == (set() if may_lack else names)
    for name in names:
        assert "anyOf" not in schema["properties"][name]
        assert ("stored" in schema["properties"][name]["description"]) is may_lack


def test_devices_of_estimates_and_of_plans_are_told_apart() -> None:
    schemas = openapi_document()["components"]["schemas"]
    assert schemas["EstimateAnswer"]["properties"]["devices"]["items"]["$ref"].endswith("/EstimatedDeviceAnswer")
    assert schemas["PlanAnswer"]["properties"]["devices"]["items"]["$ref"].endswith("/DeviceAnswer")


def _references(node: Any) -> list[str]:
    if isinstance(node, dict):
        own = [node["$ref"]] if "$ref" in node else []
        return own + [reference for value in node.values() for reference in _references(value)]
    return [reference for value in node for reference in _references(value)] if isinstance(node, list) else []


def test_the_workloads_that_the_readme_promises_are_there() -> None:
    named = {path.stem for path in EXAMPLES}
    assert named == {
        "mlperf_dlrm_dcnv2", "mlperf_dlrm_dcnv2_h100", "criteo_kaggle", "criteo_kaggle_constraints",
        "nvidia_synthetic_tiny",
    }  # fmt: skip
    readme = (ROOT / "examples" / "README.md").read_text()
    assert all(path.name in readme for path in EXAMPLES)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_every_example_is_a_valid_request(path: Path) -> None:
    problem = posed_problem(parse_plan(path.read_bytes(), LIMITS))
    assert problem.topology.hardware == ("h100" if path.stem.endswith("_h100") else "cpu-fbgemm")
    assert len(problem.tables) == len(json.loads(path.read_text())["tables"])


def test_the_constraints_of_an_example_are_all_that_sets_it_apart() -> None:
    plain, constrained = (
        json.loads((ROOT / "examples" / f"criteo_kaggle{suffix}.json").read_text()) for suffix in ("", "_constraints")
    )
    assert set(constrained.pop("constraints")) == {"pin", "colocate", "separate"}
    assert constrained == plain


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_examples_restate_the_facts_of_their_source(path: Path) -> None:
    source = ROOT.parent / "shared" / "data" / "tables" / re.sub("_(h100|constraints)", "", path.name)
    if not source.is_file():
        pytest.skip("../shared/data is not beside this checkout")
    facts = ("name", "num_embeddings", "embedding_dim", "pooling_factor")
    wanted, got = (json.loads(file.read_text())["tables"] for file in (source, path))
    assert [[table[fact] for fact in facts] for table in got] == [[table[fact] for fact in facts] for table in wanted]
