"""The lower bound against the cost of every plan of small problems, and of random plans of larger ones."""

import itertools
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.cost_models.analytic import AnalyticCommunication, AnalyticCompute
from service.cost_models.communication import CommunicationModel
from service.cost_models.compute import ComputeModel
from service.cost_models.data_sheets import DATA_SHEETS
from service.cost_models.features import FEATURES_VERSION
from service.domain.plan import Constraints, Problem, ShardingType, Slice
from service.domain.ports import CostModels
from service.domain.tables import Optimizer, Table
from service.domain.topology import Topology
from service.search.bound import lower_bound_ms
from service.search.catalogue import TICKS_PER_MS, Integers
from service.search.cuts import can_be_cut, even_widths
from service.search.rules import Rules
from service.search.simulator import simulate
from service.search.workspace import Workspace
from tests.cost_models.small_model import EXCHANGES, MEASURED, exchange_weights, weights
from tests.cost_models.test_calibrated import with_coefficients
from tests.examples import examples
from tests.fakes import fake_models
from tests.search.strategies import problems


def _models(kind: str, seed: int) -> CostModels:
    if kind == "fake":
        return fake_models()
    sheet = DATA_SHEETS["h100"]
    analytic = AnalyticCompute("h100/compute/analytic", sheet)
    if kind == "analytic":
        return CostModels(analytic, AnalyticCommunication("h100/communication/analytic", sheet))
    network = CommunicationModel("cpu-x/communication/1", exchange_weights(seed), EXCHANGES)
    if kind == "calibrated":
        return CostModels(with_coefficients(seed), network)
    return CostModels(ComputeModel("cpu-x/compute/1", weights(seed), FEATURES_VERSION, MEASURED), network)


KINDS = st.sampled_from(["fake", "analytic", "calibrated", "learned"])
MODELS = st.builds(_models, KINDS, st.integers(0, 99))


@st.composite
def constrained(draw: st.DrawFn) -> Problem:
    problem = draw(problems(max_tables=8))
    names, devices = [table.name for table in problem.tables], problem.topology.device_count
    some = st.lists(st.sampled_from(names), min_size=2, max_size=3, unique=True).map(tuple)
    groups = st.lists(some, max_size=1).map(tuple) if len(names) > 1 else st.just(())
    places = st.lists(st.integers(0, devices - 1), min_size=1, max_size=devices, unique=True).map(tuple)
    constraints = replace(
        problem.constraints,
        pin=draw(st.dictionaries(st.sampled_from(names), places, max_size=4)),
        colocate=draw(groups),
    )
    return replace(problem, constraints=constraints, topology=Topology("fake", (1 << 50,) * devices))


def _cheapest_ms(problem: Problem, models: CostModels, slices: list[Slice], placements: Integers) -> float:
    """Least cost of placements of slices; tables that are on one device together are one piece of the workspace."""
    space, rules = Workspace.of(problem, slices, models), Rules.of(problem)
    units = [rules.units[rules.unit_of[piece.table]] for piece in slices]
    pieces = [
        n
        for n, (unit, piece) in enumerate(zip(units, slices, strict=True))
        if len(unit) == 1 or (piece.table == unit[0] and piece.start == 0)
    ]
    return float(simulate(space, placements[:, pieces]).plan.min()) / TICKS_PER_MS


def _cuts(table: Table, constraints: Constraints) -> Iterator[tuple[int, ...]]:
    """All ways to cut a table, widths in order."""
    if ShardingType.TABLE_WISE in constraints.sharding_types:
        yield (table.embedding_dim,)
    multiple, dim = constraints.column_multiple, table.embedding_dim
    if ShardingType.COLUMN_WISE in constraints.sharding_types and dim % multiple == 0:
        for count in range(2, dim // multiple + 1):
            for inner in itertools.combinations(range(multiple, dim, multiple), count - 1):
                yield tuple(np.diff([0, *inner, dim]).tolist())


@settings(max_examples=examples(60), deadline=None)
@given(models=MODELS, problem=constrained(), data=st.data())
def test_no_plan_of_a_small_problem_costs_less(models: CostModels, problem: Problem, data: st.DataObject) -> None:
    dims = data.draw(st.lists(st.sampled_from([4, 8, 12, 16]), min_size=3, max_size=3))
    tables = tuple(table.sliced(dim) for table, dim in zip(problem.tables, dims, strict=False))
    devices = min(3, problem.topology.device_count)
    pins = {name: tuple(sorted({d % devices for d in places})) for name, places in problem.constraints.pin.items()}
    constraints = replace(problem.constraints, column_multiple=4, min_shard_dim=4, max_shard_dim=1024, pin=pins)
    problem = replace(problem, tables=tables, constraints=constraints, topology=Topology("fake", (1 << 50,) * devices))
    rules, bound = Rules.of(problem), lower_bound_ms(problem, models)
    for cut in itertools.product(*(list(_cuts(table, constraints)) or [(table.embedding_dim,)] for table in tables)):
        edges = [(i, *edge) for i, widths in enumerate(cut) for edge in itertools.pairwise(np.cumsum([0, *widths]))]
        slices = [Slice(i, int(start), int(stop)) for i, start, stop in edges]
        if len(slices) > 6:
            continue
        places = np.array(list(itertools.product(range(devices), repeat=len(slices))), dtype=np.int64)
        legal = np.ones(len(places), dtype=np.bool_)
        for n, piece in enumerate(slices):
            legal &= rules.allowed[rules.unit_of[piece.table]][places[:, n]]
            for m, other in enumerate(slices[:n]):
                unit = rules.unit_of[piece.table]
                if unit == rules.unit_of[other.table] and len(rules.units[unit]) > 1:
                    legal &= places[:, n] == places[:, m]
        if legal.any():
            assert bound <= _cheapest_ms(problem, models, slices, places[legal])


def _random_slices(problem: Problem, rng: np.random.Generator) -> list[Slice]:
    """Each table whole or cut somewhere, as far as that is allowed; uneven widths too."""
    constraints, slices = problem.constraints, []
    multiple = constraints.column_multiple
    narrowest, widest = -(-constraints.min_shard_dim // multiple), constraints.max_shard_dim // multiple
    for i, table in enumerate(problem.tables):
        dim, edges = table.embedding_dim, [0]
        if can_be_cut(constraints, dim):
            must = ShardingType.TABLE_WISE not in constraints.sharding_types or dim > constraints.max_shard_dim
            if must or rng.random() < 0.5:
                counts = [n for n in range(2, dim // multiple // narrowest + 1) if dim // multiple <= n * widest]
                edges = np.cumsum([0, *even_widths(dim, int(rng.choice(counts)), multiple)]).tolist()[:-1]
        slices += [Slice(i, start, stop) for start, stop in itertools.pairwise([*edges, dim])]
    return slices


@settings(max_examples=examples(150), deadline=None)
@given(models=MODELS, problem=constrained(), slack=st.sampled_from([1.0, 1.3, 1e9]), seed=st.integers(0, 999))
def test_no_random_plan_costs_less(models: CostModels, problem: Problem, slack: float, seed: int) -> None:
    rng, devices = np.random.default_rng(seed), problem.topology.device_count
    most = max(problem.memory_of(table).total for table in problem.tables)
    problem = replace(problem, topology=Topology("fake", (int(most * slack),) * devices))
    rules, bound = Rules.of(problem), lower_bound_ms(problem, models)
    for _ in range(4):
        slices = _random_slices(problem, rng)
        units = np.array([rules.unit_of[piece.table] for piece in slices])
        allowed = rules.allowed[units]
        if not allowed.any(axis=1).all():
            return
        placements = np.stack([rng.choice(devices, p=row / row.sum(), size=50) for row in allowed], axis=1)
        for unit, tables in enumerate(rules.units):
            if len(tables) > 1:
                placements[:, units == unit] = placements[:, units == unit][:, :1]
        sizes = [problem.memory_of(problem.tables[piece.table].sliced(piece.width)).total for piece in slices]
        used = (np.eye(devices, dtype=np.int64)[placements] * np.array(sizes)[None, :, None]).sum(axis=1)
        fits = (used <= np.array(problem.topology.memory_bytes)).all(axis=1)
        if fits.any():
            assert bound <= _cheapest_ms(problem, models, slices, placements[fits])


def _problem(tables: tuple[Table, ...], devices: int, **constraints: object) -> Problem:
    limits = Constraints(**constraints)  # type: ignore[arg-type]
    return Problem(tables, Topology("fake", (1 << 50,) * devices), 8192, Optimizer.SGD, limits)


def _tables(count: int, dim: int = 64) -> tuple[Table, ...]:
    return tuple(Table(f"t{i}", 10_000 * (i + 1), dim, 1.0 + i % 3) for i in range(count))


def _whole(problem: Problem) -> list[Slice]:
    return [Slice(i, 0, table.embedding_dim) for i, table in enumerate(problem.tables)]


def _of_placement(problem: Problem, models: CostModels, placement: list[int]) -> float:
    return _cheapest_ms(problem, models, _whole(problem), np.array([placement], dtype=np.int64))


@pytest.mark.parametrize("kind", ["fake", "analytic", "learned"])
def test_the_only_plan_of_one_device_costs_what_the_bound_says(kind: str) -> None:
    problem, models = _problem(_tables(6), 1), _models(kind, 0)
    assert lower_bound_ms(problem, models) == pytest.approx(_of_placement(problem, models, [0] * 6), rel=1e-4, abs=1e-3)


@pytest.mark.parametrize("kind", ["fake", "analytic", "learned"])
def test_tables_that_are_pinned_to_one_device_are_all_on_it(kind: str) -> None:
    models, tables = _models(kind, 0), _tables(8)
    free = _problem(tables, 4)
    pinned = replace(free, constraints=Constraints(pin={table.name: (2,) for table in tables[:6]}))
    together = models.compute.least_costs(tables, np.full((8, 1), 64), 8192, Optimizer.SGD).together([range(6)])
    exchange = models.communication.least_exchange(8 * 64, 4, 8192)
    assert lower_bound_ms(pinned, models) >= float(together[0]) + exchange - 1e-3
    assert lower_bound_ms(pinned, models) > 1.1 * lower_bound_ms(free, models)


@pytest.mark.parametrize("kind", ["fake", "analytic", "learned"])
def test_one_table_more_than_devices_puts_two_on_one_where_nothing_may_be_cut(kind: str) -> None:
    models, tables = _models(kind, 0), tuple(replace(_tables(1)[0], name=name) for name in "abcde")
    problem = _problem(tables, 4, sharding_types=frozenset({ShardingType.TABLE_WISE}))
    cost = models.compute.head(models.compute.encode(tables[:2], 8192, Optimizer.SGD).sum(axis=0)).sum()
    assert lower_bound_ms(problem, models) >= float(cost) * 0.999


def test_pairs_are_looked_at_on_some_devices_only_and_the_bound_holds_on_more() -> None:
    models, table = _models("learned", 0), replace(_tables(1)[0], num_embeddings=10**6, pooling_factor=30.0)
    whole = frozenset({ShardingType.TABLE_WISE})
    two = float(models.compute.head(models.compute.encode([table] * 2, 8192, Optimizer.SGD).sum(axis=0)).sum())
    bounds = {}
    for devices in (128, 129):
        tables = tuple(replace(table, name=f"t{i}") for i in range(devices + 1))
        problem = _problem(tables, devices, sharding_types=whole)
        bounds[devices] = lower_bound_ms(problem, models)
        assert bounds[devices] <= _of_placement(problem, models, [*range(devices), 0])
    assert bounds[129] < 0.999 * two <= bounds[128]


def test_equal_tables_on_all_devices_leave_only_the_exchange_unknown() -> None:
    problem, models = _problem(tuple(Table(f"t{i}", 50_000, 64, 3.0) for i in range(32)), 4), _models("learned", 1)
    plan = _of_placement(problem, models, [i % 4 for i in range(32)])
    widths = np.full(4, 512.0)
    even = models.communication.forward_transfer(widths, np.zeros(4), 8192) + models.communication.backward(
        widths, 8192
    )
    unknown = float(even[0]) - models.communication.least_exchange(2048, 4, 8192)
    assert plan - 1.01 * unknown <= lower_bound_ms(problem, models) * 1.01


def test_a_table_that_costs_more_than_its_share_decides() -> None:
    small = tuple(Table(f"s{i}", 1_000, 16, 0.1) for i in range(3))
    problem = _problem((Table("large", 10_000_000, 64, 40.0), *small), 4)
    models = _models("learned", 2)
    shared = models.compute.least_costs(problem.tables, np.array([[64]] + [[16]] * 3), 8192, Optimizer.SGD).shared(
        np.arange(4), np.zeros(4, dtype=np.int64), 4
    )
    assert lower_bound_ms(problem, models) > 1.2 * (shared + models.communication.least_exchange(112, 4, 8192))


def test_where_there_is_no_plan_the_bound_says_nothing() -> None:
    models = fake_models()
    nowhere = _problem(_tables(3), 4, pin={"t0": (0,)}, colocate=(("t0", "t1"),))
    contradicted = replace(nowhere, constraints=replace(nowhere.constraints, pin={"t0": (0,), "t1": (1,)}))
    too_large = replace(nowhere, topology=Topology("fake", (1_000,) * 4))
    assert lower_bound_ms(nowhere, models) > 0.0
    assert lower_bound_ms(contradicted, models) == lower_bound_ms(too_large, models) == 0.0
