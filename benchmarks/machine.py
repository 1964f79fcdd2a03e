"""What a benchmark ran on, as its report says it."""

import platform
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version

import torch

from service.profiling.compute_bench import device_name
from service.profiling.host import usable_cores


def machine_line(packages: Sequence[str]) -> str:
    """Processor, cores that this process may use, versions of Python and of those packages that are there, the date."""
    versions = [f"Python {platform.python_version()}"]
    for package in packages:
        try:
            versions.append(f"{package} {version(package)}")
        except PackageNotFoundError:
            continue
    processor, cores = device_name(torch.device("cpu")), usable_cores()
    return f"{processor} of {cores} usable cores, {', '.join(versions)}, {datetime.now(UTC).date()}"


def command_line(module: str) -> str:
    """The command that is running."""
    return " ".join(["python -m", module, *sys.argv[1:]])
