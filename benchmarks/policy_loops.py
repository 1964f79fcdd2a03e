"""DreamShard's and AutoShard's loops with rewards that are measured: the real operator, and real exchanges.

DreamShard's is whole: 10 iterations of 10 placements. AutoShard's is a pilot of 20 learner steps with short unrolls.
Policies are looked at on held-out tasks, predicted, as in benchmarks.policies. Run it alone on the machine:
python -m benchmarks.policy_loops [dreamshard] [autoshard] [--write benchmarks/results]
"""

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import torch

from benchmarks import shared_data
from benchmarks.machine import command_line, machine_line
from benchmarks.policy_curves import Course, beside, curve, curve_lines, draw
from benchmarks.policy_families import dreamshard_problems
from benchmarks.search_tasks import HARDWARE
from service.domain.ports import CostModels
from service.profiling.placement_meter import PlacementMeter, PlacementMeterSettings
from service.registry.store import ModelStore
from service.search.precut import posed
from service.search.workspace import Workspace
from service.training.policy_job import PolicyTrainer
from service.training.policy_kinds import SHIPPED_AUTOSHARD, SHIPPED_DREAMSHARD, AutoShardKind, DreamShardKind

BATCH_SIZE = 8_192
_LOOKS = 10
_PACKAGES = ("torch", "fbgemm_gpu-cpu")

_DREAMSHARD = replace(SHIPPED_DREAMSHARD, placements=10)
_AUTOSHARD = replace(SHIPPED_AUTOSHARD, environment_steps=3_200, unroll=20, cost_batch=128, cost_decay=1.0)


def _tasks(half: str, models: CostModels) -> list[Workspace]:
    return [posed(problem, models) for problem in dreamshard_problems("T20", half, batch_size=BATCH_SIZE)]


def dreamshard_loop(models: CostModels) -> Course:
    """DreamShard's loop: compute and exchanges are measured."""
    meter = PlacementMeter(PlacementMeterSettings(repeats=5))

    def trainer(workspaces: Sequence[Workspace], seed: int) -> PolicyTrainer:
        return DreamShardKind(replace(_DREAMSHARD, seed=seed)).trainer(workspaces, meter)

    name, policy = "dreamshard, T20 x 4, measured", DreamShardKind().policy
    return Course(name, _tasks("train", models), _tasks("test", models), trainer, policy, _LOOKS)


def autoshard_pilot(models: CostModels) -> Course:
    """A pilot of AutoShard: compute is measured."""
    meter = PlacementMeter(PlacementMeterSettings(repeats=3, warmup=1, exchanges=False))

    def trainer(workspaces: Sequence[Workspace], seed: int) -> PolicyTrainer:
        return AutoShardKind(replace(_AUTOSHARD, seed=seed)).trainer(workspaces, meter)

    name, policy = "autoshard, T20 x 4, measured pilot", AutoShardKind().policy
    return Course(name, _tasks("train", models), _tasks("test", models), trainer, policy, _LOOKS)


LOOPS: dict[str, Callable[[CostModels], Course]] = {"dreamshard": dreamshard_loop, "autoshard": autoshard_pilot}


def main() -> None:
    """Runs the loops, prints their tables, and writes them and the plots where told to."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("loops", nargs="*", default=[*LOOPS], help=f"of {', '.join(LOOPS)}; all where none is named")
    parser.add_argument("--write", type=Path, help="folder to write the report and the plots to")
    given = parser.parse_args()
    if unknown := [name for name in given.loops if name not in LOOPS]:
        parser.error(f"there is no loop {unknown[0]}: name of {', '.join(LOOPS)}")
    if not shared_data.present():
        sys.exit(f"skipped: the public tasks are not at {shared_data.SHARED}")
    torch.set_num_threads(1)
    models = ModelStore("model_store").cost_models(HARDWARE)
    lines = [
        "# Policies trained on what was measured",
        "",
        f"`{command_line('benchmarks.policy_loops')}` on {machine_line(_PACKAGES)}. Rewards are measured at batch "
        f"{BATCH_SIZE:,}; held-out tasks are priced by {' and '.join(models.versions.values())}. DreamShard's run is "
        "the paper's 10 iterations of 10 placements, all else as in shipped versions. AutoShard's pilot has 20 "
        "learner steps of 160 placed tables, and a cost model that shrinks its weights more, for it sees few tables.",
        "",
    ]
    for name in given.loops:
        course, started = LOOPS[name](models), time.perf_counter()
        run = curve(course, seed=0)
        seconds, others = time.perf_counter() - started, beside(course)
        lines += [*curve_lines(course, [run], others), f"The whole loop took {seconds:.0f} s, looks included.", ""]
        if given.write:
            given.write.mkdir(parents=True, exist_ok=True)
            draw(course, [run], others, given.write / f"{name}-measured.png")
            lines += [f"![{course.name}]({name}-measured.png)", ""]
    print("\n".join(lines))
    if given.write:
        (given.write / "policy-loops.md").write_text("\n".join(lines), encoding="utf-8")


if __name__ == "__main__":
    main()
