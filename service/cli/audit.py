"""``shardwright audit``: calls that changed the service."""

from datetime import UTC
from typing import Annotated

import typer

from service.cli.common import DataDir, settings_with

app = typer.Typer()


@app.command()
def audit(
    limit: Annotated[int, typer.Option(min=1, max=10**6, help="Most calls that are listed.")] = 50,
    data_dir: DataDir = None,
) -> None:
    """List calls that changed the service, or failed to: keys, promotions, plans deleted by admins; the last first."""
    from rich.console import Console
    from rich.table import Column, Table

    from service.database import database
    from service.storage import migrate
    from service.storage.audit import AuditTrail

    with database(settings_with(data_dir=data_dir)) as engine:
        migrate.upgrade(engine)
        found = AuditTrail(engine).newest(limit)
    grid = Table(Column("at", no_wrap=True), "who", "did", "to", "outcome", "request")
    for each in found:
        at = f"{each.at.astimezone(UTC):%Y-%m-%d %H:%M:%S}Z"
        grid.add_row(at, each.call.actor, each.call.action, each.call.subject, each.outcome, each.request_id or "-")
    Console().print(grid)
