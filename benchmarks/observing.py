"""What PlanObserver costs a training step, beside the same steps without it.

Gloo ranks of one thread train one sharded EmbeddingBagCollection. Blocks of steps take turns: without an observer,
with one that measures a step of 50 (what it does unless told), and with one that measures every step. Each block ends
with a report, as do 1,000 steps unless told: it is posted to a client that answers at once, and waited for. Ratios are
of blocks of the same turn, so that drift of the machine hits all alike; those of the processor's time hold on a busy
machine too.
Run: PYTHONPATH=client OMP_NUM_THREADS=1 python -m benchmarks.observing [--turns N] [--steps N]
"""

import argparse
import os
import tempfile
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import numpy as np

from benchmarks.machine import command_line, machine_line
from service.profiling.ranks import run_ranks

Blocks = Mapping[str, Sequence[tuple[float, float]]]

RANKS = 2
BATCH_SIZE = 512
TABLES, ROWS, COLUMNS = 26, 100_000, 16
"""As many and as wide as DLRM has on the Criteo Kaggle data."""

EVERY: Mapping[str, int | None] = {"none": None, "1 of 50": 50, "every step": 1}
_PACKAGES = ("torch", "fbgemm_gpu-cpu", "torchrec")
_TIME_LIMIT_S = 600.0
_WARM_UP_STEPS = 20
_PLAN_ID = "0" * 32
_ANSWER = {"plan_id": _PLAN_ID, "observations": [], "summary": [], "stored": 1}


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=5, help="blocks of each kind (default: %(default)s)")
    parser.add_argument("--steps", type=int, default=1000, help="of a block (default: %(default)s)")
    options = parser.parse_args()
    print(f"{machine_line(_PACKAGES)}: {command_line('benchmarks.observing')}")
    print("\n".join(report(measured(options.turns, options.steps))))


def measured(turns: int, steps: int) -> Blocks:
    """A step's milliseconds on rank 0, passed and of the processor, of each block, by how often steps are measured."""
    with tempfile.TemporaryDirectory() as folder:
        blocks: Blocks = run_ranks(partial(_train, Path(folder), turns, steps), RANKS, _TIME_LIMIT_S)[0]
    return blocks


def report(blocks: Blocks) -> list[str]:
    """One line for each kind of block."""
    plain = np.array(blocks["none"])
    lines = []
    for name, of_blocks in blocks.items():
        ratios = np.array(of_blocks) / plain
        (_, low), (passed, cpu), (_, high) = np.quantile(ratios, [0.25, 0.5, 0.75], axis=0)
        step_ms, cpu_ms = np.median(of_blocks, axis=0)
        lines.append(
            f"measured {name}: {step_ms:.3f} ms a step, {passed:.3f} of unobserved; processor {cpu_ms:.3f} ms, "
            f"{cpu:.3f} (quartiles {low:.3f} to {high:.3f}, {len(of_blocks)} turns)"
        )
    return lines


def _train(folder: Path, turns: int, steps: int, rank: int) -> Blocks:
    import torch.distributed as dist

    warnings.simplefilter("ignore")
    os.environ["LOCAL_WORLD_SIZE"] = str(RANKS)
    store = dist.FileStore(str(folder / "store"), RANKS)  # type: ignore[attr-defined]
    dist.init_process_group("gloo", store=store, rank=rank, world_size=RANKS)
    model, step = _training(rank)
    _block(model, step, _WARM_UP_STEPS, None)
    blocks: dict[str, list[tuple[float, float]]] = {name: [] for name in EVERY}
    for turn in range(turns):
        for name in EVERY if turn % 2 else [*EVERY][::-1]:
            blocks[name].append(_block(model, step, steps, EVERY[name]))
    dist.destroy_process_group()
    return blocks


def _block(model: Any, step: Callable[[int], None], steps: int, every: int | None) -> tuple[float, float]:
    import torch.distributed as dist

    from shardwright_client import Client
    from shardwright_client.torchrec import PlanObserver

    plan = _plan() if every else None
    transport = httpx.MockTransport(lambda _: httpx.Response(201, json=_ANSWER))
    with Client("http://observed.test", transport=transport) as client:
        often = every or 1
        observer = PlanObserver(model, plan, client=client, sample_every=often, report_every=max(steps, often))
        dist.barrier()
        began, began_cpu = time.perf_counter(), time.process_time()
        for number in range(steps):
            step(number)
            observer.step()
        observer.close()
        passed, cpu = time.perf_counter() - began, time.process_time() - began_cpu
    return 1000 * passed / steps, 1000 * cpu / steps


def _plan() -> Any:
    """An answer that has the tables on the ranks in turn; what they cost is made up."""
    from shardwright_client import Costs, Device, Memory, Plan, Shard

    memory, costs = Memory(0, 0, 0, 0), Costs(0.0, 0.0, 0.0, 0.0, 0.0, 0.0)
    shards = tuple(Shard(f"t{i}", (0, COLUMNS), i % RANKS) for i in range(TABLES))
    devices = tuple(Device(rank, 1, memory, costs) for rank in range(RANKS))
    return Plan(_PLAN_ID, "complete", True, "auto", shards, devices, 1.0, {}, (), 1.0)


def _training(rank: int) -> tuple[Any, Callable[[int], None]]:
    """A sharded model, and what a step of its training does."""
    import torch
    from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
    from torchrec.distributed.model_parallel import DistributedModelParallel
    from torchrec.modules.embedding_configs import EmbeddingBagConfig
    from torchrec.modules.embedding_modules import EmbeddingBagCollection
    from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

    from shardwright_client.torchrec import find_tables, to_sharding_plan

    torch.set_num_threads(1)
    names = [f"t{i}" for i in range(TABLES)]
    configs = [
        EmbeddingBagConfig(name=name, num_embeddings=ROWS, embedding_dim=COLUMNS, feature_names=[name])
        for name in names
    ]
    whole, sharders = EmbeddingBagCollection(tables=configs), [EmbeddingBagCollectionSharder()]
    plan = to_sharding_plan(_plan().shards, find_tables(whole, sharders), "cpu", RANKS)
    model = DistributedModelParallel(whole, device=torch.device("cpu"), plan=plan, sharders=sharders)
    random = torch.Generator().manual_seed(rank)
    batches = [
        KeyedJaggedTensor.from_lengths_sync(
            names, torch.randint(ROWS, (TABLES * BATCH_SIZE,), generator=random), torch.ones(TABLES * BATCH_SIZE).int()
        )
        for _ in range(4)
    ]

    def step(number: int) -> None:
        pooled = model(batches[number % len(batches)]).values()
        (pooled - 1).square().mean().backward()

    return model, step


if __name__ == "__main__":
    main()
