"""A supervisor with the made-up bench as a process of its own: ``python -m tests.jobs.work_made_up <workers>``."""

import sys

from service.jobs.measuring import Device
from service.settings import Settings
from service.wiring import work
from tests.jobs.made_up import BENCH

if __name__ == "__main__":
    work(Settings(), "made-up", [Device("cpu")] * int(sys.argv[1]), BENCH)
