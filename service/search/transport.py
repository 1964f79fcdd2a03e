"""Whether needs can be met from the devices that each may use: a maximum flow, and what stands in its way."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from service.domain.deadline import Deadline
from service.search.rules import Flags


@dataclass(frozen=True, slots=True)
class Unmet:
    """Sources that need more than all the devices hold that any of them may use.

    Attributes:
        amount: how much more; the most that any set of sources lacks.
        sources: the set.
        devices: those that the set may use.
    """

    amount: int
    sources: tuple[int, ...]
    devices: tuple[int, ...]


def most_unmet(needs: Sequence[int], room: Sequence[int], allowed: Flags, deadline: Deadline) -> Unmet | None:
    """The set of sources that lacks most, however needs are divided among devices; None where all can be met.

    By the theorem of maximum flow and minimum cut (Ford and Fulkerson, 1956) the sources that still reach what is
    unmet, once no path is left that would meet more, are that set; with needs and rooms of one it is Hall's theorem.

    Args:
        needs: of each of N sources.
        room: of each of D devices.
        allowed: whether a device may meet a source's need; [N, D].
        deadline: None too where it passed first.
    """
    flow = _Flow(needs, room, allowed)
    for source in range(len(needs)):
        while flow.unmet[source] and flow.meet_more(source):
            if deadline.passed():
                return None
    if not any(flow.unmet):
        return None
    sources, devices = flow.reached([source for source, amount in enumerate(flow.unmet) if amount])
    return Unmet(sum(flow.unmet), tuple(sorted(sources)), tuple(sorted(devices)))


class _Flow:
    def __init__(self, needs: Sequence[int], room: Sequence[int], allowed: Flags) -> None:
        self.unmet = list(needs)
        self._room = list(room)
        self._devices = [[int(device) for device in row.nonzero()[0]] for row in allowed]
        self._met: list[dict[int, int]] = [{} for _ in room]  # For each device, what it meets of each source.

    def meet_more(self, source: int) -> bool:
        """Meets more of a source's need along a shortest augmenting path; False where there is none."""
        sources, devices = self.reached([source], until_room=True)
        end = next((device for device in reversed(devices) if self._room[device]), None)
        if end is None:
            return False
        path = []
        device: int | None = end
        while device is not None:
            by = devices[device]
            path.append((by, device, sources[by]))
            device = sources[by]
        held = [self._met[earlier][by] for by, _, earlier in path if earlier is not None]
        amount = min([self._room[end], self.unmet[source], *held])
        self._room[end] -= amount
        self.unmet[source] -= amount
        for by, device, earlier in path:
            self._met[device][by] = self._met[device].get(by, 0) + amount
            if earlier is not None:
                self._met[earlier][by] -= amount
        return True

    def reached(self, starts: Sequence[int], until_room: bool = False) -> tuple[dict[int, int | None], dict[int, int]]:
        """Sources and devices that changes reach from some sources, and from where they reach each of them."""
        sources: dict[int, int | None] = dict.fromkeys(starts)
        devices: dict[int, int] = {}
        queue = deque(starts)
        while queue:
            source = queue.popleft()
            for device in self._devices[source]:
                if device in devices:
                    continue
                devices[device] = source
                if until_room and self._room[device]:
                    return sources, devices
                for other, amount in self._met[device].items():
                    if amount and other not in sources:
                        sources[other] = device
                        queue.append(other)
        return sources, devices
