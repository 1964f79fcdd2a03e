"""What analytic prices of H100 come to, beside what is published: the figures of docs/decisions/0008.

Run: python -m benchmarks.data_sheet_prices
"""

import json
from pathlib import Path

import numpy as np

from service.cost_models.analytic import AnalyticCommunication, AnalyticCompute
from service.cost_models.data_sheets import DATA_SHEETS
from service.domain.deadline import Deadline
from service.domain.plan import Algorithm, Problem
from service.domain.ports import BACKWARD, FORWARD, CostModels, Floats
from service.domain.reuse import zipf_bins
from service.domain.tables import Optimizer, ReuseHistogram, Table
from service.domain.topology import Topology
from service.usecases.make_plan import make_plan

EXAMPLE = Path(__file__).resolve().parents[1] / "examples" / "mlperf_dlrm_dcnv2_h100.json"
SHEET = DATA_SHEETS["h100"]
COMPUTE = AnalyticCompute("h100/compute/analytic", SHEET)
COMMUNICATION = AnalyticCommunication("h100/communication/analytic", SHEET)
_NEVER_AGAIN = (1.0,) + (0.0,) * 16


def device_cost(tables: list[Table], batch_size: int) -> Floats:
    """Forward and backward compute of a device with these tables, milliseconds; [2]."""
    return COMPUTE.head(COMPUTE.encode(tables, batch_size, Optimizer.SGD).sum(axis=0))


def new_rows(dim: int, batch_size: int = 65_536, tables: int = 8, pooling: int = 20) -> None:
    """Prints the share of the memory's peak that forward reaches on rows that do not repeat, and backward's ratio."""
    histogram = ReuseHistogram(batch_size, _NEVER_AGAIN)
    held = [Table(f"t{i}", 10**8, dim, float(pooling), reuse_histogram=histogram) for i in range(tables)]
    cost = device_cost(held, batch_size)
    moved = tables * batch_size * (pooling + 1) * dim * 4
    share = moved / (cost[FORWARD] * 1e6) / SHEET.memory_gb_s.value
    ratio = cost[BACKWARD] / cost[FORWARD]
    print(f"rows of {4 * dim} bytes that do not repeat: {share:.0%} of the peak; backward / forward {ratio:.1f}")


def uniform_ids(dim: int, batch_size: int = 131_072, tables: int = 16, rows: int = 100_000, pooling: int = 10) -> None:
    """Prints forward of tables with uniform ids, together on a device and each alone with its cache."""
    distinct, by_bin = zipf_bins(rows, batch_size * pooling, exponent=0.0)
    histogram = ReuseHistogram(batch_size, tuple(by_bin / by_bin.sum()))
    held = [
        Table(f"t{i}", rows, dim, float(pooling), distinct_rows=distinct, reuse_histogram=histogram)
        for i in range(tables)
    ]
    together = device_cost(held, batch_size)[FORWARD]
    alone = sum(device_cost([table], batch_size)[FORWARD] for table in held)
    print(f"{tables} tables of {rows} rows, dim {dim}: forward {together:.2f} ms, each alone {alone:.2f} ms")


def exchange(size: int = 524_288_000, devices: int = 4, width: int = 128) -> None:
    """Prints the all-to-all that nccl-tests calls one of ``size`` bytes."""
    cost = COMMUNICATION.forward_transfer(np.full(devices, float(width)), np.zeros(devices), size // (4 * width))
    print(f"all-to-all of {size} bytes on {devices}: {cost.max():.2f} ms")


def example_plan() -> None:
    """Prints the cost of the slowest device of a plan for the example, and what the answer assumes."""
    request = json.loads(EXAMPLE.read_text())
    devices = request["devices"]
    problem = Problem(
        tables=tuple(Table(**table) for table in request["tables"]),
        topology=Topology(devices["hardware"], (devices["memory_bytes"],) * devices["count"]),
        global_batch_size=request["global_batch_size"],
        optimizer=Optimizer(request["optimizer"]),
    )
    plan = make_plan(problem, CostModels(COMPUTE, COMMUNICATION), Algorithm.NEUROSHARD, 0, Deadline())
    slowest = max((report.cost for report in plan.devices), key=lambda cost: cost.total)
    print(f"{EXAMPLE.name}: {plan.max_cost_ms:.2f} ms a step; the slowest device: {slowest}")
    for said in plan.assumptions:
        print(f"- {said}")


def main() -> None:
    """Prints a line for each figure."""
    for dim in (128, 64):
        new_rows(dim)
    exchange()
    for dim in (16, 32, 64, 128):
        uniform_ids(dim)
    example_plan()


if __name__ == "__main__":
    main()
