"""How commands print what they found: tables for people, whole also where no terminal is, and JSON for programs."""

import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from rich.console import Console

_UNBOUNDED = 1_000_000
"""Columns; no line is as long."""

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, one object a line with all that is known of each.")]

Row = tuple[Sequence[str], Mapping[str, Any]]
"""What a table's row says, and all that is known of it, JSON-like: times, sets and named values may be in it."""


def console() -> "Console":
    """Standard output, as wide as its terminal; what a pipe or a file gets is never cut or wrapped."""
    from rich.console import Console

    return Console() if _on_terminal() else Console(width=_UNBOUNDED)


def print_list(headings: Sequence[str], rows: Iterable[Row], as_json: bool, whole: int = 1) -> None:
    """Prints a list.

    Args:
        headings: of a table's columns.
        rows: in their order.
        as_json: one object a line instead of a table.
        whole: how many columns, from the first on, a terminal that is narrow does not wrap.
    """
    if as_json:
        print_json_lines(known for _, known in rows)
        return
    from rich.markup import escape
    from rich.table import Column, Table

    grid = Table(*(Column(heading, no_wrap=number < whole) for number, heading in enumerate(headings)))
    for cells, _ in rows:
        grid.add_row(*map(escape, cells))
    console().print(grid)


def print_json_lines(objects: Iterable[Mapping[str, Any]]) -> None:
    """Prints objects as JSON, one a line."""
    from pydantic_core import to_json

    for each in objects:
        typer.echo(to_json(each).decode())


def _on_terminal() -> bool:
    return sys.stdout.isatty()
