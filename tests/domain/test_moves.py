"""What moves between two plans, column by column."""

from itertools import pairwise, permutations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.domain.memory import table_memory
from service.domain.moves import Columns, Move, held_before, moved_bytes, moves, tiled
from service.domain.plan import Problem, Running, Shard, tiling_faults
from service.domain.tables import DataType, Optimizer, Table
from service.domain.topology import Topology
from tests.examples import examples

ROWS = 100
STATE = {Optimizer.SGD: 0, Optimizer.ROWWISE_ADAGRAD: 4, Optimizer.ADAGRAD: 4, Optimizer.ADAM: 8}


def _table(name: str = "t", dim: int = 64, **changes: object) -> Table:
    return Table(name, ROWS, dim, 1.0, **changes)  # type: ignore[arg-type]


def _problem(*tables: Table, optimizer: Optimizer = Optimizer.SGD, devices: int = 4) -> Problem:
    return Problem(tables, Topology("fake", (1 << 30,) * devices), 512, optimizer)


@st.composite
def placements(draw: st.DrawFn, dim: int, devices: int) -> list[Columns]:
    """Columns of a table on devices, slices of a device next to each other or not."""
    cuts = sorted({0, dim, *draw(st.lists(st.integers(1, dim // 4 - 1).map(lambda n: 4 * n), max_size=6))})
    return [(a, b, draw(st.integers(0, devices - 1))) for a, b in pairwise(cuts)]


def _shards(name: str, columns: list[Columns]) -> list[Shard]:
    return [Shard(name, *placed) for placed in columns]


@settings(max_examples=examples(300), deadline=None)
@given(data=st.data(), optimizer=st.sampled_from(list(Optimizer)), precision=st.sampled_from(list(DataType)))
def test_moves_are_the_columns_that_change_their_device(
    data: st.DataObject, optimizer: Optimizer, precision: DataType
) -> None:
    table = _table(dim=data.draw(st.integers(2, 12)) * 4, data_type=precision)
    before = data.draw(placements(table.embedding_dim, 5))
    after = data.draw(placements(table.embedding_dim, 4))
    problem = _problem(table, optimizer=optimizer)
    made = moves(problem, Running((table,), tuple(_shards("t", before))), _shards("t", after))

    was, now = ({c: device for start, stop, device in held for c in range(start, stop)} for held in (before, after))
    wanted = {column: (was[column], now[column]) for column in was if was[column] != now[column]}
    assert {column: (m.origin, m.device) for m in made for column in range(m.start, m.stop)} == wanted
    assert sum(m.stop - m.start for m in made) == len(wanted)
    assert list(made) == sorted(made, key=lambda m: m.start)
    for one, other in pairwise(made):
        assert (one.stop, one.origin, one.device) != (other.start, other.origin, other.device)

    weights = len(wanted) * ROWS * precision.item_bytes
    if optimizer is Optimizer.ROWWISE_ADAGRAD:
        state = 4 * ROWS * len(set(now.values()) - set(was.values()))
    else:
        state = len(wanted) * ROWS * STATE[optimizer]
    assert moved_bytes(made) == weights + state


@settings(max_examples=examples(100), deadline=None)
@given(data=st.data(), optimizer=st.sampled_from(list(Optimizer)))
def test_a_plan_that_stays_moves_nothing(data: st.DataObject, optimizer: Optimizer) -> None:
    table = _table()
    shards = _shards("t", data.draw(placements(64, 4)))
    assert moves(_problem(table, optimizer=optimizer), Running((table,), tuple(shards)), shards) == ()


@pytest.mark.parametrize("optimizer", list(Optimizer))
def test_a_whole_table_that_moves_takes_its_memory_along(optimizer: Optimizer) -> None:
    table = _table()
    made = moves(
        _problem(table, optimizer=optimizer), Running((table,), (Shard("t", 0, 64, 0),)), [Shard("t", 0, 64, 1)]
    )
    size = table_memory(table, 512, optimizer, count_buffers=False).total
    assert made == (Move("t", 0, 64, 0, 1, size),)


def test_row_wise_state_comes_with_the_first_columns_and_to_none_that_has_it() -> None:
    table = _table(dim=16)
    running = Running((table,), (Shard("t", 0, 12, 0), Shard("t", 12, 16, 1)))
    shards = [Shard("t", 0, 4, 2), Shard("t", 4, 8, 1), Shard("t", 8, 16, 2)]
    made = moves(_problem(table, optimizer=Optimizer.ROWWISE_ADAGRAD), running, shards)
    columns = ROWS * 4 * 4
    assert made == (
        Move("t", 0, 4, 0, 2, columns + 4 * ROWS),
        Move("t", 4, 8, 0, 1, columns),
        Move("t", 8, 12, 0, 2, columns),
        Move("t", 12, 16, 1, 2, columns),
    )


def test_tables_come_in_the_order_of_the_problem() -> None:
    tables = _table("z"), _table("a")
    running = Running(tables, (Shard("a", 0, 64, 0), Shard("z", 0, 64, 0)))
    made = moves(_problem(*tables), running, [Shard("a", 0, 64, 1), Shard("z", 0, 64, 1)])
    assert [move.table for move in made] == ["z", "a"]


@pytest.mark.parametrize("changes", [{"num_embeddings": 99}, {"embedding_dim": 32}, {"data_type": DataType.FP16}])
def test_a_table_that_is_not_what_it_was_is_new(changes: dict[str, object]) -> None:
    asked = {"name": "t", "num_embeddings": ROWS, "embedding_dim": 64, "pooling_factor": 1.0}
    other = Table(**asked | changes)  # type: ignore[arg-type]
    running = Running((other, _table("gone")), (Shard("t", 0, other.embedding_dim, 0), Shard("gone", 0, 64, 0)))
    problem = _problem(_table(), _table("new"))
    assert held_before(problem, running) == {}
    assert moves(problem, running, [Shard("t", 0, 64, 1), Shard("new", 0, 64, 0)]) == ()


def test_a_table_that_is_looked_up_more_often_is_the_one_it_was() -> None:
    busier = Table("t", ROWS, 64, 9.0, num_features=2)
    assert held_before(_problem(busier), Running((_table(),), (Shard("t", 0, 64, 3),))) == {"t": [(0, 64, 3)]}


@st.composite
def wanted_widths(draw: st.DrawFn, dim: int, most: int) -> dict[int, list[int]]:
    columns = draw(placements(dim, most))
    widths: dict[int, list[int]] = {}
    for start, stop, device in columns:
        widths.setdefault(device, []).append(stop - start)
    return {device: widths[device] for device in draw(st.permutations(sorted(widths)))}


def _staying(before: list[Columns], after: list[Columns]) -> int:
    was = {(column, device) for start, stop, device in before for column in range(start, stop)}
    return len(was & {(column, device) for start, stop, device in after for column in range(start, stop)})


def _laid(widths: dict[int, list[int]], order: tuple[int, ...]) -> list[Columns]:
    ends, found = 0, []
    for device in order:
        for width in widths[device]:
            found.append((ends, ends + width, device))
            ends += width
    return found


@settings(max_examples=examples(300), deadline=None)
@given(data=st.data(), dim=st.integers(2, 20).map(lambda n: 4 * n))
def test_tiling_keeps_as_many_columns_as_any_order_of_devices_can(data: st.DataObject, dim: int) -> None:
    before = data.draw(st.one_of(placements(dim, 6), st.just([])))
    widths = data.draw(wanted_widths(dim, 5))
    found = tiled(before, widths)
    assert tiling_faults([_table(dim=dim)], 6, _shards("t", found)) == []
    assert {device: [b - a for a, b, d in found if d == device] for device in widths} == widths
    devices = [device for _, _, device in found]
    assert all(found[i][2] == found[i + 1][2] for i in range(len(found) - 1) if devices[i] in devices[i + 1 :])
    best = max(_staying(before, _laid(widths, order)) for order in permutations(widths))
    assert _staying(before, found) == best
    assert tiled(before, dict(sorted(widths.items()))) == found
    if not before:
        assert devices == sorted(devices)


def test_devices_without_columns_get_none() -> None:
    assert tiled([(0, 8, 1)], {0: [], 1: [4], 2: [4]}) == [(0, 4, 1), (4, 8, 2)]


@pytest.mark.parametrize("devices", [2, 5, 6, 40])
def test_what_is_laid_out_already_stays_with_any_number_of_devices(devices: int) -> None:
    before = [(8 * i, 8 * i + 8, 7 * i % devices) for i in range(devices)]
    assert tiled(before, {device: [8] for _, _, device in before}) == before


def test_more_devices_than_are_tried_in_every_order_keep_the_order_of_their_columns() -> None:
    before = [(8 * i, 8 * i + 8, device) for i, device in enumerate([3, 1, 6, 0, 2, 5])]
    widths = {device: [4] for device in range(7)} | {3: [24]}
    assert [device for _, _, device in tiled(before, widths)] == [3, 1, 6, 0, 2, 5, 4]
    assert [device for _, _, device in tiled([], widths)] == list(range(7))
