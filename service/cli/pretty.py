"""Answers as readable tables for the command line."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

_GIB = 1024**3
_MEMORY_PARTS = ("weights", "optimizer", "buffers", "total")
_COST_PARTS = ("forward_compute", "backward_compute", "forward_wait", "forward_transfer", "backward_comm", "total")


def print_answer(answer: Mapping[str, Any]) -> None:
    """Prints an answer of /plan or /estimate: devices with memory and cost parts, shards, and what was assumed."""
    console = Console()
    console.print(_memory(answer["devices"]))
    console.print(_costs(answer["devices"]))
    if "shards" in answer:
        console.print(_shards(answer["shards"]))
        console.print(f"{answer['algorithm']}, {answer['status']}, {answer['planning_ms']:.0f} ms of planning")
    console.print(f"largest total: [bold]{answer['max_cost_ms']:.3f} ms[/bold]")
    console.print("models: " + escape(", ".join(answer["models"].values())))
    for assumption in answer["assumptions"]:
        console.print(f"- {escape(assumption)}")


def _memory(devices: Sequence[Mapping[str, Any]]) -> Table:
    rows = [
        [device["memory_bytes"][part] / _GIB for part in _MEMORY_PARTS] + [device["memory_limit_bytes"] / _GIB]
        for device in devices
    ]
    return _by_device("Memory, GiB", (*_MEMORY_PARTS, "limit"), rows)


def _costs(devices: Sequence[Mapping[str, Any]]) -> Table:
    rows = [[device["cost_ms"][part] for part in _COST_PARTS] for device in devices]
    return _by_device("Cost, ms", _COST_PARTS, rows)


def _by_device(title: str, headings: Sequence[str], rows: Sequence[Sequence[float]]) -> Table:
    table = Table("device", title=title)
    for heading in headings:
        table.add_column(heading.replace("_", "\n"), justify="right")
    for device, row in enumerate(rows):
        table.add_row(str(device), *(f"{value:.3f}" for value in row))
    return table


def _shards(shards: Sequence[Mapping[str, Any]]) -> Table:
    table = Table("table", "sharding", title="Shards")
    table.add_column("columns", justify="right")
    table.add_column("device", justify="right")
    for shard in shards:
        start, stop = shard["columns"]
        table.add_row(escape(shard["table"]), shard["sharding_type"], f"{start}:{stop}", str(shard["device"]))
    return table
