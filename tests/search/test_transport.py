"""What no division of needs among devices can meet, against all sets of sources."""

import itertools

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from service.domain.deadline import Deadline
from service.search.transport import most_unmet
from tests.examples import examples


@settings(max_examples=examples(300), deadline=None)
@given(data=st.data(), room=st.lists(st.integers(0, 9), min_size=1, max_size=5))
def test_the_set_that_lacks_most_is_found(data: st.DataObject, room: list[int]) -> None:
    needs = data.draw(st.lists(st.integers(0, 12), max_size=5))
    rows = st.lists(st.booleans(), min_size=len(room), max_size=len(room))
    allowed = np.array([data.draw(rows) for _ in needs], dtype=np.bool_).reshape(len(needs), len(room))

    def lacks(sources: tuple[int, ...]) -> int:
        devices = np.flatnonzero(allowed[list(sources)].any(axis=0))
        return sum(needs[source] for source in sources) - sum(room[device] for device in devices)

    sets = itertools.chain.from_iterable(itertools.combinations(range(len(needs)), n) for n in range(1, len(needs) + 1))
    most = max((lacks(sources) for sources in sets), default=0)
    unmet = most_unmet(needs, room, allowed, Deadline())
    if most <= 0:
        assert unmet is None
        return
    assert unmet is not None
    assert unmet.amount == most == lacks(unmet.sources)
    assert list(unmet.devices) == np.flatnonzero(allowed[list(unmet.sources)].any(axis=0)).tolist()


def test_a_passed_deadline_claims_nothing() -> None:
    allowed = np.ones((2, 2), dtype=np.bool_)
    assert most_unmet([5, 5], [3, 3], allowed, Deadline(at=0.0, clock=lambda: 1.0)) is None
