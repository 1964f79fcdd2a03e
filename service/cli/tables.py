"""``shardwright tables``: table specifications from data."""

import json
from pathlib import Path
from typing import Annotated

import typer

from service.cli.common import fail
from service.domain.tables import DIM_MULTIPLE

app = typer.Typer(no_args_is_help=True, help="Table specifications.")


@app.callback()
def _group() -> None:
    """Keeps the sub-command's name while there is only one."""


@app.command("from-dlrm")
def from_dlrm(
    file: Annotated[Path, typer.Argument(help="A batch as torch tensors (indices, offsets, lengths), .pt or .pt.gz.")],
    embedding_dim: Annotated[int, typer.Option(min=4, help="Dim of every table; such files hold none.")] = 16,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Where to write; standard output.")] = None,
) -> None:
    """Turn a file in the form of dlrm_datasets into tables with measured pooling factors and reuse histograms.

    num_embeddings is the largest index seen plus one: put in the real number of rows where the table has more.
    """
    from service.profiling.dlrm_file import tables_from_dlrm, tables_json

    if embedding_dim % DIM_MULTIPLE:
        fail(f"shardwright: --embedding-dim: {embedding_dim} is not a multiple of {DIM_MULTIPLE}")
    text = json.dumps(tables_json(tables_from_dlrm(file, embedding_dim)), indent=1)
    if output is None:
        typer.echo(text)
    else:
        try:
            output.write_text(text + "\n", encoding="utf-8")
        except OSError as error:
            fail(f"shardwright: cannot write {output}: {error.strerror}")
