"""The repository of profiles, as those see it who ask for them."""

from collections.abc import Iterable, Sequence
from typing import Any

from sqlalchemy import Connection, Engine, RowMapping, func, select, text, true
from sqlalchemy.dialects.postgresql import insert

from service.domain.callers import Caller
from service.domain.measurements import NOISY, combination_fingerprint
from service.domain.plan import content_hash
from service.domain.profiles import (
    NoWorker,
    ProfileQuotaExceeded,
    ProfileRequest,
    ProfileState,
    ProfileTerms,
    StoredProfile,
    TableProfile,
    WidthResult,
    campaign_of,
    configured_profile,
)
from service.domain.tables import Optimizer
from service.storage.engine import short_transaction, storage_errors
from service.storage.profile_queue import LIVE_WORKER, queue
from service.storage.profile_rows import ProfileRequestRow, ProfileRow, RequestedProfileRow
from service.storage.rows import ComputeMeasurementRow, MeasuredTableRow

# One caller's requests take turns, so that the quota holds; the lock ends with the transaction, or the connection.
_TURN = text("SELECT pg_advisory_xact_lock(hashtextextended('profiles of ' || :caller, 0))")
_MAY_BE_QUEUED = "(state = 'expired' OR state IN ('measured', 'parked') AND expires_at < now())"
# In the order of their ids, as whoever locks several does; kept from being pruned until the end, too.
_KNOWN = text(
    f"SELECT id, {_MAY_BE_QUEUED} AS may_be_queued FROM profiles WHERE id = ANY(:ids) ORDER BY id FOR NO KEY UPDATE"  # noqa: S608
)
_MEASURED = text(
    """
    WITH last AS (
        SELECT environment->>'bench' AS bench, environment->>'device' AS device FROM compute_measurements
        WHERE hardware = :hardware AND environment->>'noisy' IS NULL ORDER BY measured_at DESC LIMIT 1
    )
    SELECT campaign, combination FROM compute_measurements, last
    WHERE hardware = :hardware AND (campaign = ANY(:campaigns) OR combination = ANY(:combinations))
        AND environment->>'noisy' IS NULL AND environment->>'bench' IS NOT DISTINCT FROM last.bench
        AND environment->>'device' IS NOT DISTINCT FROM last.device
    """
)
_QUEUED_TODAY = text(
    "SELECT count(*) FROM profiles WHERE requested_by = :caller AND queued_at >= date_trunc('day', now(), 'UTC')"
)
_SECONDS_LEFT = text("SELECT extract(epoch FROM date_trunc('day', now(), 'UTC') + interval '1 day' - now())::int + 1")
_FRESH = """
    attempts = 0, error = NULL, started_at = NULL, finished_at = NULL, rows_measured = NULL, queued_at = now(),
    expires_at = now() + make_interval(secs => 86400 * :days)
"""
_LOCKED = "id IN (SELECT id FROM profiles WHERE id = ANY(:ids) ORDER BY id FOR NO KEY UPDATE)"
_ASKED_ANEW = text(
    f"UPDATE profiles SET requested_by = :caller, {_FRESH} WHERE {_LOCKED} AND {_MAY_BE_QUEUED} RETURNING id"  # noqa: S608
)
_AGAIN = text(
    f"UPDATE profiles SET {_FRESH} WHERE {_LOCKED} AND state IN ('parked', 'expired') RETURNING id"  # noqa: S608
)
_DEVICES = text(f"SELECT DISTINCT device FROM workers WHERE hardware = :hardware AND id IN ({LIVE_WORKER})")  # noqa: S608
_SERVED = text(f"SELECT DISTINCT hardware FROM workers WHERE id IN ({LIVE_WORKER}) ORDER BY hardware")  # noqa: S608


class ProfileRepository:
    """Keeps profiles in Postgres, each under its key, and queues each once however many ask."""

    def __init__(self, engine: Engine) -> None:
        """Uses the engine's pool; opens no connection yet."""
        self._engine = engine

    def devices(self, hardware: str, terms: ProfileTerms) -> set[str]:
        """What live workers measure a hardware on, as they name it; empty where none serves it.

        Raises:
            StorageUnavailable: the database cannot be reached.
        """
        asked = {"hardware": hardware, "alive_s": terms.worker_alive_s}
        with storage_errors(), self._engine.connect() as connection:
            return set(connection.scalars(_DEVICES, asked))

    def queue_new(self, profiles: Iterable[TableProfile], caller: str, terms: ProfileTerms) -> int:
        """Queues those that are neither known nor measured yet, up to half of the caller's quota; how many.

        What the newest bench measured of the same table, alone, in whatever campaign, is not measured again.

        Raises:
            NoWorker: there are new ones, and no live worker serves their hardware.
            StorageUnavailable: the database cannot be reached.
        """
        with short_transaction(self._engine) as connection:
            return _queue_new(connection, _by_key(profiles), caller, terms, whole=False)

    def request(self, named: Sequence[tuple[str, TableProfile]], caller: str, terms: ProfileTerms) -> ProfileRequest:
        """Stores a request and queues those of its profiles that are not known yet, all or nothing.

        Args:
            named: tables by name; of one hardware.
            caller: who asks.
            terms: what callers may queue.

        Raises:
            NoWorker: there are new ones, and no live worker serves their hardware.
            ProfileQuotaExceeded: there are more new ones than the caller may queue today.
            StorageUnavailable: the database cannot be reached.
        """
        keys = [(name, profile.key) for name, profile in named]
        request_id = content_hash({"caller": caller, "profiles": keys})
        with short_transaction(self._engine) as connection:
            _queue_new(connection, _by_key(profile for _, profile in named), caller, terms, whole=True)
            _store_request(connection, request_id, keys, caller)
            return _request(connection, request_id)

    def get_request(self, request_id: str, caller: Caller) -> ProfileRequest | None:
        """The request with this id and where its profiles stand, or None where there is none for this caller.

        Raises:
            StorageUnavailable: the database cannot be reached.
        """
        with storage_errors(), self._engine.connect() as connection:
            theirs = true() if caller.sees_all else ProfileRequestRow.requested_by == caller.name
            found = connection.scalar(select(ProfileRequestRow.id).where(ProfileRequestRow.id == request_id, theirs))
            return _request(connection, request_id) if found else None

    def profiles(self, hardware: str | None = None, state: ProfileState | None = None) -> list[StoredProfile]:
        """Profiles, those that were asked for last first; of some hardware, in some state, or all.

        Raises:
            StorageUnavailable: the database cannot be reached.
        """
        query = select(ProfileRow.__table__).order_by(ProfileRow.queued_at.desc(), ProfileRow.id)
        if hardware is not None:
            query = query.where(ProfileRow.hardware == hardware)
        if state is not None:
            query = query.where(ProfileRow.state == state.value)
        with storage_errors(), self._engine.connect() as connection:
            return [_stored(row, ()) for row in connection.execute(query).mappings()]

    def get(self, key: str) -> StoredProfile | None:
        """The profile with this key and its results, or None.

        Raises:
            StorageUnavailable: the database cannot be reached.
        """
        with storage_errors(), self._engine.connect() as connection:
            return _profiles(connection, [key]).get(key)

    def retry(self, keys: Sequence[str], terms: ProfileTerms) -> list[str]:
        """Queues parked and expired profiles again, whoever asked for them; the keys of those.

        Raises:
            StorageUnavailable: the database cannot be reached.
        """
        with short_transaction(self._engine) as connection:
            values = {"ids": list(keys), "days": terms.expires_days}
            found = sorted(connection.scalars(_AGAIN, values))
            queue(connection, found)
            return found


def _by_key(profiles: Iterable[TableProfile]) -> dict[str, TableProfile]:
    return {profile.key: profile for profile in profiles}


def _queue_new(
    connection: Connection, profiles: dict[str, TableProfile], caller: str, terms: ProfileTerms, whole: bool
) -> int:
    """How many were queued; ``whole`` refuses what is beyond the quota, or else that is left out."""
    connection.execute(_TURN, {"caller": caller})
    known = {found.id for found in connection.execute(_KNOWN, {"ids": list(profiles)}) if not found.may_be_queued}
    if not whole:
        known |= _measured(connection, profiles)
    # In a fixed order, so that two callers who want the same wait for each other in turn.
    new = sorted(profiles.keys() - known)
    if not new:
        return 0
    _refuse_unserved(connection, {profiles[key].hardware for key in new}, terms)
    # Plans leave half of it to those who ask for profiles by name.
    quota = terms.quota_per_day if whole else terms.quota_per_day // 2
    left = quota - (connection.scalar(_QUEUED_TODAY, {"caller": caller}) or 0)
    if whole and left < len(new):
        raise _over_quota(connection, len(new), max(0, left), terms)
    chosen = new[: max(0, left)]
    if chosen:
        values = [_values(key, profiles[key], caller) for key in chosen]
        connection.execute(insert(ProfileRow).on_conflict_do_nothing(index_elements=["id"]), values)
    asked = {"ids": chosen, "caller": caller, "days": terms.expires_days}
    queued = list(connection.scalars(_ASKED_ANEW, asked))
    queue(connection, queued)
    return len(queued)


def _measured(connection: Connection, profiles: dict[str, TableProfile]) -> set[str]:
    """Keys of those that the bench and device which measured their hardware last have measured, not noisily."""
    found: set[str] = set()
    for hardware in {profile.hardware for profile in profiles.values()}:
        names = {key: {campaign_of(key), _alone(one)} for key, one in profiles.items() if one.hardware == hardware}
        asked = {
            "hardware": hardware,
            "campaigns": [campaign_of(key) for key in names],
            "combinations": [_alone(profiles[key]) for key in names],
        }
        seen = {name for row in connection.execute(_MEASURED, asked) for name in row}
        found |= {key for key, own in names.items() if own & seen}
    return found


def _alone(profile: TableProfile) -> str:
    return combination_fingerprint((profile.table,), profile.batch_size, profile.optimizer)


def _refuse_unserved(connection: Connection, wanted: set[str], terms: ProfileTerms) -> None:
    served = list(connection.scalars(_SERVED, {"alive_s": terms.worker_alive_s}))
    for hardware in sorted(wanted - set(served)):
        raise NoWorker(
            f"no live worker serves {hardware!r}: run `shardwright worker --hardware {hardware}` on such a machine",
            hardware=hardware,
            served=served,
            retry_after_s=round(terms.worker_alive_s),
        )


def _over_quota(connection: Connection, new: int, left: int, terms: ProfileTerms) -> ProfileQuotaExceeded:
    return ProfileQuotaExceeded(
        f"{new} of the tables are new, and {left} of {terms.quota_per_day} new profiles a day are left: ask for fewer, "
        "or again tomorrow (UTC)",
        quota_per_day=terms.quota_per_day,
        left=left,
        retry_after_s=connection.scalar(_SECONDS_LEFT),
    )


def _values(key: str, profile: TableProfile, caller: str) -> dict[str, Any]:
    """Of a profile that is known, but not queued: ``expired``, until it is asked for anew."""
    return {
        "id": key,
        "hardware": profile.hardware,
        "configuration": profile.configuration,
        "batch_size": profile.batch_size,
        "optimizer": profile.optimizer.value,
        "state": ProfileState.EXPIRED.value,
        "requested_by": caller,
    }


def _store_request(connection: Connection, request_id: str, keys: Sequence[tuple[str, str]], caller: str) -> None:
    values = {"id": request_id, "requested_by": caller}
    asked = insert(ProfileRequestRow).values(values)
    connection.execute(asked.on_conflict_do_update(index_elements=["id"], set_={"last_asked_at": func.now()}))
    members = [
        {"request_id": request_id, "position": position, "name": name, "profile_id": key}
        for position, (name, key) in enumerate(keys)
    ]
    primary = ["request_id", "position"]
    connection.execute(insert(RequestedProfileRow).on_conflict_do_nothing(index_elements=primary), members)


def _request(connection: Connection, request_id: str) -> ProfileRequest:
    created_at = connection.execute(
        select(ProfileRequestRow.created_at).where(ProfileRequestRow.id == request_id)
    ).scalar_one()
    row = RequestedProfileRow
    query = select(row.name, row.profile_id).where(row.request_id == request_id).order_by(row.position)
    members = connection.execute(query).all()
    found = _profiles(connection, [key for _, key in members])
    return ProfileRequest(request_id, created_at, [(name, found[key]) for name, key in members])


def _profiles(connection: Connection, keys: Sequence[str]) -> dict[str, StoredProfile]:
    """Profiles by key, with their results."""
    results = _results(connection, keys)
    rows = connection.execute(select(ProfileRow.__table__).where(ProfileRow.id == func.any(list(keys)))).mappings()
    return {row["id"]: _stored(row, results.get(row["id"], ())) for row in rows}


def _results(connection: Connection, keys: Sequence[str]) -> dict[str, tuple[WidthResult, ...]]:
    """What the last round of each profile measured."""
    row, campaigns = ComputeMeasurementRow, {campaign_of(key): key for key in keys}
    query = (
        select(
            row.campaign, row.index, row.forward_ms, row.backward_ms, row.environment, MeasuredTableRow.embedding_dim
        )
        .join(MeasuredTableRow, MeasuredTableRow.measurement_id == row.id)
        .where(row.campaign == func.any(list(campaigns)))
        .order_by(row.campaign, row.index.desc())
    )
    by_key: dict[str, dict[int, WidthResult]] = {}
    for campaign, _, forward_ms, backward_ms, environment, width in connection.execute(query):
        result = WidthResult(width, forward_ms, backward_ms, NOISY in environment)
        by_key.setdefault(campaigns[campaign], {}).setdefault(width, result)
    return {key: tuple(sorted(found.values(), key=lambda result: -result.width)) for key, found in by_key.items()}


def _stored(row: RowMapping, results: tuple[WidthResult, ...]) -> StoredProfile:
    return StoredProfile(
        key=row["id"],
        profile=configured_profile(
            row["hardware"], row["configuration"], row["batch_size"], Optimizer(row["optimizer"])
        ),
        state=ProfileState(row["state"]),
        attempts=row["attempts"],
        error=row["error"],
        rows_measured=row["rows_measured"],
        queued_at=row["queued_at"],
        started_at=row["started_at"],
        finished_at=row["finished_at"],
        expires_at=row["expires_at"],
        results=results,
    )
