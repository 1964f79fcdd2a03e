"""What the TorchRec adapter refuses before it asks."""

from collections.abc import Sequence

from shardwright_client.errors import InvalidArgument


class NotModelled(InvalidArgument):
    """A module, constraint or plan of TorchRec that Shardwright has no model of; the message says what to do."""


_SHOWN = 5


def together(faults: Sequence[str]) -> str:
    """Faults in one sentence, the first few of many."""
    more = f"; and {len(faults) - _SHOWN} more" if len(faults) > _SHOWN else ""
    return "; ".join(faults[:_SHOWN]) + more
