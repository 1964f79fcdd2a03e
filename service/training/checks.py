"""Refuses hyper-parameters that are not in their range."""

from dataclasses import astuple, fields
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


def refuse_below(name: str, value: float, least: float) -> None:
    """Raises ValueError where a value is below the least, or no number."""
    if not value >= least:
        raise ValueError(f"{name} is {value}: it must be at least {least}")


def refuse_not_positive(name: str, value: float) -> None:
    """Raises ValueError where a value is not above 0, or no number."""
    if not value > 0:
        raise ValueError(f"{name} is {value}: it must be above 0")


def refuse_sizes(sizes: "DataclassInstance") -> None:
    """Raises ValueError where a size of a network is below 1."""
    for field, value in zip(fields(sizes), astuple(sizes), strict=True):
        refuse_below(field.name, min(np.ravel(value).tolist()), 1)
