"""What it costs in accuracy that the compute model cannot price more work lower, and sums tables in its lower part.

Three networks of one form, trained alike: subadditive to the letter (the head's factor stays 1), as shipped (monotone
and cut-monotone, subadditive up to the limit of the factor), and without any constraint. On the public measurements
(a held-out fifth) and on our own campaign (held out by table).

Run: python -m benchmarks.constraints [--measurements FILE] [--seeds 3] [--write FILE.md]
"""

import argparse
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from benchmarks import shared_data
from benchmarks.own_rows import measurement_option, own_rows
from benchmarks.public_compute import public_dataset, public_parts
from service.training.compute_dataset import ComputeDataset, measurements_dataset
from service.training.compute_trainer import ComputeTraining, train_network
from service.training.metrics import Metrics, metrics

FORMS: Mapping[str, ComputeTraining] = {
    "monotone, cut-monotone, subadditive": ComputeTraining(fusion=False),
    "monotone, cut-monotone (as shipped)": ComputeTraining(),
    "without constraints": ComputeTraining(monotone=False),
}


@dataclass(frozen=True, slots=True)
class Accuracy:
    """One form on one set, over the seeds."""

    data: str
    form: str
    runs: tuple[Metrics, ...]

    def row(self) -> str:
        """A line of the table."""
        mape, tau = ([getattr(run, name) for run in self.runs] for name in ("mape", "tau"))
        told = f"{np.mean(mape):.1%} ({min(mape):.1%} to {max(mape):.1%})"
        return f"| {self.data} | {self.form} | {told} | {np.mean(tau):.3f} |"


def accuracy(train: ComputeDataset, held_out: ComputeDataset, config: ComputeTraining) -> Metrics:
    """Metrics of the total on the held-out part."""
    network = train_network(train, config)
    with torch.no_grad():
        costs = network(torch.from_numpy(held_out.features), torch.from_numpy(held_out.members)).double().exp().numpy()
    return metrics(costs.sum(axis=1), held_out.costs.sum(axis=1))


def sets(measurements: str) -> dict[str, tuple[ComputeDataset, ComputeDataset]]:
    """What is trained on and what is judged, by name."""
    found = {}
    if shared_data.present():
        found = {f"public, {name}": public_parts(public_dataset(name)) for name in ("4proc", "8proc")}
    else:
        print("the public data is not there: skipped")
    rows = own_rows(measurements)
    own = (measurements_dataset(rows.train), measurements_dataset(rows.test))
    return {**found, "own campaign": own}


def main() -> None:
    """Prints a line for each form on each set."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    measurement_option(parser)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--write", type=Path, help="Markdown file to write")
    asked = parser.parse_args()
    lines = ["| measurements | network | MAPE (least to most) | Kendall's tau |", "|---|---|--:|--:|"]
    print("\n".join(lines))
    for name, (train, held_out) in sets(asked.measurements).items():
        for form, config in FORMS.items():
            runs = tuple(accuracy(train, held_out, replace(config, seed=seed)) for seed in range(asked.seeds))
            lines.append(Accuracy(name, form, runs).row())
            print(lines[-1], flush=True)
    if asked.write:
        written = f"Written by `python -m benchmarks.constraints --write {asked.write}`."
        asked.write.write_text("\n".join(["# What the compute model's properties cost", "", written, "", *lines, ""]))


if __name__ == "__main__":
    main()
