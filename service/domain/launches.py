"""Launches: many ranks, perhaps through many replicas, that must all act on one plan."""

from dataclasses import dataclass

LEASE_S = 3.0
"""Seconds for which a process that makes a launch's plan has it to itself; while it lives it renews them in time."""


@dataclass(frozen=True, slots=True)
class Launch:
    """What has one answer for good.

    Attributes:
        key: of the caller; launches of two callers have nothing to do with each other.
        launch_id: the caller's name for the launch.
        request_hash: of the question, whatever models answer it; a launch may ask several.
    """

    key: str
    launch_id: str
    request_hash: str
