import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
from sqlalchemy import text

from service.storage.embedded import EmbeddedPostgres
from service.storage.embedded_programs import EmbeddedServerFailed
from service.storage.engine import build_engine

OWNER = """
    import sys, time
    from pathlib import Path
    from sqlalchemy import text
    from service.storage.embedded import EmbeddedPostgres
    from service.storage.engine import build_engine

    server = EmbeddedPostgres(Path(sys.argv[1]))
    engine = build_engine(server.start())
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE IF NOT EXISTS kept (value int)"))
        connection.execute(text("INSERT INTO kept VALUES (7)"))
    print("committed", flush=True)
    sys.stdin.read()
    engine.dispose()
    server.stop()
"""


DEAF_OWNER = """
    import os, signal, sys
    from pathlib import Path
    signal.signal(signal.SIGINT, lambda *_: None)
    from service.storage.embedded import EmbeddedPostgres

    with EmbeddedPostgres(Path(sys.argv[1])):
        pass
    os._exit(0)  # The interpreter's own end would no longer be deaf.
"""


@pytest.fixture
def server(server_folder: Path) -> Iterator[EmbeddedPostgres]:
    server = EmbeddedPostgres(server_folder / "var")
    yield server
    server.start()
    server.stop()


@pytest.fixture
def owner(server_folder: Path) -> Iterator["subprocess.Popen[str]"]:
    """Another process that uses the server of the same folder until its input ends."""
    process = subprocess.Popen(
        [sys.executable, "-c", dedent(OWNER), str(server_folder / "var")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[2],
    )
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == "committed\n"
        yield process
        process.kill()


def kept(url: str) -> list[int]:
    engine = build_engine(url)
    with engine.connect() as connection:
        values = list(connection.scalars(text("SELECT value FROM kept")))
    engine.dispose()
    return values


def execute(url: str, statement: str) -> None:
    engine = build_engine(url)
    with engine.begin() as connection:
        connection.execute(text(statement))
    engine.dispose()


def postmaster(folder: Path) -> int:
    return int((folder / "var" / "postgres" / "postmaster.pid").read_text().split()[0])


def kill(process: "subprocess.Popen[Any]") -> None:
    process.kill()
    process.wait()


def kill_postmaster(folder: Path) -> None:
    pid = postmaster(folder)
    os.kill(pid, signal.SIGKILL)
    for _ in range(1000):
        command = Path("/proc", str(pid), "cmdline")
        if not command.exists() or not command.read_bytes():
            return
        time.sleep(0.01)
    raise TimeoutError(pid)


def test_data_outlives_a_stop(server: EmbeddedPostgres, server_folder: Path) -> None:
    execute(server.start(), "CREATE TABLE kept AS SELECT 7 AS value")
    server.stop()
    assert not (server_folder / "var" / "postgres" / "postmaster.pid").exists()
    assert kept(server.start()) == [7]


def test_only_the_socket_is_listened_on(server: EmbeddedPostgres) -> None:
    engine = build_engine(server.start())
    with engine.connect() as connection:
        assert connection.scalar(text("SHOW listen_addresses")) == ""
    engine.dispose()


def test_the_server_is_the_database_users_only(server: EmbeddedPostgres, server_folder: Path) -> None:
    server.start()
    assert (server_folder / "var" / "postgres").stat().st_mode & 0o077 == 0


def test_starting_twice_and_stopping_twice_is_harmless(server: EmbeddedPostgres) -> None:
    assert server.start() == server.start()
    server.stop()
    server.stop()


def test_a_server_left_by_a_killed_owner_is_adopted_with_its_data(
    server: EmbeddedPostgres, owner: "subprocess.Popen[str]", server_folder: Path
) -> None:
    pid = postmaster(server_folder)
    kill(owner)
    assert kept(server.start()) == [7]
    assert postmaster(server_folder) == pid
    server.stop()
    assert not (server_folder / "var" / "postgres" / "postmaster.pid").exists()


def test_a_server_killed_with_its_owner_comes_back_with_its_data(
    server: EmbeddedPostgres, owner: "subprocess.Popen[str]", server_folder: Path
) -> None:
    kill(owner)
    kill_postmaster(server_folder)
    assert kept(server.start()) == [7]


def test_a_killed_server_comes_back_when_started_again(server: EmbeddedPostgres, server_folder: Path) -> None:
    execute(server.start(), "CREATE TABLE kept AS SELECT 7 AS value")
    kill_postmaster(server_folder)
    assert kept(server.start()) == [7]


def test_a_note_whose_process_id_went_to_another_program_does_not_hinder(
    server: EmbeddedPostgres, server_folder: Path
) -> None:
    execute(server.start(), "CREATE TABLE kept AS SELECT 7 AS value")
    note = server_folder / "var" / "postgres" / "postmaster.pid"
    lines = note.read_text().splitlines(keepends=True)
    kill_postmaster(server_folder)
    note.write_text("".join([f"{os.getpid()}\n", *lines[1:]]))
    assert kept(server.start()) == [7]


def test_a_second_user_attaches_and_does_not_stop_the_server(
    server: EmbeddedPostgres, owner: "subprocess.Popen[str]", server_folder: Path
) -> None:
    pid = postmaster(server_folder)
    assert kept(server.start()) == [7]
    server.stop()
    assert postmaster(server_folder) == pid
    with EmbeddedPostgres(server_folder / "var") as url:
        assert kept(url) == [7]
    assert postmaster(server_folder) == pid


def test_an_owner_that_ends_leaves_the_server_to_its_other_users(
    server: EmbeddedPostgres, owner: "subprocess.Popen[str]", server_folder: Path
) -> None:
    url = server.start()
    owner.communicate()
    assert owner.returncode == 0
    assert kept(url) == [7]
    server.stop()
    assert not (server_folder / "var" / "postgres" / "postmaster.pid").exists()


def test_users_that_start_at_once_share_one_server(server_folder: Path) -> None:
    servers = [EmbeddedPostgres(server_folder / "var") for _ in range(6)]
    with ExitStack() as users, ThreadPoolExecutor(6) as pool:
        for server in servers:
            users.callback(server.stop)
        urls = set(pool.map(EmbeddedPostgres.start, servers))
        pid = postmaster(server_folder)
        (url,) = urls
        execute(url, "SELECT 1")
        list(pool.map(EmbeddedPostgres.stop, servers[1:]))
        assert postmaster(server_folder) == pid
        servers[0].stop()
    assert not (server_folder / "var" / "postgres" / "postmaster.pid").exists()


def test_an_initialisation_that_was_killed_is_begun_anew(server: EmbeddedPostgres, server_folder: Path) -> None:
    half = server_folder / "var" / "postgres.new"
    half.mkdir(parents=True)
    (half / "PG_VERSION").write_text("18\n")
    execute(server.start(), "SELECT 1")
    assert not half.exists()


def test_a_folder_with_a_long_and_odd_name_works(server_folder: Path) -> None:
    with EmbeddedPostgres(server_folder / ("it's a folder " + "x" * 120)) as url:
        execute(url, "SELECT 1")


def test_an_initialisation_is_out_of_reach_of_the_process_group(server: EmbeddedPostgres, server_folder: Path) -> None:
    starter = subprocess.Popen(
        [sys.executable, "-c", dedent(DEAF_OWNER), str(server_folder / "var")],
        cwd=Path(__file__).parents[2],
        start_new_session=True,
    )
    try:
        give_up = time.monotonic() + 60
        while not (server_folder / "var" / "postgres.new").exists():
            assert time.monotonic() < give_up
            assert starter.poll() is None
            time.sleep(0.005)
        while starter.poll() is None and time.monotonic() < give_up:
            os.killpg(starter.pid, signal.SIGINT)
            time.sleep(0.05)
        assert starter.wait(60) == 0
    finally:
        kill(starter)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root's server runs as another user")
def test_what_root_opens_to_the_server_is_logged(
    server: EmbeddedPostgres, server_folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    server_folder.chmod(0o700)
    server.start()
    assert f"{server_folder} becomes passable for others" in caplog.text


def test_data_of_another_version_is_a_clear_error(server: EmbeddedPostgres, server_folder: Path) -> None:
    server.start()
    server.stop()
    version = server_folder / "var" / "postgres" / "PG_VERSION"
    right = version.read_text()
    version.write_text("12\n")
    with pytest.raises(EmbeddedServerFailed, match="initialized by PostgreSQL version 12"):
        server.start()
    version.write_text(right)


def test_a_server_is_left_to_those_who_came_by_its_url(server: EmbeddedPostgres, server_folder: Path) -> None:
    engine = build_engine(server.start())
    with engine.connect() as guest:
        server.leave()
        assert guest.scalar(text("SELECT 1")) == 1
    engine.dispose()
    server.start()
    server.leave()
    assert not (server_folder / "var" / "postgres" / "postmaster.pid").exists()


def test_who_leaves_a_server_to_its_other_users_neither_waits_nor_warns(
    server: EmbeddedPostgres, server_folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    engine = build_engine(server.start())
    other = EmbeddedPostgres(server_folder / "var")
    other.start()
    with engine.connect() as used:
        began = time.monotonic()
        other.leave()
        assert time.monotonic() - began < 0.5
        assert "left to" not in caplog.text
        assert used.scalar(text("SELECT 1")) == 1
    engine.dispose()
