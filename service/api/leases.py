"""Claims on the database that hold while the process lives that made them."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from service.domain.errors import StorageUnavailable
from service.domain.launches import LEASE_S

_RENEWALS = 3
"""Times that a claim is renewed within its lease, so that one that fails does not lose it."""


@contextmanager
def renewed(renew: Callable[[], object]) -> Iterator[None]:
    """Has a claim of ``LEASE_S`` renewed in time, from a thread of its own, until the end of the block."""
    over = threading.Event()

    def keep_on() -> None:
        while not over.wait(LEASE_S / _RENEWALS):
            # Where the database was away for longer than the lease, another may have the claim, too.
            with suppress(StorageUnavailable):
                renew()

    renewer = threading.Thread(target=keep_on, daemon=True)
    renewer.start()
    try:
        yield
    finally:
        over.set()
        renewer.join()
