"""Cores and memory of made-up hosts, with control groups of both versions."""

import os
from pathlib import Path

import pytest

from service.profiling.host import free_memory, most_memory, oversubscribed, usable_cores

GIB = 2**30


@pytest.fixture(autouse=True)
def _eight_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: set(range(8)))


def host(root: Path, **files: str) -> Path:
    """A host with 10 of 16 GiB of memory available and these files; ``__`` in a name stands for a slash."""
    memory = f"MemTotal: {16 * 2**20} kB\nMemAvailable: {10 * 2**20} kB\n"
    for name, content in {"proc__meminfo": memory, **files}.items():
        path = root / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    return root


def in_groups(root: Path, groups: str, **files: str) -> Path:
    """The same with a process in these control groups; the files are below ``sys/fs/cgroup``."""
    return host(root, proc__self__cgroup=groups, **{f"sys__fs__cgroup__{name}": text for name, text in files.items()})


def test_without_control_groups_all_can_be_used(tmp_path: Path) -> None:
    root = host(tmp_path)
    assert (usable_cores(root), free_memory(root), most_memory(root)) == (8, 10 * GIB, 16 * GIB)


def test_groups_of_version_2_limit_cores_and_memory_but_for_their_page_cache(tmp_path: Path) -> None:
    files = {
        "box__memory.max": f"{4 * GIB}\n",
        "box__memory.current": f"{3 * GIB}\n",
        "box__memory.stat": f"anon {GIB}\nactive_file {GIB}\ninactive_file {GIB // 2}\n",
        "box__cpu.max": "250000 100000\n",
    }
    root = in_groups(tmp_path, "0::/box\n", **files)
    assert (usable_cores(root), free_memory(root), most_memory(root)) == (3, 5 * GIB // 2, 4 * GIB)


def test_groups_of_version_1_limit_cores_and_memory_but_for_their_page_cache(tmp_path: Path) -> None:
    files = {
        "memory__box__memory.limit_in_bytes": f"{4 * GIB}\n",
        "memory__box__memory.usage_in_bytes": f"{3 * GIB}\n",
        "memory__box__memory.stat": f"inactive_file 0\ntotal_inactive_file {GIB}\ntotal_active_file 0\n",
        "cpu__box__cpu.cfs_quota_us": "50000\n",
        "cpu__box__cpu.cfs_period_us": "100000\n",
    }
    root = in_groups(tmp_path, "3:memory:/box\n2:cpu,cpuacct:/box\n1:pids:/box\n0::/\n", **files)
    assert (usable_cores(root), free_memory(root), most_memory(root)) == (1, 2 * GIB, 4 * GIB)


def test_the_tightest_of_nested_groups_counts_and_those_without_a_limit_do_not(tmp_path: Path) -> None:
    files = {
        "memory.max": f"{6 * GIB}",
        "memory.current": "0",
        "outer__memory.max": f"{5 * GIB}",
        "outer__memory.current": f"{GIB}",
        "outer__inner__memory.max": "max",
        "outer__inner__memory.current": "0",
        "outer__cpu.max": "max 100000",
        "cpu.max": "600000 100000",
    }
    root = in_groups(tmp_path, "0::/outer/inner\n", **files)
    assert (usable_cores(root), free_memory(root), most_memory(root)) == (6, 4 * GIB, 5 * GIB)


def test_a_group_whose_folder_is_not_seen_is_taken_to_be_the_one_that_is(tmp_path: Path) -> None:
    # In a container the path is often the host's, and the files are the container's.
    files = {"memory__memory.limit_in_bytes": f"{2 * GIB}", "memory__memory.usage_in_bytes": f"{3 * GIB}"}
    root = in_groups(tmp_path, "3:memory:/docker/0a1b\n0::/../..\n", **files)
    assert (usable_cores(root), free_memory(root), most_memory(root)) == (8, 0, 2 * GIB)


def test_this_machine_has_cores_and_memory() -> None:
    assert 1 <= usable_cores() <= 8
    assert 0 < free_memory() <= most_memory() <= os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def test_ranks_share_cores_on_the_cpu_alone_and_where_they_are_more() -> None:
    cores = usable_cores()
    assert [oversubscribed(ranks, "cpu") for ranks in (cores, cores + 1)] == [False, True]
    assert not oversubscribed(cores + 1, "cuda")
