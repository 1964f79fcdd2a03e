"""A launch of eight real processes against a real service that is killed and started again while they ask."""

import dataclasses
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest

from service.profiling.ranks import run_ranks
from shardwright_client import Devices
from tests.api.processes import wait_for
from tests.client.asked import QUESTION
from tests.client.conftest import RealService
from tests.client.launched import PATIENCE_S, asked_in_turn, asking

RANKS = 8
QUICK = 40
"""Launches after the first one, whose plan takes a moment."""


@pytest.mark.slow
def test_eight_processes_get_one_plan_though_the_service_is_killed_while_they_ask(
    real_service: RealService, tmp_path: Path
) -> None:
    """Once while it makes the plan that all of them wait for, once in the middle of many short questions."""
    slow = dataclasses.replace(QUESTION, devices=Devices.with_gib(2, 1, "slow"), launch_id="slow", time_limit_ms=20_000)
    quick = [dataclasses.replace(QUESTION, algorithm="random", launch_id=f"quick{i}", seed=i) for i in range(QUICK)]
    ask = partial(asked_in_turn, real_service.url, tmp_path, RANKS, [slow, *quick])
    with ThreadPoolExecutor(1) as launcher:
        launched = launcher.submit(run_ranks, ask, RANKS, PATIENCE_S)
        wait_for(lambda: asking(tmp_path, "slow") == RANKS and real_service.plans(), PATIENCE_S)
        real_service.restart()
        wait_for(lambda: asking(tmp_path, f"quick{QUICK // 4}") > 0, PATIENCE_S)
        real_service.restart()
        assert asking(tmp_path, f"quick{QUICK - 1}") == 0
        answers = launched.result()
    for of_launch in zip(*answers, strict=True):
        assert all(answer == of_launch[0] for answer in of_launch)
