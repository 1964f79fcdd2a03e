"""What was used last is kept, and no more."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from service.api.recent import Recent


def test_the_most_recently_used_are_kept() -> None:
    recent: Recent[int, object] = Recent(2)
    one, two = recent.get(1, object), recent.get(2, object)
    assert recent.get(1, object) is one
    recent.get(3, object)
    assert recent.get(1, object) is one
    assert recent.get(2, object) is not two


def test_threads_that_ask_at_once_get_the_same() -> None:
    recent: Recent[int, object] = Recent(1)
    with ThreadPoolExecutor(8) as threads:
        assert len(set(threads.map(lambda _: recent.get(1, object), range(64)))) == 1


def test_what_could_not_be_made_is_tried_again() -> None:
    recent: Recent[int, int] = Recent(1)
    with pytest.raises(ZeroDivisionError):
        recent.get(1, lambda: 1 // 0)
    assert recent.get(1, lambda: 5) == 5
