"""A supervisor with the made-up bench, and made-up nights, as a process of its own.

``python -m tests.jobs.work_made_up <hardware> <workers>``
"""

import sys

if __name__ == "__main__":
    # Workers and what they measure in import this module again: it is their parent's main module.
    from service.jobs.measuring import Device
    from service.settings import Settings
    from service.wiring import work
    from tests.jobs.made_up import BENCH
    from tests.jobs.made_up_night import RETRAIN

    work(Settings(), sys.argv[1], [Device("cpu")] * int(sys.argv[2]), BENCH, RETRAIN)
