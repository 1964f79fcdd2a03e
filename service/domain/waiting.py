"""Those who wait for an answer that takes a while, and who may leave before it is there."""

import threading
from typing import Protocol


class Waiting(Protocol):
    """Those for whom an answer is made."""

    def admitted(self) -> None:
        """Are told that there is room for what they asked: it is being made, or its turn will come."""

    def shared(self) -> None:
        """Are told that others wait for the same answer."""
        return None

    def gone(self) -> bool:
        """Whether nobody waits any more; once that is so, it stays so."""

    def unhurried(self) -> bool:
        """Whether all would rather wait for their turn than be told that there was none by their time limit."""
        return False


class Asker(Waiting):
    """One who may leave, which any thread may tell."""

    def __init__(self) -> None:
        """Waits."""
        self._left = threading.Event()

    def admitted(self) -> None:
        """Makes no difference."""

    def leave(self) -> None:
        """Waits no more."""
        self._left.set()

    def gone(self) -> bool:
        """Whether the asker has left."""
        return self._left.is_set()


class _Patient(Waiting):
    """Waits until the end."""

    def admitted(self) -> None:
        """Makes no difference."""

    def gone(self) -> bool:
        """No."""
        return False


PATIENT = _Patient()
"""Never leaves."""

LOOK_S = 0.1
"""Seconds between two looks whether anybody waits still."""
