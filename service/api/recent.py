"""What was used last, kept."""

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


class Recent(Generic[Key, Value]):
    """Values by key, each made when it is first asked for; only the most recently used are kept."""

    def __init__(self, size: int) -> None:
        """Keeps ``size`` values at most."""
        self._size = size
        self._kept: OrderedDict[Key, Value] = OrderedDict()
        self._using = threading.Lock()

    def get(self, key: Key, make: Callable[[], Value]) -> Value:
        """The value of a key; where several threads make it at once, all get the one that was there first."""
        with self._using:
            if key in self._kept:
                self._kept.move_to_end(key)
                return self._kept[key]
        made = make()
        with self._using:
            value = self._kept.setdefault(key, made)
            self._kept.move_to_end(key)
            while len(self._kept) > self._size:
                self._kept.popitem(last=False)
            return value
