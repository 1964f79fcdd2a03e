"""Answers of ``shardwright evaluate`` as readable tables."""

from collections.abc import Mapping
from typing import Any

from rich.markup import escape
from rich.table import Table

from service.cli.output import console

_HEADINGS = ("rows", "MSE (ms²)", "MAPE", "median\nAPE", "bias", "tau", "90%\nholds")

_Rows = list[tuple[str, Mapping[str, Any] | None]]


def print_evaluated(answer: Mapping[str, Any]) -> None:
    """Prints each version's errors overall and by slice, the picks among plans, and what to keep in mind."""
    out = console()
    for model in answer["models"]:
        of = f"{model['version']} on {model['measurements']} measurements of the {model['part']} part"
        out.print(_table(of, [(name.replace("_", " "), cost["overall"]) for name, cost in model["costs"].items()]))
        for name in _sliced(model["costs"]):
            out.print(_table(f"{name.replace('_', ' ')} by slice", _slice_rows(model["costs"][name])))
        if _any_off(model["costs"]):
            out.print("- ! holds more or fewer than chance makes of 90%, were the rows independent")
        for warning in model["warnings"]:
            out.print(f"- {escape(warning)}")
    if answer["plans"]:
        for line in _pick_lines(answer["plans"]):
            out.print(escape(line))
    for path in answer["plots"]:
        out.print(f"written: {escape(path)}")


def _sliced(costs: Mapping[str, Any]) -> list[str]:
    """The costs whose slices are worth reading: forward and backward compute say much the same as their total."""
    return ["total"] if "total" in costs else list(costs)


def _slice_rows(cost: Mapping[str, Any]) -> _Rows:
    """A row for each slice, below one that names what it is a slice of."""
    rows: _Rows = []
    for attribute, slices in cost["slices"].items():
        rows += [(attribute, None), *((f"  {called}", found) for called, found in slices.items())]
    return rows


def _table(title: str, rows: _Rows) -> Table:
    table = Table("", title=escape(title))
    for heading in _HEADINGS:
        table.add_column(heading, justify="right")
    for name, found in rows:
        if found is None:
            table.add_section()
            table.add_row(escape(name), style="bold")
        else:
            table.add_row(escape(name), str(found["rows"]), *_numbers(found))
    return table


def _numbers(found: Mapping[str, Any]) -> list[str]:
    forms = {"mse": ".2f", "mape": ".1%", "median_ape": ".1%", "bias": "+.1%", "tau": ".3f", "coverage": ".1%"}
    told = ["-" if found[name] is None else format(found[name], form) for name, form in forms.items()]
    return [*told[:-1], f"! {told[-1]}" if found["coverage_off"] else told[-1]]


def _any_off(costs: Mapping[str, Any]) -> bool:
    """Whether any coverage that is shown is marked."""
    shown = [costs[name] for name in _sliced(costs)]
    slices = [found for cost in shown for each in cost["slices"].values() for found in each.values()]
    return any(found["coverage_off"] for found in [*(cost["overall"] for cost in costs.values()), *slices])


def _pick_lines(plans: Mapping[str, Any]) -> list[str]:
    lines = [f"- {warning}" for warning in plans["warnings"]]
    if not plans["answers"]:
        return lines
    return [
        f"the truly fastest plan was picked in {plans['picked']} of {plans['answers']} answers "
        f"({plans['picked'] / plans['answers']:.0%}; in {plans['all_alike']} the repeats tell no plans apart)",
        f"regret: {plans['mean_regret_ms']:.2f} ms on average, {plans['largest_regret_ms']:.2f} ms at most",
        *lines,
    ]
