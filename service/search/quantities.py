"""Amounts as people read them."""

_GIB = 1 << 30
_MIB = 1 << 20


def gibibytes(amount: int) -> str:
    """Bytes as GiB with one decimal; as MiB or bytes where that would read as next to nothing."""
    if amount >= _GIB // 10:
        return f"{amount / _GIB:.1f} GiB"
    return f"{amount / _MIB:.1f} MiB" if amount >= _MIB // 10 else f"{amount} bytes"
