"""Answers as readable tables for the command line."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.markup import escape
from rich.table import Table

from service.cli.output import console

_GIB = 1024**3
_TOLD = ("predicted_ms", "measured_ms")
_MEDIANS = "Measured is the median of the repeats, of each part and of the total by itself: they need not add up."
_MEMORY_PARTS = ("weights", "optimizer", "buffers", "total")
_COST_PARTS = ("forward_compute", "backward_compute", "forward_wait", "forward_transfer", "backward_comm", "total")


def print_answer(answer: Mapping[str, Any]) -> None:
    """Prints an answer of /plan or /estimate: devices with memory and cost parts, shards, and what was assumed."""
    out = console()
    out.print(_memory(answer["devices"]))
    out.print(_costs(answer["devices"]))
    if "shards" in answer:
        out.print(_shards(answer["shards"]))
        out.print(f"{answer['algorithm']}, {answer['status']}, {answer['planning_ms']:.0f} ms of planning")
    out.print(f"largest total: [bold]{answer['max_cost_ms']:.3f} ms[/bold]{_interval(answer)}")
    if "lower_bound_ms" in answer:
        out.print(f"no plan costs less than {answer['lower_bound_ms']:.3f} ms by these models")
    if answer.get("moves") is not None:
        out.print(f"{answer['moved_bytes'] / _GIB:.3f} GiB move, in {len(answer['moves'])} ranges of columns")
    out.print("models: " + escape(", ".join(answer["models"].values())))
    for assumption in answer["assumptions"]:
        out.print(f"- {escape(assumption)}")


def _interval(answer: Mapping[str, Any]) -> str:
    """The interval of the largest total; plans that were stored before there were intervals have none."""
    if "max_cost_interval_ms" not in answer:
        return ""
    low, high = answer["max_cost_interval_ms"]
    return f", 90% interval {low:.3f} to {high:.3f} ms"


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


def print_measured(answer: Mapping[str, Any]) -> None:
    """Prints an answer of ``shardwright measure``: every plan's devices, the plans in a row, and what that says."""
    out = console()
    for plan in answer["plans"]:
        out.print(_compared_devices(plan))
        for assumption in plan["assumptions"]:
            out.print(f"- {escape(assumption)}")
    out.print(_compared_plans(answer["plans"]))
    for line in _summary_lines(answer["summary"]):
        out.print(escape(line))
    out.print("models: " + escape(", ".join(answer["models"].values())))
    out.print(escape(f"measured on {answer['environment']['device']}, {answer['repeats']} repeats"))
    for assumption in answer["assumptions"]:
        out.print(f"- {escape(assumption)}")


def _compared_devices(plan: Mapping[str, Any]) -> Table:
    # Narrow enough for 80 columns.
    table = Table("device, ms", title=escape(plan["name"]), caption=_MEDIANS, box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for heading in _COST_PARTS:
        table.add_column(heading.replace("_", "\n"), justify="right")
    table.add_column("compute\nspread", justify="right")
    for device in plan["devices"]:
        predicted, measured = ([f"{device[told][part]:.2f}" for part in _COST_PARTS] for told in _TOLD)
        number = str(device["device"])
        table.add_row(f"{number} predicted", *predicted)
        table.add_row(f"{' ' * len(number)} measured", *measured, f"{device['compute_spread']:.1%}", end_section=True)
    return table


def _compared_plans(plans: Sequence[Mapping[str, Any]]) -> Table:
    table = Table(title="Largest total, ms")
    table.add_column("plan", overflow="fold")
    for heading in ("predicted", "90% interval", "measured", "error", "spread", "fits"):
        table.add_column(heading, justify="right")
    for plan in plans:
        predicted, measured = plan["max_cost_ms"]["predicted"], plan["max_cost_ms"]["measured"]
        low, high = plan["max_cost_ms"]["interval"]
        numbers = (
            f"{predicted:.2f}",
            f"{low:.2f} to {high:.2f}",
            f"{measured:.2f}",
            f"{predicted / measured - 1:+.1%}",
        )
        table.add_row(escape(plan["name"]), *numbers, f"{plan['cost_spread']:.1%}", "yes" if plan["fits"] else "no")
    return table


def _summary_lines(summary: Mapping[str, Any]) -> list[str]:
    named = {"compute": "device compute", "device_total": "device totals", "plan": "plans"}
    lines = [
        f"{name}: MAPE {summary[key]['mape']:.1%}, bias {summary[key]['bias']:+.1%} ({summary[key]['count']})"
        for key, name in named.items()
    ]
    order = summary["order"]
    if order is None:
        return lines
    best = "is" if order["best_picked"] else f"costs {order['regret_ms']:.2f} ms more than"
    return [
        *lines,
        f"predicted order: {', '.join(order['by_prediction'])}",
        f"measured order: {', '.join(order['by_measurement'])}",
        f"{order['pairs_ordered_the_same']} of {order['pairs']} pairs ordered as predicted; besides "
        f"{order['pairs_within_noise']} within noise, {order['pairs_predicted_alike']} predicted alike",
        f"what is predicted to be the cheapest {best} the cheapest, as far as the repeats tell",
    ]
