"""What a part of the service says of its own state."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Check:
    """State of one part.

    Attributes:
        usable: whether requests can be answered as far as this part is concerned.
        state: ``ok``, or what is missing, for people; names no hosts, users or paths.
    """

    usable: bool
    state: str = "ok"
