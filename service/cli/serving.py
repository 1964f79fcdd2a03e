"""``shardwright serve | plan | estimate | openapi``: the service, and the same answers without a server."""

import json
import sys
from collections.abc import Mapping
from typing import Annotated, Any

import typer

from service.cli.common import DataDir, Pretty, RequestFile, read_body, refuse, settings_with
from service.domain.callers import WITHOUT_KEY
from service.domain.errors import ShardwrightError

app = typer.Typer()

_BESIDE = "cpu-fbgemm"


@app.command()
def serve(
    host: Annotated[str | None, typer.Option(help="Address to listen on [127.0.0.1].")] = None,
    port: Annotated[int | None, typer.Option(min=0, max=65535, help="Port to listen on [8000].")] = None,
    data_dir: DataDir = None,
    worker: Annotated[
        bool, typer.Option("--worker", help="Also measure new tables for cpu-fbgemm, on this machine's CPU.")
    ] = False,
) -> None:
    """Serve the HTTP API until SIGTERM or Ctrl-C.

    With --worker one worker runs beside it. What it times on a machine that serves at the same time is noisy: for
    timings to plan by, run `shardwright worker` on a machine of its own.
    """
    from service.api.planner_worker import use_one_blas_thread

    use_one_blas_thread()
    from service import wiring

    settings = settings_with(host=host, port=port, data_dir=data_dir)
    wiring.serve(settings, worker=_BESIDE if worker else None)


@app.command()
def plan(request: RequestFile, pretty: Pretty = False) -> None:
    """Plan a request body of POST /plan, in this process and without storing the plan."""
    import time

    from service.api.planner_worker import use_one_blas_thread

    use_one_blas_thread()
    from service.local_planning import local_planning

    body = read_body(request)
    arrived = time.monotonic()
    planning = local_planning(settings_with())
    try:
        answer = planning.plan(body, arrived, WITHOUT_KEY)
    except ShardwrightError as error:
        refuse(error)
    _print(answer, pretty)


@app.command()
def estimate(request: RequestFile, pretty: Pretty = False) -> None:
    """Price a request body of POST /estimate, in this process; it must hold the shards."""
    from service.api.planner_worker import use_one_blas_thread

    use_one_blas_thread()
    from service.local_planning import local_planning

    body = read_body(request)
    planning = local_planning(settings_with())
    try:
        answer = planning.estimates.answer(body, WITHOUT_KEY)
    except ShardwrightError as error:
        refuse(error)
    _print(answer.model_dump(mode="json"), pretty)


@app.command()
def openapi() -> None:
    """Print the OpenAPI document."""
    from service.api.app import openapi_yaml

    sys.stdout.write(openapi_yaml())


def _print(answer: Mapping[str, Any], pretty: bool) -> None:
    if pretty:
        from service.cli.pretty import print_answer

        print_answer(answer)
    else:
        typer.echo(json.dumps(answer, indent=2))
