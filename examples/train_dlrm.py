"""Trains a small DLRM on generated data like Criteo's, its tables where a Shardwright service says.

    torchrun --standalone --nproc-per-node 2 examples/train_dlrm.py --url http://localhost:8000

Runs on CPU ranks of one thread each; needs `shardwright-client` and torchrec, see README.md here. Rank 0 writes two
JSON objects, one a line: who planned the tables, then how training went. `--planner torchrec` has TorchRec's own
planner plan them.
"""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from fbgemm_gpu.split_embedding_configs import EmbOptimType
from torch import nn
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.model_parallel import DistributedModelParallel
from torchrec.distributed.planner import EmbeddingShardingPlanner, ParameterConstraints, Topology
from torchrec.models.dlrm import DLRM
from torchrec.modules.embedding_configs import EmbeddingBagConfig
from torchrec.modules.embedding_modules import EmbeddingBagCollection
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from shardwright_client import Client
from shardwright_client.torchrec import PlanObserver, ShardwrightPlanner

DENSE_FEATURES = 13
ZIPF_EXPONENT = 1.05
SAMPLE_BATCHES = 4


@dataclass(frozen=True)
class Batch:
    """What a rank trains on in a step."""

    dense: torch.Tensor
    sparse: KeyedJaggedTensor
    labels: torch.Tensor


def main() -> None:
    """Plans, trains and reports."""
    options = _options()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    tables = _tables(options.tables, options.max_rows)
    sharders = [EmbeddingBagCollectionSharder(fused_params=_fused_params(options.learning_rate, tables))]
    meta = _dlrm(tables, "meta")
    planner = _planner(options, tables)
    started = time.perf_counter()
    plan = planner.collective_plan(meta, sharders, dist.group.WORLD)
    answer = getattr(planner, "answer", None)
    _tell(
        planner="shardwright" if answer else "torchrec",
        plan_id=answer and answer.plan_id,
        predicted_ms=answer and round(answer.max_cost_ms, 3),
        planning_s=round(time.perf_counter() - started, 3),
    )
    torch.manual_seed(options.seed)
    model = DistributedModelParallel(meta, device=torch.device("cpu"), plan=plan, sharders=sharders)
    launch_id = getattr(planner, "launch_id", None)
    with PlanObserver(
        model,
        answer,
        launch_id=launch_id,
        client=_client(options),
        sample_every=min(10, options.steps),
        report_every=options.steps,
    ) as observer:
        _train(model, _batches(tables, options.batch_size, options.seed + 1 + dist.get_rank()), options, observer)
    dist.destroy_process_group()


def _train(model: nn.Module, batches: Iterator[Batch], options: argparse.Namespace, observer: PlanObserver) -> None:
    dense = [parameter for name, parameter in model.named_parameters() if "embedding_bags" not in name]
    optimizer = torch.optim.SGD(dense, lr=options.learning_rate)
    given = [next(batches) for _ in range(min(options.steps, 16))]
    losses, step_ms = [], []
    for step in range(options.steps):
        batch = given[step % len(given)]
        dist.barrier()
        started = time.perf_counter()
        optimizer.zero_grad()
        logits = model(batch.dense, batch.sparse).squeeze(1)
        loss = nn.functional.binary_cross_entropy_with_logits(logits, batch.labels)
        loss.backward()
        optimizer.step()
        step_ms.append(1000 * (time.perf_counter() - started))
        observer.step()
        losses.append(loss.item())
    _tell(
        steps=options.steps,
        first_loss=round(losses[0], 4),
        last_loss=round(statistics.fmean(losses[-10:]), 4),
        median_step_ms=round(statistics.median(step_ms), 3),
    )


def _planner(options: argparse.Namespace, tables: list[dict[str, Any]]) -> EmbeddingShardingPlanner:
    ranks = dist.get_world_size()
    topology = Topology(ranks, "cpu", ddr_cap=options.memory_bytes)
    constraints = {
        table["name"]: ParameterConstraints(
            sharding_types=["table_wise", "column_wise"], pooling_factors=[table["pooling_factor"]]
        )
        for table in tables
    }
    if options.planner == "torchrec":
        return EmbeddingShardingPlanner(topology, options.batch_size, constraints=constraints, debug=False)
    batches = _batches(tables, options.batch_size, options.seed)
    samples = [next(batches).sparse for _ in range(SAMPLE_BATCHES)]
    return ShardwrightPlanner(
        topology,
        options.batch_size,
        constraints=constraints,
        debug=False,
        hardware=options.hardware,
        client=_client(options),
        samples=samples,
        fallback=options.fallback,
    )


def _client(options: argparse.Namespace) -> Client:
    return Client(options.url, timeout_s=options.timeout)


def _dlrm(tables: list[dict[str, Any]], device: str) -> DLRM:
    width = tables[0]["embedding_dim"]
    configs = [
        EmbeddingBagConfig(
            name=table["name"],
            num_embeddings=table["num_embeddings"],
            embedding_dim=width,
            feature_names=[table["name"]],
        )
        for table in tables
    ]
    return DLRM(
        EmbeddingBagCollection(tables=configs, device=torch.device(device)),
        dense_in_features=DENSE_FEATURES,
        dense_arch_layer_sizes=[32, width],
        over_arch_layer_sizes=[32, 1],
        dense_device=torch.device("cpu"),
    )


def _batches(tables: list[dict[str, Any]], batch_size: int, seed: int) -> Iterator[Batch]:
    """Ids by a Zipf law, lookups around each table's pooling factor; labels that the dense features know of."""
    random = torch.Generator().manual_seed(seed)
    while True:
        lengths, ids = [], []
        for table in tables:
            most = max(1, 2 * round(table["pooling_factor"]) - 1)
            lengths.append(torch.randint(1, most + 1, (batch_size,), generator=random))
            ids.append(_zipf(int(lengths[-1].sum()), table["num_embeddings"], random))
        dense = torch.randn(batch_size, DENSE_FEATURES, generator=random)
        labels = torch.bernoulli(torch.sigmoid(2 * dense[:, 0] - dense[:, 1]), generator=random)
        names = [table["name"] for table in tables]
        sparse = KeyedJaggedTensor.from_lengths_sync(names, torch.cat(ids), torch.cat(lengths))
        yield Batch(dense, sparse, labels)


def _zipf(number: int, rows: int, random: torch.Generator) -> torch.Tensor:
    """Ids whose popularity falls with their rank; by inverting the law's continuous distribution."""
    uniform = torch.rand(number, generator=random, dtype=torch.float64)
    power = 1 - ZIPF_EXPONENT
    rank = ((rows + 1) ** power * uniform + (1 - uniform)) ** (1 / power)
    return rank.long().clamp(1, rows) - 1


def _tables(path: Path, max_rows: int) -> list[dict[str, Any]]:
    """The tables of a request, with as many rows as memory has room for."""
    tables = json.loads(path.read_text())["tables"]
    return [table | {"num_embeddings": min(table["num_embeddings"], max_rows)} for table in tables]


def _fused_params(learning_rate: float, tables: list[dict[str, Any]]) -> dict[str, Any]:
    # Adagrad moves each row as far as the first time it is looked up, and a sum of many rows as far as all of them.
    rate = learning_rate / max(1, *(table["pooling_factor"] for table in tables))
    return {"optimizer": EmbOptimType.EXACT_ROWWISE_ADAGRAD, "learning_rate": rate, "eps": 1e-8}


def _tell(**members: Any) -> None:
    if dist.get_rank() == 0:
        sys.stdout.write(json.dumps(members) + "\n")
        sys.stdout.flush()


def _count(given: str) -> int:
    count = int(given)
    if count < 1:
        raise argparse.ArgumentTypeError("must be 1 or more")
    return count


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Trains a small DLRM on CPU ranks; start it with torchrun.")
    parser.add_argument("--planner", choices=["shardwright", "torchrec"], default="shardwright")
    parser.add_argument("--url", default="http://localhost:8000", help="of the service")
    parser.add_argument("--timeout", type=float, default=60, help="seconds that the service is waited for")
    parser.add_argument("--hardware", default="cpu-fbgemm", help="key of the service's cost models")
    parser.add_argument("--fallback", action="store_true", help="plan with TorchRec where no service is reachable")
    default = Path(__file__).with_name("criteo_kaggle.json")
    parser.add_argument(
        "--tables",
        type=Path,
        default=default,
        help="a request of /plan: its tables are trained, all as wide as the first",
    )
    parser.add_argument("--max-rows", type=int, default=100_000, help="larger tables are cut to so many rows")
    parser.add_argument("--memory-bytes", type=int, default=1 << 30, help="for tables, on each rank")
    parser.add_argument("--batch-size", type=int, default=512, help="samples of a rank in a step")
    parser.add_argument("--steps", type=_count, default=100)
    parser.add_argument("--learning-rate", type=float, default=0.05)
    parser.add_argument("--seed", type=int, default=1)
    return parser.parse_args()


if __name__ == "__main__":
    main()
