"""Problems as a remedy of a refusal would have them."""

import re
from dataclasses import replace

from service.domain.plan import Constraints, Problem, ShardingType


def applied(problem: Problem, remedy: str) -> Problem:
    """The problem with everything changed that the remedy says; fails where it says nothing that can be applied."""
    constraints = _changed_rules(problem.constraints, remedy)
    limits = list(problem.topology.memory_bytes)
    if each := re.search(r"\((\d+) bytes\) of memory on each", remedy):
        limits = [int(each[1])] * len(limits)
    elif more := re.search(r"\((\d+) bytes\) more memory on each device", remedy):
        limits = [limit + int(more[1]) for limit in limits]
    elif one := re.search(r"\((\d+) bytes\) of memory on a device, (\d+) bytes more", remedy):
        assert max(limits) + int(one[2]) == int(one[1])
        limits[limits.index(max(limits))] = int(one[1])
    elif count := re.match(r"(\d+) devices of", remedy):
        limits = limits[:1] * int(count[1])
    changed = replace(problem, constraints=constraints, topology=replace(problem.topology, memory_bytes=tuple(limits)))
    assert changed != problem, remedy
    return changed


def _changed_rules(constraints: Constraints, remedy: str) -> Constraints:
    if wide := re.search(r"a max_shard_dim of (\d+)", remedy):
        constraints = replace(constraints, max_shard_dim=int(wide[1]))
    if multiple := re.search(r"a column_multiple of (\d+)", remedy):
        constraints = replace(constraints, column_multiple=int(multiple[1]))
    if "allow column_wise" in remedy:
        constraints = replace(constraints, sharding_types=constraints.sharding_types | {ShardingType.COLUMN_WISE})
    if pinned := re.fullmatch(r"without the pin of (.*)", remedy):
        unpinned = pinned[1].split(", ")
        pin = {name: devices for name, devices in constraints.pin.items() if name not in unpinned}
        constraints = replace(constraints, pin=pin)
    if dropped := re.fullmatch(r"without (colocate|separate) (.*)", remedy):
        groups = [tuple(names.split(", ")) for names in re.findall(r"\[(.*?)\]", dropped[2])]
        kept = tuple(group for group in getattr(constraints, dropped[1]) if group not in groups)
        together = dropped[1] == "colocate"
        constraints = replace(constraints, colocate=kept) if together else replace(constraints, separate=kept)
    return constraints
