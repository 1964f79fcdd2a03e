"""The buffer of shards keeps the newest, and says what it was told of each."""

import numpy as np
import pytest

from service.training.ring_buffer import RingBuffer


def _filled(capacity: int, count: int) -> RingBuffer:
    buffer = RingBuffer(capacity)
    for i in range(count):
        buffer.add(np.arange(i % 4) + 10 * i, float(i), i + 0.5, i % 3)
    return buffer


def test_the_newest_shards_are_kept() -> None:
    buffer = _filled(5, 13)
    assert len(buffer) == 5
    drawn = buffer.sample(500, np.random.default_rng(0))
    assert set(drawn.costs.tolist()) == {8, 9, 10, 11, 12}


def test_what_is_drawn_is_what_was_added() -> None:
    drawn = _filled(8, 6).sample(100, np.random.default_rng(1))
    parts = np.split(drawn.tables, np.cumsum(drawn.counts)[:-1])
    assert len(parts) == len(drawn.costs) == 100
    for tables, cost in zip(parts, drawn.costs, strict=True):
        assert tables.tolist() == (np.arange(cost % 4) + 10 * cost).tolist()
    assert drawn.means.tolist() == (drawn.costs + 0.5).tolist()
    assert drawn.settings.tolist() == (drawn.costs % 3).tolist()


@pytest.mark.parametrize("count", [0, 1, 3, 5, 7, 12])
def test_a_restored_buffer_goes_on_as_if_it_were_the_same(count: int) -> None:
    buffer, other = _filled(5, count), RingBuffer(5)
    other.restore(buffer.state())
    for each in (buffer, other):
        each.add(np.array([1, 2]), 0.5, 1.0, 4)
        each.add(np.zeros(0, dtype=np.int64), 0.25, 2.0, 0)
    one, same = (each.sample(64, np.random.default_rng(2)) for each in (buffer, other))
    assert one.tables.tolist() == same.tables.tolist()
    assert one.counts.tolist() == same.counts.tolist()
    assert one.costs.tolist() == same.costs.tolist()
    assert one.means.tolist() == same.means.tolist()
    assert one.settings.tolist() == same.settings.tolist()


def test_nothing_is_drawn_from_nothing() -> None:
    with pytest.raises(ValueError, match="empty buffer"):
        RingBuffer(3).sample(1, np.random.default_rng(0))
    with pytest.raises(ValueError, match="capacity is 0"):
        RingBuffer(0)
