"""Training as a job: checkpoints, event files, and going on as if nothing had happened."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from tensorboardX.proto.event_pb2 import Event
from tensorboardX.record_writer import RecordWriter

from service.domain.errors import InvalidInputFile
from service.training.policy_job import run


class Walk:
    """Adds random numbers up; dies on request."""

    def __init__(self, steps: int = 7, dies_at: int | None = None) -> None:
        self.steps, self.done, self._dies_at = steps, 0, dies_at
        self._generator, self._sum = np.random.default_rng(5), torch.zeros(3)

    def step(self) -> Mapping[str, float]:
        if self.done == self._dies_at:
            raise KeyboardInterrupt
        self._sum = self._sum + torch.from_numpy(self._generator.normal(size=3)).float()
        self.done += 1
        return {"sum": float(self._sum.sum())}

    def state(self) -> dict[str, Any]:
        return {"done": self.done, "sum": self._sum, "generator": self._generator.bit_generator.state}

    def restore(self, state: Mapping[str, Any]) -> None:
        self.done, self._sum = state["done"], state["sum"]
        self._generator.bit_generator.state = state["generator"]

    def arrays(self) -> Mapping[str, NDArray[np.float32]]:
        return {"sum": self._sum.numpy()}


def _events(folder: Path) -> list[tuple[str, int, float]]:
    """Scalars that TensorBoard shows of the event files: what begins at a step hides those of this step and later."""
    found: list[tuple[str, int, float]] = []
    for path in sorted(folder.glob("events.*")):
        raw, at = path.read_bytes(), 0
        while at < len(raw):
            size = int.from_bytes(raw[at : at + 8], "little")
            event = Event.FromString(raw[at + 12 : at + 12 + size])
            if event.HasField("session_log"):
                found = [each for each in found if each[1] < event.step]
            found += [(value.tag, event.step, value.simple_value) for value in event.summary.value]
            at += 12 + size + 4
    return found


def test_records_are_framed_as_the_test_reads_them(tmp_path: Path) -> None:
    writer = RecordWriter(str(tmp_path / "events.x"))
    writer.write(Event(step=3).SerializeToString())
    writer.close()
    assert _events(tmp_path) == []
    assert (tmp_path / "events.x").stat().st_size == 8 + 4 + 2 + 4


@pytest.mark.parametrize("every", [1, 3])
@pytest.mark.parametrize("dies_at", [0, 1, 4, 6])
def test_a_run_that_was_cut_off_goes_on_as_if_it_had_not(tmp_path: Path, dies_at: int, every: int) -> None:
    whole, first, second = Walk(), Walk(dies_at=dies_at), Walk()
    run(whole, "walk", tmp_path / "whole", every)
    with pytest.raises(KeyboardInterrupt):
        run(first, "walk", tmp_path / "cut", every)
    told: list[int] = []
    run(second, "walk", tmp_path / "cut", every, told.append)
    assert told == list(range(dies_at // every * every, 8))
    assert second.arrays()["sum"].tolist() == whole.arrays()["sum"].tolist()
    assert _events(tmp_path / "cut") == _events(tmp_path / "whole")


def test_a_run_that_is_through_does_nothing_more(tmp_path: Path) -> None:
    run(Walk(), "walk", tmp_path)
    again = Walk(dies_at=7)
    run(again, "walk", tmp_path)
    assert again.done == 7


def test_what_is_judged_is_written_with_each_checkpoint(tmp_path: Path) -> None:
    walk = Walk()
    run(walk, "walk", tmp_path, every=3, judge=lambda: {"judged": 10.0 * walk.done})
    assert [each for each in _events(tmp_path) if each[0] == "judged"] == [
        ("judged", 3, 30.0),
        ("judged", 6, 60.0),
        ("judged", 7, 70.0),
    ]


def test_without_a_folder_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    walk = Walk()
    run(walk, "walk")
    assert walk.done == 7
    assert list(tmp_path.iterdir()) == []


def test_another_runs_checkpoint_is_refused(tmp_path: Path) -> None:
    run(Walk(), "walk", tmp_path)
    with pytest.raises(
        InvalidInputFile, match=r"checkpoint\.pt: is of a run with other tasks or another configuration"
    ):
        run(Walk(), "another walk", tmp_path)


@pytest.mark.parametrize("content", [b"", b"not a checkpoint", None])
def test_what_is_no_checkpoint_is_refused_and_left_alone(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "checkpoint.pt"
    if content is None:
        torch.save({"identity": print}, path)
    else:
        path.write_bytes(content)
    before = path.read_bytes()
    with pytest.raises(InvalidInputFile, match=r"checkpoint\.pt: is not a checkpoint of this release"):
        run(Walk(), "walk", tmp_path)
    assert path.read_bytes() == before
