"""What the ranks of a launch do, each in a process of its own: ask at once, and note that they do."""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from shardwright_client import Client, PlanRequest

PATIENCE_S = 300


def asked_in_turn(
    url: str, folder: Path, ranks: int, questions: Sequence[PlanRequest], rank: int
) -> list[dict[str, Any]]:
    """The answers of a rank, which begins to ask when all are there."""
    (folder / f"ready-{rank}").touch()
    while asking(folder, "ready") < ranks:
        time.sleep(0.01)
    answers = []
    with Client(url, timeout_s=PATIENCE_S) as client:
        for question in questions:
            (folder / f"{question.launch_id}-{rank}").touch()
            answers.append(dict(client.plan(question).raw))
    return answers


def asking(folder: Path, launch_id: str) -> int:
    """Ranks that have come to a launch."""
    return len(list(folder.glob(f"{launch_id}-*")))
