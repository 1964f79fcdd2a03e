"""Amounts and lists of names as people read them."""

from collections.abc import Sequence

_GIB = 1 << 30
_MIB = 1 << 20


def gibibytes(amount: int) -> str:
    """Bytes as GiB with one decimal; as MiB or bytes where that would read as next to nothing."""
    if amount >= _GIB // 10:
        return f"{amount / _GIB:.1f} GiB"
    return f"{amount / _MIB:.1f} MiB" if amount >= _MIB // 10 else f"{amount} bytes"


def named(names: Sequence[str], most: int = 5) -> str:
    """Names in a row, the first few of them where they are many."""
    if len(names) <= most:
        return ", ".join(names)
    return f"{', '.join(names[:most])} and {len(names) - most} more"
