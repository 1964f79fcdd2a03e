"""Versions of models, and what made them serve."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

COMPUTE, COMMUNICATION = "compute", "communication"

ANALYTIC = "analytic-"
"""What marks the number in the name of a version from a data sheet: ``h100/compute/analytic-2``."""

ModelName = tuple[str, str]
"""Hardware, and ``compute``, ``communication`` or the algorithm whose policy it is."""


@dataclass(frozen=True, slots=True)
class Version:
    """One version of one model of one hardware.

    Attributes:
        hardware: what it is for.
        model: ``compute``, ``communication``, or an algorithm whose policy it is.
        number: counts up.
        analytic: whether it comes from a data sheet, and so is no file of a store.
    """

    hardware: str
    model: str
    number: int
    analytic: bool = False

    def __str__(self) -> str:
        return f"{self.hardware}/{self.model}/{ANALYTIC if self.analytic else ''}{self.number}"

    @property
    def of(self) -> ModelName:
        """The model that it is a version of."""
        return self.hardware, self.model

    @property
    def promoted_as(self) -> int | None:
        """Its number in a promotion, None where it is analytic: that one goes with the code, whatever its number."""
        return None if self.analytic else self.number

    @classmethod
    def parse(cls, name: str) -> "Version":
        """The version of a name ``<hardware>/<model>/[analytic-]<number>``; ValueError for any other text."""
        hardware, model, number = name.split("/")
        return cls(hardware, model, int(number.removeprefix(ANALYTIC)), number.startswith(ANALYTIC))


@dataclass(frozen=True, slots=True)
class Promotion:
    """The decision that a version serves.

    Attributes:
        id: counts up, in the order of the decisions.
        hardware: hardware of the version.
        model: model of the version.
        number: its number; None for the analytic one.
        promoted_at: when, by the database's clock.
        promoted_by: who.
        reason: why, for people.
        comparison: what it was judged by, where it was judged.
        undoes: id of the promotion that it undoes, where it is a rollback.
    """

    id: int
    hardware: str
    model: str
    number: int | None
    promoted_at: datetime
    promoted_by: str
    reason: str
    comparison: Mapping[str, Any] | None = None
    undoes: int | None = None


Standing = Mapping[ModelName, Sequence[Promotion]]
"""Of each model the promotions that are neither rollbacks nor undone, the last first: the stack that serves.

The first names the version that serves, the second the one that served before it.
"""
