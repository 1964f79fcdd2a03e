"""A measurement store in memory."""

from benchmarks.held_rows import HeldRows as Memory

__all__ = ["Memory"]
