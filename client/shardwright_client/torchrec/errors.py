"""What the TorchRec adapter refuses before it asks."""

from shardwright_client.errors import InvalidArgument


class NotModelled(InvalidArgument):
    """A module, constraint or plan of TorchRec that Shardwright has no model of; the message says what to do."""
