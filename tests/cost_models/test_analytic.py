"""Analytic prices: figures that make sense, and costs that move as the bytes do."""

import re
from dataclasses import replace
from itertools import combinations
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.cost_models.analytic import (
    BACKWARD_TERMS,
    FORWARD_TERMS,
    AnalyticCommunication,
    AnalyticCompute,
    fingerprint,
)
from service.cost_models.analytic_work import (
    EMBEDDING_SIZE,
    GRADIENT_AGAIN,
    GRADIENT_FIRST,
    LOOKUPS,
    ROWS_AGAIN,
    ROWS_FIRST,
    TABLES,
)
from service.cost_models.assumptions import memory_assumptions, reuse_assumptions
from service.cost_models.data_sheets import ASSUMED, DATA_SHEETS, PROCESSORS, Figure, Link
from service.cost_models.operators import GPU_OPERATOR
from service.domain.ports import BACKWARD, FORWARD, Embeddings, Floats
from service.domain.tables import DataType, Optimizer, ReuseHistogram, Table
from service.domain.topology import HARDWARE_PATTERN, Topology
from service.search.catalogue import ticks

H100 = AnalyticCompute("h100/compute/analytic-2", DATA_SHEETS["h100"])
CPU = AnalyticCompute("cpu-fbgemm/compute/analytic-2", PROCESSORS["cpu-fbgemm"])
LINKS = AnalyticCommunication("h100/communication/analytic-2", DATA_SHEETS["h100"])
DGX_1 = {
    (0, 1): 1, (0, 2): 1, (0, 3): 2, (1, 2): 2, (1, 3): 1, (2, 3): 2, (0, 4): 2, (1, 5): 2, (2, 6): 1, (3, 7): 1,
    (4, 5): 1, (4, 6): 1, (4, 7): 2, (5, 6): 2, (5, 7): 1, (6, 7): 2,
}  # fmt: skip
"""NVLinks between the 8 GPUs of a DGX-1 V100, as ``nvidia-smi topo -m`` lists them."""

NEVER_AGAIN = (1.0,) + (0.0,) * 16
OFTEN = (0.0,) * 5 + (1.0,) + (0.0,) * 11
"""Every id 17 to 32 times."""

PROFILES = (NEVER_AGAIN, OFTEN, (0.5, 0.2, 0.1, 0.1, 0.05, 0.03, 0.01, 0.01) + (0.0,) * 9)
CUTS = st.lists(st.integers(1, 24), min_size=2, max_size=4)


def _model(hardware: str) -> AnalyticCompute:
    return AnalyticCompute(f"{hardware}/compute/analytic-2", DATA_SHEETS[hardware])


def _cost(
    tables: list[Table], batch_size: int, model: AnalyticCompute = H100, optimizer: Optimizer = Optimizer.SGD
) -> Floats:
    """Forward and backward compute of one device, milliseconds; [2]."""
    return model.head(model.encode(tables, batch_size, optimizer).astype(np.float64).sum(axis=0).astype(np.float32))


@st.composite
def tables(draw: st.DrawFn, most_rows: int = 40_000_000) -> Table:
    rows = [rows for rows in (1, 100, 5_000, 250_000, 40_000_000) if rows <= most_rows]
    histogram = draw(st.sampled_from([None, *(ReuseHistogram(8_192, shares) for shares in PROFILES)]))
    return Table(
        name="t",
        num_embeddings=draw(st.sampled_from(rows)),
        embedding_dim=4 * draw(st.integers(1, 80)),
        pooling_factor=draw(st.sampled_from([0.0, 0.5, 1.0, 3.7, 20.0, 100.0])),
        num_features=draw(st.integers(1, 3)),
        data_type=draw(st.sampled_from(list(DataType))),
        reuse_histogram=histogram,
    )


@st.composite
def sums(draw: st.DrawFn) -> Embeddings:
    """Work of a device as it might add up, bytes from none to far beyond any cache."""
    sizes = draw(
        st.lists(st.sampled_from([0.0, 1.0, 3e5, 2e7, 6e7, 4e9]), min_size=EMBEDDING_SIZE, max_size=EMBEDDING_SIZE)
    )
    work = np.array(sizes, dtype=np.float32)
    work[TABLES] = draw(st.integers(1, 9))
    return work


def test_bandwidths_grow_from_one_gpu_to_the_next() -> None:
    order = ["v100", "a100-40", "a100-80", "h100", "h200", "b200"]
    for figure in ("memory_gb_s", "memory_gb", "link_gb_s", "cache_mib"):
        values = [getattr(DATA_SHEETS[name], figure).value for name in order]
        assert values == sorted(values), figure
    speeds = [sheet.memory_gb_s.value for sheet in DATA_SHEETS.values()]
    assert len(set(speeds)) == len(speeds)
    assert min(speeds) == DATA_SHEETS["l4"].memory_gb_s.value
    assert min(sheet.link_gb_s.value for sheet in DATA_SHEETS.values()) == DATA_SHEETS["l4"].link_gb_s.value


@pytest.mark.parametrize("name", DATA_SHEETS)
def test_every_figure_is_positive_and_names_its_source(name: str) -> None:
    sheet = DATA_SHEETS[name]
    assert (sheet.hardware, bool(re.fullmatch(HARDWARE_PATTERN, name))) == (name, True)
    for figure in (sheet.memory_gb, sheet.memory_gb_s, sheet.cache_mib, sheet.link_gb_s, sheet.exchange_share):
        assert figure.value > 0
        assert re.search(r"https://|WP-\d+", figure.source)
    assert sheet.exchange_share.value < 1


@pytest.mark.parametrize(
    ("name", "links", "nccl_gb_s"),
    [("a100-40", 12, 20.0), ("a100-80", 12, 20.0), ("h100", 18, 20.6), ("b200", 18, 40.1)],
)
def test_links_reach_what_nccl_counts_with(name: str, links: int, nccl_gb_s: float) -> None:
    sheet = DATA_SHEETS[name]
    assert sheet.link is Link.NVLINK
    assert sheet.link_gb_s.value * sheet.exchange_share.value == pytest.approx(links * nccl_gb_s, rel=0.03)


def test_exchanges_of_v100_run_at_the_narrowest_cut_of_a_dgx_1() -> None:
    assert all(sum(links for pair, links in DGX_1.items() if gpu in pair) == 6 for gpu in range(8))
    cuts = [set(half) for size in range(1, 5) for half in combinations(range(8), size)]
    links = [sum(n for (a, b), n in DGX_1.items() if (a in half) != (b in half)) for half in cuts]
    messages = [len(half) * (8 - len(half)) for half in cuts]
    slowest = max(sent / (over * 20.0) for sent, over in zip(messages, links, strict=True))
    model = AnalyticCommunication("v", DATA_SHEETS["v100"])
    found = model.forward_transfer(np.full(8, 128.0), np.zeros(8), 2**20) - ASSUMED.exchange_latency_ms
    message_gb = 128 * 4 * 2**20 / 8 / 1e9
    assert found == pytest.approx(np.full(8, slowest * message_gb * 1e3))


def test_exchanges_of_l4_run_as_fast_as_measured_through_the_memory_of_the_host() -> None:
    model = AnalyticCommunication("v", DATA_SHEETS["l4"])
    found = model.backward(np.full(4, 128.0), 2**20) - ASSUMED.exchange_latency_ms
    assert found == pytest.approx(np.full(4, 3 / 4 * 128 * 4 * 2**20 / 18e6))


def test_a_device_without_tables_costs_nothing() -> None:
    assert H100.head(np.zeros((4, EMBEDDING_SIZE), dtype=np.float32)).tolist() == [[0.0, 0.0]] * 4


def test_the_bytes_of_one_table_add_up_to_its_cost() -> None:
    lookups = bags = 65_536
    table = Table("t", 10**9, 128, 1.0, reuse_histogram=ReuseHistogram(bags, NEVER_AGAIN))
    row, rate = 512, 3350e6 * 0.75
    forward = lookups * (row + 64 + 8) + bags * (8 + 512)
    backward = lookups * ((512 + 64) * 2 + 132) + bags * 8 + 2 * lookups * row
    assert _cost([table], bags) == pytest.approx([3 * 0.005 + forward / rate, 15 * 0.005 + backward / rate], rel=1e-6)


def test_half_precision_moves_half_the_weights_but_as_many_gradients() -> None:
    full = Table("t", 10**9, 128, 30.0, reuse_histogram=ReuseHistogram(65_536, NEVER_AGAIN))
    half = replace(full, data_type=DataType.FP16)
    work, less = H100.encode([full, half], 65_536, Optimizer.SGD)
    assert less[ROWS_FIRST].sum() == work[ROWS_FIRST].sum() / 2
    assert less[GRADIENT_FIRST] == work[GRADIENT_FIRST]


@given(work=sums(), more=sums())
def test_more_work_of_any_kind_never_costs_less(work: Embeddings, more: Embeddings) -> None:
    both = (work.astype(np.float64) + more).astype(np.float32)
    assert (H100.head(both) >= H100.head(work) * (1 - 1e-9)).all()


@given(work=sums(), more=sums())
def test_no_part_of_a_price_gets_smaller_with_more_work(work: Embeddings, more: Embeddings) -> None:
    both = (work.astype(np.float64) + more).astype(np.float32)
    for less, greater in zip(CPU.terms(work), CPU.terms(both), strict=True):
        assert (greater >= less * (1 - 1e-6) - 1e-9 * less.sum()).all()


@settings(deadline=None)
@given(table=tables(), others=st.lists(tables(), max_size=3), wider=st.integers(1, 40))
def test_wider_and_additional_tables_never_cost_less(table: Table, others: list[Table], wider: int) -> None:
    cost = _cost([*others, table], 8_192)
    assert (_cost([*others, table.sliced(table.embedding_dim + 4 * wider)], 8_192) >= cost * (1 - 1e-6)).all()
    if others:
        assert (cost >= _cost(others, 8_192) * (1 - 1e-6)).all()


@settings(deadline=None)
@given(table=tables(), factor=st.sampled_from([1.3, 2.0, 10.0]))
def test_more_lookups_never_cost_less(table: Table, factor: float) -> None:
    """With the same reuse: profiles at other batch sizes are approximations that are not monotone to the last bit."""
    more = replace(table, pooling_factor=table.pooling_factor * factor)
    assert (_cost([more], 8_192) >= _cost([table], 8_192) * 0.99).all()
    assert (_cost([table], int(8_192 * factor)) >= _cost([table], 8_192) * 0.99).all()


@settings(deadline=None)
@given(table=tables(), widths=CUTS)
def test_slices_on_the_device_of_the_table_never_cost_less_than_it(table: Table, widths: list[int]) -> None:
    slices = [table.sliced(4 * width) for width in widths]
    whole = table.sliced(4 * sum(widths))
    assert (_cost(slices, 8_192) >= _cost([whole], 8_192) * (1 - 1e-6)).all()


@settings(deadline=None)
@given(table=tables(most_rows=5_000), widths=CUTS)
def test_slices_of_what_the_cache_holds_cost_more_together_than_the_table(table: Table, widths: list[int]) -> None:
    """On devices of their own too: each repeats the index work, and the launches."""
    whole = table.sliced(4 * sum(widths))
    apart = sum((_cost([table.sliced(4 * width)], 1_024) for width in widths), np.zeros(2))
    assert (apart > _cost([whole], 1_024)).all()


def test_a_slice_narrower_than_a_sector_reads_a_whole_one() -> None:
    four, eight, sixteen = H100.encode([Table("t", 10**6, dim, 2.0) for dim in (4, 8, 16)], 8_192, Optimizer.SGD)
    rows = slice(ROWS_FIRST.start, ROWS_AGAIN.stop)
    assert np.array_equal(four[rows], eight[rows])
    assert sixteen[rows].sum() == pytest.approx(2 * eight[rows].sum())


def test_doubling_the_lookups_of_a_cached_table_less_than_doubles_its_cost() -> None:
    once, twice = (_cost([Table("t", 20_000, 128, pooling)], 65_536) for pooling in (10.0, 20.0))
    assert (once < twice).all()
    assert (twice < 2 * once).all()


def test_rows_that_are_read_again_cost_less_than_new_ones() -> None:
    again, new = (Table("t", 10**8, 128, 20.0, reuse_histogram=ReuseHistogram(8_192, p)) for p in (OFTEN, NEVER_AGAIN))
    assert _cost([again], 8_192)[FORWARD] < 0.8 * _cost([new], 8_192)[FORWARD]


def test_tables_share_the_cache_of_their_device() -> None:
    often = ReuseHistogram(65_536, OFTEN)
    table = Table("t", 10**6, 200, 20.0, distinct_rows=55_000.0, reuse_histogram=often)
    assert 0.5 < 55_000 * table.row_bytes / (DATA_SHEETS["h100"].cache_mib.value * 2**20) < 1
    launches = GPU_OPERATOR.forward_kernels * GPU_OPERATOR.launch_ms
    alone, together = _cost([table], 65_536)[FORWARD], _cost([table, table], 65_536)[FORWARD]
    assert together + launches > 1.1 * (2 * alone)


def test_the_cache_keeps_what_is_read_most_often() -> None:
    sheet = replace(DATA_SHEETS["h100"], cache_mib=Figure(75 / 2**20, "75 bytes"))
    model = AnalyticCompute("v", sheet)
    work = np.zeros(EMBEDDING_SIZE, dtype=np.float32)
    work[TABLES] = 1
    empty = model.head(work)[FORWARD]
    work[ROWS_FIRST] = [100, 0, 50, *[0] * 14]
    work[ROWS_AGAIN] = [40, 0, 400, *[0] * 14]
    hits = 400 + 40 * 25 / 100
    wanted = 100 + 50 + (40 + 400 - hits) + hits / GPU_OPERATOR.cache_speedup
    rate = sheet.memory_gb_s.value * 1e6 * GPU_OPERATOR.memory_share
    assert (model.head(work)[FORWARD] - empty) * rate == pytest.approx(wanted)


def test_gradients_are_read_once_for_each_lookup_of_their_bag() -> None:
    (work,) = H100.encode([Table("t", 1_000, 32, 20.0)], 100, Optimizer.SGD)
    assert (work[LOOKUPS], work[GRADIENT_FIRST], work[GRADIENT_AGAIN]) == (2_000, 100 * 128, 1_900 * 128)
    (seldom,) = H100.encode([Table("t", 1_000, 32, 0.25)], 100, Optimizer.SGD)
    assert (seldom[GRADIENT_FIRST], seldom[GRADIENT_AGAIN]) == (25 * 128, 0)


@settings(deadline=None)
@given(held=st.lists(tables(), min_size=1, max_size=4), batch_size=st.sampled_from([64, 8_192, 65_536]))
def test_a_gpu_that_is_better_in_all_figures_is_never_slower(held: list[Table], batch_size: int) -> None:
    costs = [_cost(held, batch_size, _model(name)) for name in ("v100", "a100-40", "a100-80", "h100", "h200", "b200")]
    assert (np.diff(costs, axis=0) <= 0).all()


@pytest.mark.parametrize("name", DATA_SHEETS)
def test_costs_of_extreme_tables_are_finite_and_fit_a_search(name: str) -> None:
    extreme = [
        Table("huge", 2**40, 2**16, 1e6, num_features=10_000),
        Table("tiny", 1, 4, 1e-9, data_type=DataType.FP16),
        Table("none", 2**40, 2**16, 0.0),
        Table("one", 1, 4, 1e6, reuse_histogram=ReuseHistogram(1, NEVER_AGAIN)),
        Table("odd", 3, 4, 5.0, reuse_histogram=ReuseHistogram(64, (0.0,) * 16 + (1.0,))),
    ]
    model = _model(name)
    for batch_size in (1, 2**24):
        embeddings = model.encode(extreme, batch_size, Optimizer.SGD)
        assert np.isfinite(embeddings).all()
        assert (embeddings >= 0).all()
        assert (ticks(model.head(embeddings)) > 0).all()


@pytest.mark.parametrize("histogram", [None, ReuseHistogram(65_536, NEVER_AGAIN)])
def test_backward_takes_two_to_five_times_as_long_as_forward(histogram: ReuseHistogram | None) -> None:
    # Published: 2 (TorchRec's planner, planner/constants.py) and 10.66 / 2.25 ms (TorchRec, pull request 4757).
    cost = _cost([Table("t", 10**8, 128, 20.0, reuse_histogram=histogram)] * 8, 65_536)
    assert 2 < cost[BACKWARD] / cost[FORWARD] < 5


def test_one_device_exchanges_nothing() -> None:
    assert LINKS.forward_transfer(np.array([64.0]), np.zeros(1), 1_024).tolist() == [0.0]
    assert LINKS.assumptions(np.ones(1), np.zeros(1), 8_192) == []


def test_an_exchange_is_priced_near_a_published_measurement() -> None:
    # nccl-tests' alltoall_perf of 524,288,000 bytes on 4 H100 SXM: 1,174 microseconds (NVIDIA/nccl, issue 2169).
    widths, batch_size = np.full(4, 128.0), 1_024_000
    assert widths[0] * batch_size * 4 == 524_288_000
    found = LINKS.forward_transfer(widths, np.zeros_like(widths), batch_size)
    assert found == pytest.approx(np.full(4, 1.174), rel=0.1)
    assert LINKS.backward(widths, batch_size) == pytest.approx(found)


@given(widths=st.lists(st.integers(0, 5_000), min_size=2, max_size=16), more=st.integers(1, 500))
def test_more_columns_never_make_an_exchange_cheaper(widths: list[int], more: int) -> None:
    held = np.array(widths, dtype=np.float64)
    cost, wider = LINKS.backward(held, 8_192), LINKS.backward(held + more, 8_192)
    assert (cost >= ASSUMED.exchange_latency_ms).all()
    assert (wider >= cost).all()


def test_what_was_assumed_is_said() -> None:
    held = [Table("plain", 1_000, 64, 1.0), Table("b", 10**6, 64, 1.0)]
    said = H100.assumptions(held, 8_192, Optimizer.ADAGRAD)
    for fragment in ("h100 was not measured", "analytic", "data sheet", "SXM5 80 GB", "--device cuda --hardware h100"):
        assert fragment in said[0]
    assert "shardwright train compute --hardware h100" in said[0]
    assert "--from-analytic" in said[0]
    assert said[1] == "intervals of analytic compute are assumed, not measured: a factor of 2 either way at 90%"
    assert said[2:] == reuse_assumptions(held, 8_192)


@pytest.mark.parametrize(
    ("optimizer", "dim", "state_bytes"),
    [
        (Optimizer.SGD, 128, 0),
        (Optimizer.ROWWISE_ADAGRAD, 128, 32),
        (Optimizer.ADAGRAD, 128, 512),
        (Optimizer.ADAM, 128, 1_024),
        (Optimizer.ADAM, 4, 64),
    ],
)
def test_the_state_of_the_optimizer_is_read_and_written_once_for_each_row(
    optimizer: Optimizer, dim: int, state_bytes: int
) -> None:
    lookups, rate = 2**20, 3350e6 * 0.75
    held = [Table(name, 10**9, dim, 1.0, reuse_histogram=ReuseHistogram(lookups, NEVER_AGAIN)) for name in ("a", "b")]
    added = _cost(held, lookups, optimizer=optimizer) - _cost(held, lookups)
    assert added == pytest.approx([0.0, 2 * 2 * lookups * state_bytes / rate], rel=1e-6)


def test_nothing_measured_is_infinitely_new() -> None:
    held = [Table("a", 1_000, 64, 1.0), Table("b", 10**6, 64, 1.0)]
    assert H100.novelty(held, 8_192, Optimizer.SGD).tolist() == [np.inf, np.inf]
    assert H100.novelty([], 8_192, Optimizer.SGD).shape == (0,)


def test_nine_of_ten_costs_are_assumed_to_be_within_a_factor_of_two() -> None:
    held = [[Table("a", 1_000, 64, 1.0)], []]
    costs = np.array([[1.0, 2.0], [0.0, 0.0]])
    laws = {3: H100.errors(costs, held, 8_192, Optimizer.SGD), 2: LINKS.errors(costs, np.ones(2), 8_192)}
    for kinds, law in laws.items():
        assert law.scales.shape == (2, kinds)
        assert law.quantiles.shape[0] == kinds
        assert law.shared == ASSUMED.error_shared
        assert (np.diff(law.quantiles) > 0).all()
        for device, cost in np.ndindex(2, kinds):
            low, high = np.exp(law.scales[device, cost] * np.quantile(law.quantiles[cost], [0.05, 0.95]))
            assert (low, high) == pytest.approx((0.5, 2.0), rel=0.01)


def test_the_parts_of_a_price_add_up_to_it() -> None:
    held = [Table("a", 10**6, 64, 20.0), Table("b", 500, 8, 3.0, data_type=DataType.FP16)]
    sums = H100.encode(held, 8_192, Optimizer.ADAM).sum(axis=0)
    forward, backward = H100.terms(sums)
    assert (len(forward), len(backward)) == (len(FORWARD_TERMS), len(BACKWARD_TERMS))
    assert H100.head(sums) == pytest.approx([forward.sum(), backward.sum()])
    assert forward[FORWARD_TERMS.index("launches")] == pytest.approx(3 * 0.005)
    assert backward[BACKWARD_TERMS.index("optimizer state")] > 0


def test_a_thread_of_a_processor_is_priced_in_cache_lines_and_far_slower_than_a_gpu() -> None:
    narrow, line = CPU.encode([Table("t", 10**6, dim, 2.0) for dim in (4, 16)], 8_192, Optimizer.SGD)
    rows = slice(ROWS_FIRST.start, ROWS_AGAIN.stop)
    assert np.array_equal(narrow[rows], line[rows])
    held = [Table("t", 10**7, 128, 20.0)] * 4
    assert (_cost(held, 65_536, CPU) > 20 * _cost(held, 65_536)).all()
    said = CPU.assumptions(held, 65_536, Optimizer.SGD)
    assert "--device cpu --hardware cpu-fbgemm" in said[0]
    assert "one thread of a server processor" in said[0]


def test_memory_beyond_what_the_data_sheet_prints_is_said() -> None:
    (said,) = memory_assumptions(Topology("h100", (72 * 2**30, 80 * 2**30)))
    for fragment in ("85899345920", "85.9 GB", "H100 SXM5", "80 GB"):
        assert fragment in said
    assert memory_assumptions(Topology("h100", (80 * 10**9, 72 * 2**30))) == []
    assert memory_assumptions(Topology("cpu-fbgemm", (2**50,))) == []


def test_devices_beyond_a_host_are_said_to_be_priced_as_one() -> None:
    near, intervals = LINKS.assumptions(np.ones(8), np.zeros(8), 8_192)
    assert "analytic" in near
    assert "exchanges are assumed, not measured" in intervals
    assert "shardwright train communication --hardware h100" in near
    *first, far = LINKS.assumptions(np.ones(16), np.zeros(16), 8_192)
    assert first == [near, intervals]
    assert "16 devices" in far
    assert "NVLink" in far


@pytest.mark.parametrize(("name", "fragment"), [("v100", "DGX-1, which has no switch"), ("l4", "memory of the host")])
def test_hosts_whose_links_are_no_crossbar_are_named(name: str, fragment: str) -> None:
    model = AnalyticCommunication("v", DATA_SHEETS[name])
    assert model.assumptions(np.ones(1), np.zeros(1), 8_192) == []
    first, _, said = model.assumptions(np.ones(2), np.zeros(2), 8_192)
    assert f"exchanges of {name} were not measured" in first
    assert said.startswith(f"exchanges of {name} are priced as ")
    assert fragment in said


def test_another_figure_is_another_fingerprint() -> None:
    sheet = DATA_SHEETS["h100"]
    prints = {fingerprint(known) for known in PROCESSORS.values()}
    assert len(prints) == len(PROCESSORS)
    other = Figure(1.0, "made up")
    for figure in ("memory_gb_s", "cache_mib", "link_gb_s", "exchange_share"):
        changed: dict[str, Any] = {figure: other}
        assert fingerprint(replace(sheet, **changed)) not in prints
    slower = replace(sheet.operator, launch_ms=0.01)
    assert fingerprint(replace(sheet, operator=slower)) not in prints
    assert fingerprint(replace(sheet, product="another name")) == fingerprint(sheet)


@pytest.mark.parametrize("assumed", ["exchange_latency_ms", "error_factor", "error_shared"])
def test_another_assumption_is_another_fingerprint(monkeypatch: pytest.MonkeyPatch, assumed: str) -> None:
    before = fingerprint(DATA_SHEETS["h100"])
    changed: dict[str, Any] = {assumed: 0.5}
    monkeypatch.setattr("service.cost_models.analytic.ASSUMED", replace(ASSUMED, **changed))
    assert fingerprint(DATA_SHEETS["h100"]) != before
