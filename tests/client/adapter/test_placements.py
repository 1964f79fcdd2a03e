"""Our plans as TorchRec's, as its JSON, and back."""

import json
import random
from collections.abc import Iterator
from itertools import pairwise

import pytest
from torchrec.distributed.planner import ParameterConstraints
from torchrec.distributed.types import ParameterSharding, ShardingPlan

from shardwright_client import InvalidArgument, Shard
from shardwright_client.torchrec import (
    ModuleTable,
    NotModelled,
    find_tables,
    plan_from_json,
    plan_to_json,
    to_sharding_plan,
    to_shards,
)
from tests.client.adapter.models import Model, sharder

pytestmark = pytest.mark.filterwarnings("ignore")

RANKS = 12
LOCAL_RANKS = 8


@pytest.fixture(scope="module")
def tables() -> tuple[ModuleTable, ...]:
    return find_tables(Model("meta"), [sharder()])


def _random_shards(tables: tuple[ModuleTable, ...], seed: int) -> Iterator[Shard]:
    """Cuts of any widths that are multiples of 4, each on a device of its own."""
    draw = random.Random(seed)
    for table in tables:
        cuts = [column for column in range(4, table.embedding_dim, 4) if draw.random() < 0.3]
        ends = [0, *cuts, table.embedding_dim]
        kind = "column_wise" if cuts else "table_wise"
        for (first, last), device in zip(pairwise(ends), draw.sample(range(RANKS), len(cuts) + 1), strict=True):
            yield Shard(table.name, (first, last), device, kind)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("seed", range(10))
def test_a_plan_comes_back_from_torchrecs_json(tables: tuple[ModuleTable, ...], seed: int, device: str) -> None:
    shards = tuple(_random_shards(tables, seed))
    plan = to_sharding_plan(shards, tables, device, LOCAL_RANKS)
    text = plan_to_json(plan)
    assert json.loads(text) == json.loads(json.dumps(plan._serialize()))
    read = plan_from_json(text)
    assert read.plan == plan.plan
    assert to_shards(read, tables) == shards


def test_slices_of_a_rank_are_equally_wide(tables: tuple[ModuleTable, ...]) -> None:
    whole = [Shard(table.name, (0, table.embedding_dim), 3) for table in tables if table.name != "dog"]
    to_sharding_plan([*whole, Shard("dog", (0, 8), 1), Shard("dog", (8, 16), 1)], tables, "cpu", LOCAL_RANKS)
    to_sharding_plan([*whole, Shard("dog", (0, 12), 1), Shard("dog", (12, 16), 2)], tables, "cpu", LOCAL_RANKS)
    with pytest.raises(InvalidArgument, match=r"rank 1 has slices \[\[0, 12\], \[12, 16\]\] of table 'dog'.*: 16}"):
        to_sharding_plan([*whole, Shard("dog", (0, 12), 1), Shard("dog", (12, 16), 1)], tables, "cpu", LOCAL_RANKS)


def test_what_torchrec_is_told(tables: tuple[ModuleTable, ...]) -> None:
    shards = [
        *(Shard(table.name, (0, table.embedding_dim), 3) for table in tables if table.name != "dog"),
        Shard("dog", (4, 16), 9),
        Shard("dog", (0, 4), 1),
    ]
    rules = {"dog": ParameterConstraints(stochastic_rounding=True)}
    plan = to_sharding_plan(shards, tables, "cuda", LOCAL_RANKS, rules)
    assert {path: list(module) for path, module in plan.plan.items()} == {
        "first": ["cat", "dog", "cow"],
        "second.inner": ["cat"],
    }
    dog, cow = plan.plan["first"]["dog"], plan.plan["first"]["cow"]
    assert (dog.sharding_type, dog.compute_kernel, dog.ranks) == ("column_wise", "fused", [1, 9])
    assert [(piece.shard_offsets, piece.shard_sizes, str(piece.placement)) for piece in dog.sharding_spec.shards] == [
        ([0, 0], [30, 4], "rank:1/cuda:1"),
        ([0, 4], [30, 12], "rank:9/cuda:1"),
    ]
    assert (dog.stochastic_rounding, cow.stochastic_rounding) == (True, None)
    assert cow.ranks == [3]


def test_tables_of_a_module_have_one_type_so_that_they_are_exchanged_together(tables: tuple[ModuleTable, ...]) -> None:
    whole = [Shard(table.name, (0, table.embedding_dim), 0) for table in tables]
    cut = [*(shard for shard in whole if shard.table != "dog"), Shard("dog", (0, 4), 1), Shard("dog", (4, 16), 0)]
    types = [
        {path: {sharding.sharding_type for sharding in module.values()} for path, module in plan.plan.items()}
        for plan in (to_sharding_plan(shards, tables, "cpu", 2) for shards in (whole, cut))
    ]
    assert types == [
        {"first": {"table_wise"}, "second.inner": {"table_wise"}},
        {"first": {"column_wise"}, "second.inner": {"table_wise"}},
    ]


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ([(0, 8)], r"shards \[\[0, 8\]\] do not tile the 16 columns of table 'dog' of module 'first'"),
        ([(0, 8), (4, 16)], "do not tile"),
        ([(0, 8), (8, 8), (8, 16)], "do not tile"),
        ([], "do not tile"),
    ],
)
def test_shards_that_do_not_tile(tables: tuple[ModuleTable, ...], columns: list[tuple[int, int]], said: str) -> None:
    others = [Shard(table.name, (0, table.embedding_dim), 0) for table in tables if table.name != "dog"]
    with pytest.raises(InvalidArgument, match=said):
        to_sharding_plan([*others, *(Shard("dog", each, 0) for each in columns)], tables, "cpu", 2)


def _plan(tables: tuple[ModuleTable, ...]) -> ShardingPlan:
    return to_sharding_plan([Shard(table.name, (0, table.embedding_dim), 0) for table in tables], tables, "cpu", 2)


@pytest.mark.parametrize("kind", ["row_wise", "table_row_wise", "table_column_wise", "grid_shard", "data_parallel"])
def test_other_ways_of_sharding_are_refused(tables: tuple[ModuleTable, ...], kind: str) -> None:
    plan = _plan(tables)
    plan.plan["first"]["cow"] = ParameterSharding(kind, "dense", [0])
    with pytest.raises(NotModelled, match=f"table 'cow' of module 'first' is sharded {kind}: .*unsupported_sharding"):
        to_shards(plan, tables)


def test_weights_in_host_memory_are_refused(tables: tuple[ModuleTable, ...]) -> None:
    plan = _plan(tables)
    plan.plan["first"]["cow"].compute_kernel = "fused_uvm"
    with pytest.raises(NotModelled, match="table 'cow' of module 'first' has compute kernel fused_uvm"):
        to_shards(plan, tables)


def test_a_table_without_shards_is_refused(tables: tuple[ModuleTable, ...]) -> None:
    plan = _plan(tables)
    plan.plan["first"]["cow"].sharding_spec = None
    with pytest.raises(InvalidArgument, match="says table_wise of table 'cow' of module 'first', but not where"):
        to_shards(plan_from_json(plan_to_json(plan)), tables)


def test_plans_of_another_model_are_refused(tables: tuple[ModuleTable, ...]) -> None:
    with pytest.raises(InvalidArgument, match=r"the plan lacks table 'cat' of module 'second\.inner'"):
        to_shards(_plan(tables[:3]), tables)
    with pytest.raises(InvalidArgument, match=r"the model lacks table 'cat' of module 'second\.inner'"):
        to_shards(_plan(tables), tables[:3])
    with pytest.raises(InvalidArgument, match="the plan places table 'hen', which the model does not have"):
        to_sharding_plan([Shard("hen", (0, 16), 0)], tables, "cpu", 2)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "JSONDecodeError"),
        ("[]", "TypeError"),
        ('{"plan": {"m": {"t": {"sharding_type": "table_wise"}}}}', "table 't' of module 'm': KeyError"),
        (
            '{"plan": {"m": {"t": {"sharding_type": "a", "compute_kernel": "b", "ranks": [0], "shards": [{}]}}}}',
            "table 't' of module 'm': TypeError",
        ),
        (
            '{"plan": {"m": {"t": {"sharding_type": "a", "compute_kernel": "b", "ranks": [0], "shards": '
            '[{"shard_offsets": [0, 0], "shard_sizes": [1, 4], "placement": "rank:0/gpu"}]}}}}',
            "table 't' of module 'm': RuntimeError: Expected one of cpu",
        ),
    ],
)
def test_what_is_no_plan_is_refused(text: str, said: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        plan_from_json(text)
    assert "no serialized ShardingPlan" in str(caught.value)
    assert said in str(caught.value)
