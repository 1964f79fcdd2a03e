"""How good predictions are on each part of what they are judged on: few tables or many, narrow or wide, and so on."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import binom

from service.domain.error_law import LEVEL
from service.training.metrics import can_be_ranked, metrics

Values = NDArray[np.float64]
Flags = NDArray[np.bool_]

LEAST_ROWS = 10
"""Fewer rows are counted and not judged: one outlier among them would rule."""

LEAST_FOR_COVERAGE = 400
"""Fewer rows do not tell whether nine in ten are covered: chance alone moves their share by more than 3%."""

_CHANCE = 0.95


@dataclass(frozen=True, slots=True)
class Quality:
    """Quality of predictions of R rows; all but ``rows`` is None where those are fewer than ``LEAST_ROWS``.

    Attributes:
        rows: predictions, R.
        mse: mean squared error, milliseconds squared.
        mape: mean absolute percentage error, as a fraction.
        median_ape: median absolute percentage error, as a fraction.
        bias: mean error relative to what was measured; below 0 where predictions are too low.
        tau: Kendall's rank correlation; None too where the rows cannot be ranked.
        coverage: share of the rows whose 90% interval holds what was measured, as a fraction.
        coverage_off: whether that share is outside what chance makes of 90% in 95% of cases, were the rows independent;
            None too where they are fewer than ``LEAST_FOR_COVERAGE``. Rows that share tables or an exchange are not,
            so a slice may be off that is sound.
    """

    rows: int
    mse: float | None = None
    mape: float | None = None
    median_ape: float | None = None
    bias: float | None = None
    tau: float | None = None
    coverage: float | None = None
    coverage_off: bool | None = None

    def as_dict(self) -> dict[str, float | None]:
        """Rounded numbers and flags, by name."""
        return {name: round(value, 5) if isinstance(value, float) else value for name, value in asdict(self).items()}


@dataclass(frozen=True, slots=True, eq=False)
class Attribute:
    """Something that R rows are sliced by.

    Attributes:
        values: of each row, numbers or names; [R].
        edges: ascending borders between slices of numbers, each the first value of the slice above it; none where
            every value is a slice of its own.
    """

    values: NDArray[Any]
    edges: tuple[float, ...] = ()

    def slices(self) -> dict[str, Flags]:
        """Which rows are in each slice that has any, by what the slice is called, ascending; every row is in one."""
        if not self.edges:
            return {str(value): self.values == value for value in np.unique(self.values)}
        number = np.searchsorted(self.edges, self.values, side="right")
        return {self._called(above): number == above for above in np.unique(number).tolist()}

    def _called(self, above: int) -> str:
        """What the slice above the first ``above`` edges is called."""
        names = [f"{edge:.7g}" for edge in self.edges]
        if above == 0:
            return f"<{names[0]}"
        return f"{names[-1]} or more" if above == len(names) else f"{names[above - 1]} to <{names[above]}"


@dataclass(frozen=True, slots=True, eq=False)
class Judged:
    """Predictions of one cost beside what was measured.

    Attributes:
        predicted: milliseconds; [R].
        measured: milliseconds, all positive; [R].
        covered: whether the 90% interval of each prediction holds what was measured; [R].
        attributes: what the rows are sliced by, by name; [R] each.
    """

    predicted: Values
    measured: Values
    covered: Flags
    attributes: Mapping[str, Attribute]

    def overall(self) -> Quality:
        """Quality over all rows."""
        return quality(self.predicted, self.measured, self.covered)

    def sliced(self) -> dict[str, dict[str, Quality]]:
        """Quality of each slice, by attribute and slice."""
        return {
            name: {
                called: quality(self.predicted[rows], self.measured[rows], self.covered[rows])
                for called, rows in attribute.slices().items()
            }
            for name, attribute in self.attributes.items()
        }


def quality(predicted: Values, measured: Values, covered: Flags) -> Quality:
    """Quality of R predictions in milliseconds, and of their intervals; [R] each, measured all positive."""
    if len(measured) < LEAST_ROWS:
        return Quality(len(measured))
    found = metrics(predicted, measured)
    return Quality(
        rows=found.rows,
        mse=found.mse,
        mape=found.mape,
        median_ape=found.median_ape,
        bias=float((predicted / measured - 1.0).mean()),
        tau=found.tau if can_be_ranked(predicted, measured) else None,
        coverage=float(covered.mean()),
        coverage_off=_is_off(covered) if len(covered) >= LEAST_FOR_COVERAGE else None,
    )


def _is_off(covered: Flags) -> bool:
    """Whether more or fewer are covered than the limits of a binomial law with probability ``LEVEL`` allow."""
    least, most = binom.interval(_CHANCE, len(covered), LEVEL)
    return bool(not least <= covered.sum() <= most)
