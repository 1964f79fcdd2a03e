"""Refuses hyper-parameters that are not in their range."""


def refuse_below(name: str, value: float, least: float) -> None:
    """Raises ValueError where a value is below the least, or no number."""
    if not value >= least:
        raise ValueError(f"{name} is {value}: it must be at least {least}")


def refuse_not_positive(name: str, value: float) -> None:
    """Raises ValueError where a value is not above 0, or no number."""
    if not value > 0:
        raise ValueError(f"{name} is {value}: it must be above 0")
