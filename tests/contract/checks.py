"""What schemathesis checks beside its own checks; it imports this file in a process of its own.

A body that the schema takes may be refused for what no schema can say: that names are unique, that slices tile a table.
So 422 is expected of valid bodies. What would go unnoticed then is looked for here: a refusal that is about the form of
a single field, which a schema can say.
"""

import json
import re
import zlib
from typing import Any

import schemathesis

from tests.contract.sensible import sensible_plan, sensible_profiles

_FORM = re.compile(
    r"must be (a valid|greater|less|at most \d+ (characters|items)|a multiple)|is required|there is no such field|"
    r"must have at (least|most)|must match|too many digits|no JSON|is not (JSON|UTF-8)"
)
"""How faults read that pydantic finds, or the parser."""


_SENSIBLE = {"makePlan": sensible_plan, "requestProfiles": sensible_profiles}
_PHASES = {"fuzzing", "stateful"}


@schemathesis.check
def refused_for_what_no_schema_can_say(
    ctx: schemathesis.CheckContext, response: schemathesis.Response, case: schemathesis.Case[Any]
) -> None:
    """A valid body is refused for no fault of a field's form."""
    if response.status_code != 422 or case.meta is None or not case.meta.generation.mode.is_positive:
        return
    of_form = [fault for fault in response.json().get("faults", []) if _FORM.search(fault["message"])]
    assert not of_form, f"the schema takes what is refused: {of_form[:3]}"


@schemathesis.hook
def before_call(ctx: schemathesis.HookContext, case: schemathesis.Case[Any], kwargs: dict[str, Any]) -> None:
    """Half of the valid questions are made sensible: plans come of them, which calls along links are about.

    Half of these are asked by somebody who would rather come back than wait.
    """
    make = _SENSIBLE.get(case.operation.definition.raw.get("operationId", ""))
    if make and isinstance(case.body, dict) and case.meta and case.meta.generation.mode.is_positive:
        # By its content: with the same seed they are the same.
        drawn = zlib.crc32(json.dumps(case.body, sort_keys=True).encode())
        if drawn % 2 and case.meta.phase.name in _PHASES:
            case.body = make(case.body)
            if make is sensible_plan and drawn % 4 == 1:
                case.headers["Prefer"] = "respond-async"


@schemathesis.hook
def after_load_schema(ctx: schemathesis.HookContext, schema: Any) -> None:
    """Sequences of calls begin with plans: a name for a launch is the caller's own, unlike what is guessed of it."""
    schema.analysis.dependency_graph.operations["POST /plan"].inputs.clear()
