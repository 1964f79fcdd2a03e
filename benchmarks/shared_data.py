"""Where the public table sets, tasks and measurements lie, and how benchmarks and tests read them."""

import json
from pathlib import Path
from typing import Any

from service.domain.tables import Table
from service.profiling.pools import read_pool

SHARED = Path(__file__).resolve().parent.parent.parent / "shared"
"""Folder beside the repository; absent on machines that do not have it."""

POOL = SHARED / "data" / "tables" / "dlrm_datasets_2021_t856.json"


def present() -> bool:
    """Whether the folder is there."""
    return POOL.exists()


def pool() -> tuple[Table, ...]:
    """The public 856-table set, by index."""
    return read_pool(POOL)


def measurements(name: str) -> list[dict[str, Any]]:
    """Rows of ``measurements/<name>.jsonl``."""
    lines = (SHARED / "data" / "measurements" / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


def tasks(name: str) -> Any:
    """Content of ``tasks/<name>.json``."""
    return json.loads((SHARED / "data" / "tasks" / f"{name}.json").read_text(encoding="utf-8"))
