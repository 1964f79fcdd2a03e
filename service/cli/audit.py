"""``shardwright audit``: calls that changed the service."""

from dataclasses import asdict
from datetime import UTC
from typing import Annotated

import typer

from service.cli.common import DataDir, settings_with
from service.cli.output import AsJson, Row, print_list
from service.domain.access import RecordedCall

app = typer.Typer()


@app.command()
def audit(
    limit: Annotated[int, typer.Option(min=1, max=10**6, help="Most calls that are listed.")] = 50,
    as_json: AsJson = False,
    data_dir: DataDir = None,
) -> None:
    """List calls that changed the service, or failed to: keys, promotions, plans deleted by admins; the last first."""
    from service.database import database
    from service.storage import migrate
    from service.storage.audit import AuditTrail

    with database(settings_with(data_dir=data_dir)) as engine:
        migrate.upgrade(engine)
        found = AuditTrail(engine).newest(limit)
    print_list(("at", "who", "did", "to", "outcome", "request"), map(_row, found), as_json)


def _row(each: RecordedCall) -> Row:
    known = {"at": each.at, **asdict(each.call), "outcome": each.outcome, "request_id": each.request_id or None}
    at, call = f"{each.at.astimezone(UTC):%Y-%m-%d %H:%M:%S}Z", each.call
    return (at, call.actor, call.action, call.subject, each.outcome, each.request_id or "-"), known
