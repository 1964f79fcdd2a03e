"""Training a policy as a job: step by step, with event files for TensorBoard, and resumed as if it had not stopped."""

import hashlib
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from tensorboardX import SummaryWriter

from service.domain.errors import InvalidInputFile

_CHECKPOINT = "checkpoint.pt"


class PolicyTrainer(Protocol):
    """Trains a policy in steps, each of which can be the last before the process ends."""

    @property
    def steps(self) -> int:
        """Steps of the whole run."""

    @property
    def done(self) -> int:
        """Steps that are done."""

    def step(self) -> Mapping[str, float]:
        """Does the next step; what to write to the event files, by name."""

    def state(self) -> dict[str, Any]:
        """Everything that the next step depends on, beyond what the trainer is made of.

        Of tensors, numbers, texts, None, and lists and dictionaries of these: what torch loads without unpickling
        anything else.
        """

    def restore(self, state: Mapping[str, Any]) -> None:
        """Goes back to a state, of a trainer that is made alike."""

    def arrays(self) -> Mapping[str, NDArray[np.float32]]:
        """What a version of the policy consists of now."""


def run(
    trainer: PolicyTrainer,
    identity: str,
    folder: Path | None = None,
    every: int = 1,
    report: Callable[[int], None] = lambda done: None,
    judge: Callable[[], Mapping[str, float]] = dict,
) -> None:
    """Trains to the end, from the checkpoint in the folder where there is one.

    Args:
        trainer: that has done nothing yet.
        identity: text that is the same for runs that may go on from each other's checkpoints.
        folder: where the checkpoint and the event files are; neither is written without one.
        every: steps between checkpoints; the last step always has one.
        report: told how many steps are done.
        judge: what else to write to the event files, looked at with each checkpoint.

    Raises:
        InvalidInputFile: there can be no such folder, or the checkpoint cannot be read or is of another run.
    """
    if folder is None:
        while trainer.done < trainer.steps:
            trainer.step()
            report(trainer.done)
        return
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidInputFile(f"{folder}: cannot be the folder of checkpoints: {error.strerror}") from error
    checkpoint, digest = folder / _CHECKPOINT, hashlib.sha256(identity.encode()).hexdigest()
    if checkpoint.exists():
        trainer.restore(_state(checkpoint, digest))
    report(trainer.done)
    # Events of steps after the checkpoint are of a run that was cut off: TensorBoard is told to drop those of this step
    # and later. A file's name has the second in it, and its writer would overwrite another of the same name.
    files = len(list(folder.glob("events.*")))
    with SummaryWriter(str(folder), purge_step=trainer.done + 1, filename_suffix=f".{files}") as events:
        while trainer.done < trainer.steps:
            for name, value in trainer.step().items():
                events.add_scalar(name, value, trainer.done)
            if trainer.done % every == 0 or trainer.done == trainer.steps:
                for name, value in judge().items():
                    events.add_scalar(name, value, trainer.done)
                events.flush()
                _save(checkpoint, {"identity": digest, "state": trainer.state()})
            report(trainer.done)


def _save(path: Path, content: dict[str, Any]) -> None:
    """Writes a file whole or not at all."""
    unfinished = path.with_suffix(".part")
    with unfinished.open("wb") as file:
        torch.save(content, file)
        file.flush()
        os.fsync(file.fileno())
    unfinished.replace(path)


def _state(path: Path, digest: str) -> dict[str, Any]:
    try:
        content = torch.load(path, weights_only=True)
        identity, state = content["identity"], content["state"]
    except Exception as error:  # Whatever torch, zipfile or pickle make of a file that is none.
        raise InvalidInputFile(f"{path}: is not a checkpoint of this release: remove it to begin anew") from error
    if identity != digest:
        raise InvalidInputFile(
            f"{path}: is of a run with other tasks or another configuration: give the same ones to go on with it, or "
            "another folder to begin anew"
        )
    return dict(state)
