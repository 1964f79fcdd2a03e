"""How many examples tests of properties try: a third in `make test`, all in `make test-all`, which says so."""

import os

_ALL = os.environ.get("TEST_ALL_EXAMPLES") == "1"
_FEWEST = 20


def examples(number: int) -> int:
    """Examples to try here, of the number that a whole run tries."""
    return number if _ALL else min(number, max(_FEWEST, number // 3))
