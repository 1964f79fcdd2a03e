"""Evaluations as PNG files, drawn without a display; only ``shardwright evaluate --plots`` imports this."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from service.training.slices import Quality
from service.usecases.evaluate_models import Evaluation

_COLUMNS = 3
_PANEL = (4.6, 3.6)
"""Inches of one panel."""


def write_plots(evaluation: Evaluation, folder: Path) -> list[Path]:
    """Writes predicted against measured and the error by slice of one version into a folder that is there.

    Returns:
        The files, named for the version and what they show; those of these names are written over.

    Raises:
        OSError: a file cannot be written.
    """
    drawn = {"predicted": _predicted_figure(evaluation), "error-by-slice": _error_figure(evaluation)}
    paths = {folder / f"{evaluation.version.replace('/', '-')}-{what}.png": drawn[what] for what in drawn}
    for path, figure in paths.items():
        figure.savefig(path, dpi=120)
    return list(paths)


def _predicted_figure(evaluation: Evaluation) -> Figure:
    """A panel for each cost, both axes logarithmic; on the line predictions are right."""
    figure, panels = _panels(evaluation, len(evaluation.costs))
    for axes, (name, judged) in zip(panels, evaluation.costs.items(), strict=True):
        ends = [min(judged.measured.min(), judged.predicted.min()), max(judged.measured.max(), judged.predicted.max())]
        axes.plot(ends, ends, color="0.5", linewidth=1)
        axes.scatter(judged.measured, judged.predicted, s=6, alpha=0.5)
        axes.set(xscale="log", yscale="log", xlabel="measured, ms", ylabel="predicted, ms", title=_words(name))
    return figure


def _error_figure(evaluation: Evaluation) -> Figure:
    """A panel for each attribute with a bar for each cost and slice; slices with too few rows have none."""
    attributes = list(next(iter(evaluation.costs.values())).attributes)
    figure, panels = _panels(evaluation, len(attributes))
    for axes, attribute in zip(panels, attributes, strict=True):
        _draw_errors(axes, attribute, {name: judged.sliced()[attribute] for name, judged in evaluation.costs.items()})
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside upper right")
    return figure


def _draw_errors(axes: Axes, attribute: str, costs: Mapping[str, Mapping[str, Quality]]) -> None:
    thick = 0.8 / len(costs)
    # One cost may have rows in a slice where another has none.
    rows = {called: found.rows for slices in reversed([*costs.values()]) for called, found in slices.items()}
    places = np.arange(len(rows))
    for number, (name, slices) in enumerate(costs.items()):
        errors = [100 * (slices.get(called, Quality(0)).mape or 0.0) for called in rows]
        axes.barh(places + number * thick, errors, thick, label=_words(name))
    axes.set_yticks(places + 0.4 - thick / 2, [f"{called} ({count})" for called, count in rows.items()])
    axes.tick_params(axis="y", labelsize="x-small")
    axes.invert_yaxis()
    axes.set(xlabel="MAPE, %", title=f"{attribute} (rows)")


def _panels(evaluation: Evaluation, count: int) -> tuple[Figure, list[Axes]]:
    columns = min(count, _COLUMNS)
    rows = -(-count // columns)
    figure = Figure(figsize=(columns * _PANEL[0], rows * _PANEL[1]), layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(f"{evaluation.version} on the {evaluation.part.value} part")
    return figure, [figure.add_subplot(rows, columns, place + 1) for place in range(count)]


def _words(name: str) -> str:
    return name.replace("_", " ")
