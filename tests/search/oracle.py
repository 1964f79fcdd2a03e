"""Slow and obvious versions of the searches and of pricing, one scalar at a time."""

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from service.domain.plan import Constraints, Problem, ShardingType, Slice
from service.domain.ports import CostModels
from service.domain.tables import Table


def ticks(milliseconds: float) -> int:
    return round(milliseconds * 10_000)


def compute_ticks(problem: Problem, models: CostModels, tables: Sequence[Table]) -> tuple[int, int]:
    """Forward and backward compute of one device."""
    if not tables:
        return 0, 0
    total = models.compute.encode(tables, problem.global_batch_size, problem.optimizer).astype(np.float64).sum(axis=0)
    forward, backward = models.compute.head(total.astype(np.float32))
    return ticks(forward), ticks(backward)


def device_parts(problem: Problem, models: CostModels, placement: Sequence[int]) -> list[dict[str, int]]:
    """Cost parts of each device where every table is whole."""
    devices = range(problem.topology.device_count)
    held = [[t for t, d in zip(problem.tables, placement, strict=True) if d == device] for device in devices]
    widths = np.array([float(sum(t.num_features * t.embedding_dim for t in tables)) for tables in held])
    parts = []
    for device in devices:
        forward, backward = compute_ticks(problem, models, held[device])
        back = 0
        if len(devices) > 1:
            back = ticks(models.communication.backward(widths, problem.global_batch_size)[device])
        parts.append({"forward": forward, "backward": backward, "backward_comm": back})
    starts = [part["forward"] + part["backward"] + part["backward_comm"] for part in parts]
    waits = np.array([max(starts) - start for start in starts]) / 10_000
    transfers = models.communication.forward_transfer(widths, waits, problem.global_batch_size)
    for part, start, transfer in zip(parts, starts, transfers, strict=True):
        part["wait"] = max(starts) - start
        part["transfer"] = ticks(transfer) if len(devices) > 1 else 0
        part["total"] = start + part["wait"] + part["transfer"]
    return parts


def plan_ticks(problem: Problem, models: CostModels, placement: Sequence[int]) -> int:
    return max(part["total"] for part in device_parts(problem, models, placement))


def place(
    problem: Problem,
    order: Sequence[int],
    load: Callable[[int, int, list[int]], float],
    cap: float = math.inf,
) -> list[int] | None:
    """Tables in order, each to the device with the least (load, memory used, index) among those that take it."""
    placement = [-1] * len(problem.tables)
    for i in order:
        options = []
        for device, limit in enumerate(problem.topology.memory_bytes):
            here = [j for j in range(len(placement)) if placement[j] == device]
            used = sum(problem.memory_of(problem.tables[j]).total for j in here)
            width = sum(problem.tables[j].output_width for j in here) + problem.tables[i].output_width
            if used + problem.memory_of(problem.tables[i]).total <= limit and width <= cap:
                options.append((load(i, device, here), used, device))
        if not options:
            return None
        placement[i] = min(options)[2]
    return placement


def greedy(problem: Problem, weight: Callable[[Table], float]) -> list[int] | None:
    weights = [weight(table) for table in problem.tables]
    memory = [problem.memory_of(table).total for table in problem.tables]
    order = sorted(range(len(weights)), key=lambda i: (-weights[i], -memory[i]))

    def load(i: int, device: int, here: list[int]) -> float:
        # Added in the order of placement, as a running sum would be.
        return 0.0 if weights[i] == 0 else sum(weights[j] for j in order if j in here)

    return place(problem, order, load)


def greedy_baselines(problem: Problem) -> list[list[int]]:
    weights: list[Callable[[Table], float]] = [
        lambda t: float(t.num_embeddings * t.embedding_dim),
        lambda t: float(t.embedding_dim),
        lambda t: t.embedding_dim * t.pooling_factor,
        lambda t: t.embedding_dim * t.pooling_factor * round(math.log10(t.num_embeddings), 9),
    ]
    found = [greedy(problem, weight) for weight in weights]
    return [placement for placement in found if placement is not None]


def neuroshard(problem: Problem, models: CostModels, packing: list[int] | None) -> list[int] | None:
    """The cheapest of the caps' and the heuristics' placements, the first of equals; None where none fits.

    ``packing`` is what a heuristic answers that finds no placement itself.
    """
    single = [sum(compute_ticks(problem, models, [table])) for table in problem.tables]
    memory = [problem.memory_of(table).total for table in problem.tables]
    order = sorted(range(len(single)), key=lambda i: (-single[i], -memory[i]))

    def load(i: int, device: int, here: list[int]) -> float:
        return sum(compute_ticks(problem, models, [problem.tables[j] for j in here]))

    total = sum(table.output_width for table in problem.tables)
    caps = [total * (20 + step) // (20 * problem.topology.device_count) for step in range(11)]
    grid = [place(problem, order, load, cap) for cap in [*caps, math.inf]]
    baselines = greedy_baselines(problem)
    candidates = [placement for placement in grid if placement is not None] + baselines
    if candidates and len(baselines) < 4 and packing is not None:
        candidates.append(packing)
    return min(candidates, key=lambda found: plan_ticks(problem, models, found), default=None)


State = list[tuple[int, int]]
"""Pieces of a way of cutting, as (table, width), by table and column."""


def inner(problem: Problem, models: CostModels, state: State) -> tuple[float, list[int], int]:
    """Cost of a way of cutting, every piece on its own, its placement, and the bytes that found no device."""
    tables = tuple(
        replace(problem.tables[table].sliced(width), name=f"piece {i}") for i, (table, width) in enumerate(state)
    )
    pieces = replace(problem, tables=tables)
    single = [sum(compute_ticks(pieces, models, [table])) for table in tables]
    memory = [pieces.memory_of(table).total for table in tables]
    order = sorted(range(len(single)), key=lambda i: (-single[i], -memory[i]))

    def load(i: int, device: int, here: list[int]) -> float:
        return sum(compute_ticks(pieces, models, [tables[j] for j in here]))

    total = sum(table.output_width for table in tables)
    caps = [total * (20 + step) // (20 * problem.topology.device_count) for step in range(11)]
    placements = [place(pieces, order, load, cap) for cap in [*caps, math.inf]]
    found = [(plan_ticks(pieces, models, p), p) for p in placements if p is not None]
    if found:
        cost, placement = min(found, key=lambda each: each[0])
        return cost, placement, 0
    return math.inf, [], missing_bytes(pieces, models, order)


def missing_bytes(pieces: Problem, models: CostModels, order: Sequence[int]) -> int:
    """Bytes that find no device where pieces go on being placed after one that did not fit, without a cap."""
    held: list[list[Table]] = [[] for _ in pieces.topology.memory_bytes]
    missing = 0
    for i in order:
        size = pieces.memory_of(pieces.tables[i]).total
        used = [sum(pieces.memory_of(t).total for t in tables) for tables in held]
        options = [
            (sum(compute_ticks(pieces, models, held[d])), used[d], d)
            for d, limit in enumerate(pieces.topology.memory_bytes)
            if used[d] + size <= limit
        ]
        if options:
            held[min(options)[2]].append(pieces.tables[i])
        else:
            missing += size
    return missing


def beam(
    problem: Problem, models: CostModels, beams: int, candidates: int, steps: int
) -> tuple[float, State, list[int]]:
    """The cheapest way of cutting that a beam search sees, its pieces and their devices."""
    states: list[State] = [[(i, table.embedding_dim) for i, table in enumerate(problem.tables)]]
    best: tuple[float, State, list[int]] = (math.inf, states[0], [])
    for _ in range(steps + 1):
        judged = [(inner(problem, models, state), state) for state in states]
        judged.sort(key=lambda each: (each[0][0], each[0][2]))
        (cost, placement, _), state = judged[0]
        if cost < best[0]:
            best = cost, state, placement
        seen: dict[tuple[tuple[int, int], ...], State] = {}
        for _, state in judged[:beams]:
            for position in halved_first(problem, models, state, candidates):
                table, width = state[position]
                half = [(table, width // 2)] * 2
                cut = [*state[:position], *half, *state[position + 1 :]]
                seen.setdefault(tuple(sorted(cut)), cut)
        states = list(seen.values())
        if not states:
            break
    return best


def halved_first(problem: Problem, models: CostModels, state: State, candidates: int) -> list[int]:
    """Positions of the largest and of the costliest pieces that may be halved, one of each kind of piece."""
    constraints = problem.constraints

    def may(width: int) -> bool:
        half = width // 2
        return width % 2 == 0 and half % constraints.column_multiple == 0 and half >= constraints.min_shard_dim

    kinds = [piece for piece in dict.fromkeys(state) if may(piece[1])]
    tables = {piece: problem.tables[piece[0]].sliced(piece[1]) for piece in kinds}
    by_size = sorted(kinds, key=lambda piece: -problem.memory_of(tables[piece]).total)[:candidates]
    by_cost = sorted(kinds, key=lambda piece: -sum(compute_ticks(problem, models, [tables[piece]])))[:candidates]
    return [state.index(piece) for piece in dict.fromkeys(by_size + by_cost)]


def packs(sizes: Sequence[int], limits: Sequence[int]) -> bool:
    """Whether any assignment fits, by trying all of them."""
    for assignment in itertools.product(range(len(limits)), repeat=len(sizes)):
        room = list(limits)
        for size, chosen in zip(sizes, assignment, strict=True):
            room[chosen] -= size
        if min(room) >= 0:
            return True
    return not sizes


def can_be_cut(constraints: Constraints, dim: int) -> bool:
    """Whether widths that slices may have add up to the dim, by trying all sums."""
    if ShardingType.COLUMN_WISE not in constraints.sharding_types:
        return False
    widths = [
        width
        for width in range(constraints.column_multiple, dim, constraints.column_multiple)
        if constraints.min_shard_dim <= width <= constraints.max_shard_dim
    ]
    sums = {0}
    for total in range(1, dim + 1):
        if any(total - width in sums for width in widths):
            sums.add(total)
    return dim in sums


def whole(problem: Problem) -> list[Slice]:
    return [Slice(i, 0, table.embedding_dim) for i, table in enumerate(problem.tables)]
