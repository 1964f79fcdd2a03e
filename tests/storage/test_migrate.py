import multiprocessing
import os
import signal
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection as Pipe
from multiprocessing.process import BaseProcess

import pytest
from alembic import command
from sqlalchemy import Engine, inspect, text
from sqlalchemy.exc import ProgrammingError

from service.domain.callers import ANONYMOUS
from service.storage import migrate
from service.storage.engine import build_engine
from service.storage.measurements import MeasurementRepository
from service.storage.migrate import MigrationFailed, UnknownRevision, current, drift, head, upgrade
from service.storage.schema import METADATA

BEHIND = "0002"

SPAWN = multiprocessing.get_context("spawn")

CONSTRAINTS = """
    SELECT conrelid::regclass::text, conname, pg_get_constraintdef(oid) FROM pg_constraint
    WHERE connamespace = 'public'::regnamespace AND conrelid::regclass::text !~ '^(alembic_version|procrastinate_)'
    UNION ALL
    SELECT tablename, indexname, indexdef FROM pg_indexes
    WHERE schemaname = 'public' AND tablename !~ '^(alembic_version|procrastinate_)'
    ORDER BY 1, 2, 3
"""


def schema(engine: Engine) -> list[tuple[str, str, str]]:
    with engine.connect() as connection:
        return [(table, name, definition) for table, name, definition in connection.execute(text(CONSTRAINTS))]


def run(engine: Engine, statement: str) -> None:
    with engine.begin() as connection:
        connection.execute(text(statement))


def number(engine: Engine, query: str) -> int:
    with engine.connect() as connection:
        return int(connection.scalar(text(query)) or 0)


def migrate_in_a_process(url: str) -> None:
    engine = build_engine(url)
    upgrade(engine)
    if current(engine) != head() or drift(engine):
        raise SystemExit(3)


def hold_the_lock(url: str, ready: Pipe) -> None:
    with build_engine(url).connect() as connection:
        connection.execute(text("SELECT pg_advisory_lock(:key)"), {"key": migrate.LOCK_KEY})
        ready.send(True)
        time.sleep(600)


@pytest.fixture
def lock_holder(empty_database_url: str) -> Iterator[BaseProcess]:
    receiver, sender = SPAWN.Pipe()
    holder = SPAWN.Process(target=hold_the_lock, args=(empty_database_url, sender))
    holder.start()
    assert receiver.poll(60)
    yield holder
    holder.kill()
    holder.join()
    for end in (receiver, sender, holder):
        end.close()


def test_an_empty_database_comes_to_head_without_drift(empty_engine: Engine) -> None:
    assert current(empty_engine) is None
    upgrade(empty_engine)
    assert current(empty_engine) == head()
    assert drift(empty_engine) == []


def test_migrating_again_changes_nothing(engine: Engine) -> None:
    before = schema(engine)
    upgrade(engine)
    assert schema(engine) == before


def test_migrations_make_exactly_the_constraints_that_the_rows_declare(engine: Engine, empty_engine: Engine) -> None:
    METADATA.create_all(empty_engine)
    assert schema(engine) == schema(empty_engine)


@pytest.mark.parametrize(
    "statement",
    [
        "ALTER TABLE plans ADD COLUMN planted text",
        "ALTER TABLE plans DROP COLUMN answer",
        "ALTER TABLE plans ALTER COLUMN max_cost_ms TYPE real",
        "ALTER TABLE plans ALTER COLUMN hardware DROP NOT NULL",
        "ALTER TABLE plans ALTER COLUMN created_at DROP DEFAULT",
        "ALTER TABLE compute_measurements DROP CONSTRAINT uq_compute_measurements_campaign_index",
        "DROP INDEX ix_compute_measurements_hardware",
        "DROP TABLE communication_measurements",
        "CREATE TABLE planted (id int)",
    ],
)
def test_a_changed_database_is_drift(engine: Engine, statement: str) -> None:
    run(engine, statement)
    assert drift(engine) != []


def migrate_to(engine: Engine, revision: str) -> None:
    move = command.upgrade if revision > (current(engine) or "") else command.downgrade
    with engine.begin() as connection:
        move(migrate._config(connection), revision)


def test_exchanges_of_before_start_delays_keep_their_times_up_and_down(empty_engine: Engine) -> None:
    migrate_to(empty_engine, "0001")
    run(
        empty_engine,
        """
        INSERT INTO communication_measurements
            (campaign, index, hardware, widths, batch_size, forward_ms, backward_ms, repeats, environment, measured_at)
        VALUES ('c', 0, 'cpu-x', '{8,0,4}', 64, '{0.5,1.25,2}', '{3,4,5}', 9, '{}', now()),
               ('c', 1, 'cpu-x', '{}', 64, '{}', '{}', 9, '{}', now())
        """,
    )
    upgrade(empty_engine)
    assert drift(empty_engine) == []
    first, empty = MeasurementRepository(empty_engine).communication("cpu-x")
    assert (first.start_delays_ms, first.forward_wait_ms) == ((0.0, 0.0, 0.0), (0.0, 0.0, 0.0))
    assert (first.forward_transfer_ms, first.backward_ms) == ((0.5, 1.25, 2.0), (3.0, 4.0, 5.0))
    assert empty.start_delays_ms == empty.forward_wait_ms == empty.forward_transfer_ms == ()

    run(empty_engine, "UPDATE communication_measurements SET forward_wait_ms = '{0,1,2}' WHERE index = 0")
    migrate_to(empty_engine, "0001")
    with empty_engine.connect() as connection:
        rows = connection.execute(text("SELECT forward_ms, backward_ms FROM communication_measurements ORDER BY index"))
        assert [tuple(row) for row in rows] == [([0.5, 1.25, 2.0], [3.0, 4.0, 5.0]), ([], [])]
    upgrade(empty_engine)
    assert drift(empty_engine) == []
    assert MeasurementRepository(empty_engine).communication("cpu-x") == [first, empty]


def test_plans_of_before_name_the_running_plan_where_it_is_stored(empty_engine: Engine) -> None:
    migrate_to(empty_engine, "0002")
    run(
        empty_engine,
        """
        INSERT INTO plans (plan_id, hardware, algorithm, max_cost_ms, request, answer)
        VALUES ('a', 'cpu-x', 'auto', 1, '{}', '{}'), ('b', 'cpu-x', 'auto', 1, '{"previous_plan_id": "a"}', '{}'),
               ('c', 'cpu-x', 'auto', 1, '{"previous_plan_id": "gone"}', '{}'),
               ('d', 'cpu-x', 'auto', 1, '{"previous_plan_id": null}', '{}')
        """,
    )
    upgrade(empty_engine)
    assert drift(empty_engine) == []
    with empty_engine.connect() as connection:
        named = connection.execute(text("SELECT plan_id, previous_plan_id FROM plans ORDER BY plan_id")).all()
        owners = connection.execute(text("SELECT plan_id, owner FROM plan_owners ORDER BY plan_id")).all()
    assert [tuple(row) for row in named] == [("a", None), ("b", "a"), ("c", None), ("d", None)]
    assert [tuple(row) for row in owners] == [(plan_id, ANONYMOUS) for plan_id in "abcd"]


def test_observations_of_before_keys_are_nobodys_and_going_down_leaves_the_first_of_each(empty_engine: Engine) -> None:
    migrate_to(empty_engine, "0007")
    run(
        empty_engine,
        """
        INSERT INTO plans (plan_id, hardware, algorithm, max_cost_ms, request, answer)
        VALUES ('a', 'cpu-x', 'auto', 1, '{}', '{}');
        INSERT INTO given_answers (plan_id, digest, answer) VALUES ('a', 'd', '{}')
        """,
    )
    # As replicas of the release before do it, also after the migration.
    columns = "plan_id, digest, launch_id, rank, start_step, stop_step, forward_compute_ms, backward_compute_ms"
    put = f"INSERT INTO observations ({columns}, environment) VALUES ('a', 'd', '', {{}}, 0, 1, 1, 1, '{{{{}}}}')"
    run(empty_engine, put.format(0))
    migrate_to(empty_engine, "0008")
    run(empty_engine, put.format(1))
    run(empty_engine, f"INSERT INTO observations ({columns}, environment, observer) "
        "VALUES ('a', 'd', '', 0, 0, 1, 2, 2, '{}', 'ann')")  # fmt: skip
    query = text("SELECT rank, forward_compute_ms FROM observations WHERE observer = :observer ORDER BY id")
    with empty_engine.connect() as connection:
        assert connection.execute(query, {"observer": ANONYMOUS}).all() == [(0, 1.0), (1, 1.0)]
    migrate_to(empty_engine, "0007")
    with empty_engine.connect() as connection:
        left = connection.execute(text("SELECT rank, forward_compute_ms FROM observations ORDER BY id")).all()
    assert left == [(0, 1.0), (1, 1.0)]


def test_going_down_and_up_again_makes_the_same_constraints(engine: Engine, empty_engine: Engine) -> None:
    migrate_to(empty_engine, "0001")
    first = schema(empty_engine)
    before = schema(engine)
    migrate_to(engine, "0001")
    assert schema(engine) == first
    upgrade(engine)
    assert schema(engine) == before


def test_four_processes_migrating_at_once_all_end_well(empty_database_url: str, empty_engine: Engine) -> None:
    processes = [SPAWN.Process(target=migrate_in_a_process, args=(empty_database_url,)) for _ in range(4)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(120)
    assert [process.exitcode for process in processes] == [0, 0, 0, 0]
    assert current(empty_engine) == head()
    assert drift(empty_engine) == []


def test_four_processes_migrating_from_one_revision_behind_all_end_well(
    empty_database_url: str, empty_engine: Engine
) -> None:
    migrate_to(empty_engine, BEHIND)
    run(empty_engine, "INSERT INTO plans VALUES ('kept', 'cpu-x', 'random', 1, '{}', '{}')")
    processes = [SPAWN.Process(target=migrate_in_a_process, args=(empty_database_url,)) for _ in range(4)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(120)
    assert [process.exitcode for process in processes] == [0, 0, 0, 0]
    assert current(empty_engine) == head()
    with empty_engine.connect() as connection:
        assert connection.scalar(text("SELECT plan_id FROM plans")) == "kept"


def test_a_migrator_killed_in_the_middle_leaves_the_next_one_a_sound_database(
    empty_database_url: str, empty_engine: Engine
) -> None:
    migrate_to(empty_engine, BEHIND)
    # Held until the killed migrator waits for it, within its transaction.
    with empty_engine.connect() as holder:
        holder.execute(text("LOCK TABLE alembic_version IN SHARE MODE"))
        process = SPAWN.Process(target=migrate_in_a_process, args=(empty_database_url,))
        process.start()
        waiting = """
            SELECT count(*) FROM pg_stat_activity
            WHERE application_name = 'shardwright-migrate' AND wait_event_type = 'Lock'
        """
        give_up = time.monotonic() + 60
        while not number(empty_engine, waiting):
            assert time.monotonic() < give_up
            time.sleep(0.05)
        assert number(empty_engine, "SELECT count(*) FROM pg_locks WHERE mode = 'AccessExclusiveLock'") > 0
        process.kill()
        process.join()
        process.close()
        holder.rollback()
    upgrade(empty_engine, lock_wait_s=30)
    assert current(empty_engine) == head()
    assert drift(empty_engine) == []


def test_the_queues_tables_are_there_and_nothing_proposes_to_drop_them(empty_engine: Engine) -> None:
    upgrade(empty_engine)
    queue = {"procrastinate_jobs", "procrastinate_workers", "procrastinate_events", "procrastinate_periodic_defers"}
    assert queue <= set(inspect(empty_engine).get_table_names())
    with empty_engine.begin() as connection:
        command.check(migrate._config(connection))
    assert drift(empty_engine) == []


def test_a_database_without_the_queues_tables_is_no_success(empty_engine: Engine) -> None:
    upgrade(empty_engine)
    run(empty_engine, "DROP TABLE procrastinate_jobs CASCADE")
    with pytest.raises(MigrationFailed, match="lacks procrastinate_jobs"):
        upgrade(empty_engine)


def test_going_down_leaves_nothing_of_the_queue(empty_engine: Engine) -> None:
    upgrade(empty_engine)
    migrate_to(empty_engine, "0002")
    query = """
        SELECT relname::text FROM pg_class WHERE relname LIKE 'procrastinate%'
        UNION ALL SELECT proname::text FROM pg_proc WHERE proname LIKE 'procrastinate%'
        UNION ALL SELECT typname::text FROM pg_type WHERE typname LIKE 'procrastinate%'
    """
    with empty_engine.connect() as connection:
        assert connection.execute(text(query)).all() == []


def test_another_queue_schema_than_the_one_written_for_is_refused(
    empty_engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("procrastinate.schema.SchemaManager.get_schema", lambda: "CREATE TABLE procrastinate_jobs ()")
    with pytest.raises(RuntimeError, match=r"another schema than 3\.10\.0"):
        upgrade(empty_engine)
    assert current(empty_engine) is None


def test_waiting_for_another_migrator_ends_with_a_clear_error(lock_holder: BaseProcess, empty_engine: Engine) -> None:
    with pytest.raises(MigrationFailed, match="another process"):
        upgrade(empty_engine, lock_wait_s=0.3)
    assert current(empty_engine) is None


def test_a_killed_migrator_frees_the_lock(lock_holder: BaseProcess, empty_engine: Engine) -> None:
    assert lock_holder.pid is not None
    os.kill(lock_holder.pid, signal.SIGKILL)
    upgrade(empty_engine, lock_wait_s=30)
    assert current(empty_engine) == head()


def test_a_newer_database_is_refused_and_left_alone(engine: Engine) -> None:
    run(engine, "UPDATE alembic_version SET version_num = '9999'")
    run(engine, "ALTER TABLE plans ADD COLUMN newer text")
    before = schema(engine)
    with pytest.raises(UnknownRevision, match="9999"):
        upgrade(engine)
    assert current(engine) == "9999"
    assert schema(engine) == before


def test_a_database_that_claims_head_without_its_tables_is_no_success(empty_engine: Engine) -> None:
    run(empty_engine, "CREATE TABLE alembic_version (version_num varchar(32) PRIMARY KEY)")
    run(empty_engine, f"INSERT INTO alembic_version VALUES ('{head()}')")
    with pytest.raises(MigrationFailed, match="lacks"):
        upgrade(empty_engine)


def test_a_migration_that_fails_leaves_nothing_behind(empty_engine: Engine) -> None:
    run(empty_engine, "CREATE TABLE communication_measurements (id int)")
    with pytest.raises(ProgrammingError, match="already exists"):
        upgrade(empty_engine)
    assert current(empty_engine) is None
    assert [row for row in schema(empty_engine) if row[0] == "plans"] == []


def test_the_lock_survives_the_idle_timeout_of_its_database(empty_engine: Engine, empty_database_url: str) -> None:
    name = empty_engine.url.database
    run(empty_engine, f"ALTER DATABASE {name} SET idle_session_timeout = 100")
    other = build_engine(empty_database_url)
    with migrate._one_migrator(other, 5):
        time.sleep(0.5)
        with pytest.raises(MigrationFailed, match="another process"):
            upgrade(empty_engine, lock_wait_s=0.2)
    other.dispose()
