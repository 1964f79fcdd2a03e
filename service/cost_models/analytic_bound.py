"""What devices cost at least under the analytic model and the one calibrated from it."""

from collections.abc import Callable, Sequence

import numpy as np

from service.domain.ports import Floats, Integers

_CLOSE = 1 - 1e-6
"""Embeddings are kept in single precision."""

Terms = tuple[Floats, Floats]


class AnalyticLeastCosts:
    """What no device costs less than, whatever it holds of T tables; implements ``LeastCosts``.

    Work adds up, and slices of a table have no less of it than the table. Terms never fall with more work.
    """

    def __init__(
        self,
        widths: Integers,
        works: Floats,
        terms: Callable[[Floats], Terms],
        pooled_terms: Callable[[Floats, int], Terms],
        coefficients: Terms,
    ) -> None:
        """Takes the work of slices and what the model makes of it.

        Args:
            widths: columns, ascending, the last of each row the table's own; [T, G].
            works: work of the narrowest slices wider than the width before, and of whole tables; [T, G + 1, E].
            terms: milliseconds of each part of forward and of backward, from sums of work.
            pooled_terms: the same of all devices together at least, from the work of each table.
            coefficients: what a term is multiplied by at least, of forward and of backward.
        """
        self._widths, self._works = widths, works
        self._terms, self._pooled_terms, self._coefficients = terms, pooled_terms, coefficients
        self._alone = self._cost(terms(works[:, :-1]))

    @property
    def alone(self) -> Floats:
        """Of a device with more columns of a table than the width before this one; [T, G]."""
        return self._alone

    def together(self, held: Sequence[Sequence[int]]) -> Floats:
        """Of devices that hold these tables whole; N lists -> [N]."""
        return self._cost(self._terms(np.stack([self._works[list(tables), -1].sum(axis=0) for tables in held])))

    def shared(self, tables: Integers, widest: Integers, devices: int) -> float:
        """Of the dearest of the devices that hold all of these tables between them, no less than the mean of all."""
        columns = self._widths[tables, -1]
        a_column = np.minimum.accumulate(self._works[tables, :-1] / self._widths[tables][..., None], axis=1)
        cut = columns[:, None] * a_column[np.arange(len(tables)), widest]
        return float(self._cost(self._pooled_terms(np.maximum(self._works[tables, -1], cut), devices)))

    def _cost(self, terms: Terms) -> Floats:
        forward, backward = (part @ weight for part, weight in zip(terms, self._coefficients, strict=True))
        return np.asarray(_CLOSE * (forward + backward))
