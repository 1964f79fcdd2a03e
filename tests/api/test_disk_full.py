"""What is answered while the database's disk is full, and once there is room again."""

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from service.settings import Settings
from service.wiring import running_app
from tests.api.processes import wait_for
from tests.api.support import FACTORY, kind, listening, request

_DISK_BYTES = 256 * 2**20


@pytest.fixture
def small_disk(server_folder: Path, cluster_at_head: Path) -> Iterator[Path]:
    """A folder on a small disk of its own, with a database in it that was used before."""
    disk = server_folder / "disk"
    disk.mkdir()
    size = ["-o", f"size={_DISK_BYTES},mode=755"]
    mounted = subprocess.run(["mount", "-t", "tmpfs", *size, "tmpfs", str(disk)], capture_output=True, check=False)
    if mounted.returncode:
        pytest.skip("a small disk takes root, and a system that lets it mount one")
    try:
        subprocess.run(["cp", "-a", str(cluster_at_head), str(disk / "var")], check=True)
        yield disk
    finally:
        subprocess.run(["umount", "--lazy", str(disk)], check=True)


def _saved(client: httpx.Client, seed: int) -> bool:
    answer = client.post("/plan", json=request(seed=seed))
    assert answer.status_code == 200, answer.text
    return bool(answer.json()["saved"])


def test_plans_are_made_but_not_saved_while_the_disk_is_full(small_disk: Path) -> None:
    configured = Settings(data_dir=small_disk / "var", planner_processes=1)
    with running_app(configured, FACTORY) as app, listening(app) as client:
        stored = client.post("/plan", json=request(seed=0)).json()
        assert stored["saved"] is True
        _fill(small_disk)
        seeds = iter(range(1, 10_000))
        # A page that is there already takes a few more.
        wait_for(lambda: not _saved(client, next(seeds)), 60)
        assert client.get("/healthz").status_code == 200
        # What was stored can be read, or is said to be away: as long as the server itself goes on.
        found = client.get(f"/plans/{stored['plan_id']}")
        assert found.status_code == 200 or (found.status_code, kind(found)) == (503, "storage_unavailable")
        launched = client.post("/plan", json=request(seed=next(seeds), launch_id="night"))
        assert (launched.status_code, kind(launched)) == (503, "storage_unavailable")
        assert int(launched.headers["retry-after"]) >= 1

        (small_disk / "filler").unlink()
        wait_for(lambda: _saved(client, next(seeds)), 60)
        assert client.get(f"/plans/{stored['plan_id']}").json() == stored
        assert client.get("/readyz").status_code == 200


def _fill(disk: Path) -> None:
    with (disk / "filler").open("wb", buffering=0) as filler:
        try:
            while True:
                filler.write(bytes(2**16))
        except OSError:
            pass
    assert shutil.disk_usage(disk).free < 2**16
