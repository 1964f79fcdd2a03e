"""Who asks."""

ANONYMOUS = "anonymous"
"""Key of callers without an API key, as yet all of them."""
