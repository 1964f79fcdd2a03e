"""Examples and kinds of problems for the OpenAPI document."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from service.api.problems import MEDIA_TYPE, TYPE_PREFIX, kinds, status_of, title_of

_TABLE: Final = {"name": "cat_0", "num_embeddings": 4_000_000, "embedding_dim": 64, "pooling_factor": 3.0}
_DEVICES: Final = {"count": 2, "memory_bytes": 8 * 2**30, "hardware": "cpu-fbgemm"}
_QUESTION: Final = {
    "tables": [_TABLE],
    "devices": _DEVICES,
    "global_batch_size": 4_096,
    "optimizer": "rowwise_adagrad",
}
_PLAN_ID: Final = "0f343b0931126a20f133d67c2b018a3b"
_TIMES: Final = {"rank": 0, "steps": [100, 200], "forward_compute_ms": 1.9, "backward_compute_ms": 3.4}

_BODIES: Final[Mapping[str, Mapping[str, Any]]] = {
    "makePlan": {
        "plan": _QUESTION | {"time_limit_ms": 2_000},
        "launch": _QUESTION | {"launch_id": "train-2026-11-30"},
        "rules": _QUESTION | {"constraints": {"sharding_types": ["table_wise"], "pin": {"cat_0": [1]}}},
    },
    "estimatePlan": {
        "shards": _QUESTION
        | {"shards": [{"table": "cat_0", "columns": [32 * d, 32 * d + 32], "device": d} for d in range(2)]},
        "stored": {"plan_id": _PLAN_ID},
    },
    "requestProfiles": {
        "tables": {
            "tables": [_TABLE],
            "hardware": "cpu-fbgemm",
            "global_batch_size": 4_096,
            "optimizer": "rowwise_adagrad",
        }
    },
    "postObservations": {
        "measured": {
            "launch_id": "train-2026-11-30",
            "observations": [_TIMES],
            "environment": {"device": "AMD EPYC, 1 thread", "bench": "1"},
        }
    },
    "promoteModel": {"reason": {"reason": "better on the held-out tables"}},
    "rollBackModel": {"reason": {"reason": "launches got slower"}},
}
"""Bodies by operation and name."""

_DETAILS: Final[Mapping[str, str]] = {
    "invalid_request": "/tables/0/embedding_dim: must be a multiple of 4",
    "unsupported_sharding": "row_wise is not modelled: table_wise and column_wise are",
    "unsupported_algorithm": "no policy of dreamshard was trained for cpu-fbgemm",
    "unknown_hardware": "no cost models for 'tpu': known are cpu-fbgemm, h100",
    "infeasible": "the tables need more memory than all devices have",
    "no_plan_in_time": "no plan was found within 2000 ms",
    "plan_not_found": f"no plan is stored under '{_PLAN_ID}'",
    "plan_not_made": "the process that made the plan ended before it was there: ask POST /plan again",
    "cancelled": "nobody looked for the plan for 30 s: ask POST /plan again",
    "profile_request_not_found": f"no request for profiles is stored under '{_PLAN_ID}'",
    "unknown_model_version": "there is no version cpu-fbgemm/compute/9",
    "nothing_to_roll_back_to": "no version served before",
    "unauthenticated": "send one valid API key, as `Authorization: Bearer <key>` or as `X-API-Key: <key>`",
    "insufficient_scope": "the key lacks the scope 'admin', which this call needs",
    "admin_through_proxy": "the call came through a proxy, so that anyone could have made it",
    "rate_limited": "the key may be used 6000 times a minute, in each API process",
    "profile_quota_exceeded": "500 new profiles may be queued a day",
    "no_worker": "no live worker serves 'cpu-fbgemm'",
    "planner_busy": "all planning processes are taken and others wait",
    "launch_pending": "another process makes the plan of this launch still",
    "storage_unavailable": "the database is not available",
    "models_unavailable": "no cost models for hardware 'cpu-fbgemm', as the model store is empty or missing",
    "damaged_artifact": "cpu-fbgemm/compute/3 is incomplete or altered",
    "body_too_large": "at most 8388608 bytes are taken (SHARDWRIGHT_MAX_BODY_BYTES)",
    "body_too_slow": "the body did not arrive within 30 s (SHARDWRIGHT_BODY_TIMEOUT_S)",
    "unsupported_media_type": "Content-Type must be application/json",
    "idempotency_key_reused": "this Idempotency-Key was sent with another request: a new request needs a new key",
    "idempotent_call_running": "the first call under this Idempotency-Key runs still",
    "idempotent_answer_lost": "the call took effect, but its answer was lost with the process that made it",
}

_PLANNING: Final = frozenset(
    {
        "unsupported_sharding",
        "unknown_hardware",
        "infeasible",
        "no_plan_in_time",
        "plan_not_found",
        "damaged_artifact",
        "models_unavailable",
    }
)
_PLAN: Final = frozenset({"plan_not_found"})
_UNMADE: Final = frozenset({"plan_not_made", "cancelled"})
_MODELS: Final = frozenset({"unknown_model_version", "damaged_artifact", "models_unavailable"})
_OWN: Final[Mapping[str, frozenset[str]]] = {
    "makePlan": _PLANNING | _UNMADE | {"unsupported_algorithm", "launch_pending", "unknown_model_version"},
    "estimatePlan": (_PLANNING | {"unknown_model_version"}) - {"infeasible"},
    "getPlan": _PLAN | _UNMADE | {"infeasible", "no_plan_in_time"},
    "deletePlan": _PLAN,
    "diffPlans": _PLAN,
    "getObservations": _PLAN,
    "postObservations": _PLAN,
    "getModels": frozenset({"models_unavailable"}),
    "getModel": frozenset({"unknown_model_version", "models_unavailable"}),
    "promoteModel": _MODELS,
    "rollBackModel": _MODELS | {"nothing_to_roll_back_to"},
    "requestProfiles": frozenset({"no_worker", "profile_quota_exceeded", "unsupported_sharding"}),
    "getProfiles": frozenset({"profile_request_not_found"}),
}
"""Problems of single operations; all others of ``_DETAILS`` are those of many."""


def document_examples(document: dict[str, Any]) -> None:
    """Adds examples of bodies and problems, and the problems' kinds, to an OpenAPI document, changed in place."""
    document["components"]["schemas"]["Problem"]["properties"]["type"]["enum"] = [
        TYPE_PREFIX + kind for kind in kinds()
    ]
    for operations in document["paths"].values():
        for operation in operations.values():
            for content in operation.get("requestBody", {}).get("content", {}).values():
                bodies = _BODIES[operation["operationId"]]
                content["examples"] = {name: {"value": body} for name, body in bodies.items()}
            for status, response in operation["responses"].items():
                if MEDIA_TYPE in response.get("content", {}):
                    examples = dict(_problems(operation, int(status)))
                    # A mapping of its own: operations share the other one.
                    response["content"] = {MEDIA_TYPE: response["content"][MEDIA_TYPE] | {"examples": examples}}


def _problems(operation: Mapping[str, Any], status: int) -> Iterator[tuple[str, dict[str, Any]]]:
    shared = set(_DETAILS) - set().union(*_OWN.values())
    if "requestBody" not in operation:
        shared -= {kind for kind in shared if kind.startswith("idempotent") or kind == "planner_busy"}
        shared.discard("idempotency_key_reused")
        if all(parameter["in"] != "query" for parameter in operation.get("parameters", ())):
            shared.discard("invalid_request")
    for kind, detail in _DETAILS.items():
        if status_of(kind) == status and kind in shared | _OWN.get(operation["operationId"], frozenset()):
            yield kind, {"value": _problem(kind, status, detail)}


def _problem(kind: str, status: int, detail: str) -> dict[str, Any]:
    problem = {"type": TYPE_PREFIX + kind, "title": title_of(kind), "status": status, "detail": detail}
    problem["instance"] = "5f2b9f6f0f5e4a0c8b1d1b7a3e9c2d41"
    if kind == "invalid_request":
        pointer, _, message = detail.partition(": ")
        problem |= {"faults": [{"pointer": pointer, "message": message, "table": "cat_0", "parameter": None}]}
        problem |= {"fault_count": 1}
    return problem
