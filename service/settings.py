"""Settings of the service, read from the environment once."""

from ipaddress import ip_address
from pathlib import Path
from typing import Literal, Self

from croniter import CroniterError, croniter
from pydantic import AliasChoices, Field, field_validator, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from service.profiling.host import usable_cores

_REPOSITORY = Path(__file__).resolve().parent.parent


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


class Settings(BaseSettings):
    """Typed environment: every field is ``SHARDWRIGHT_<NAME>``; DATABASE_URL and PORT also go unprefixed."""

    model_config = SettingsConfigDict(env_prefix="SHARDWRIGHT_", frozen=True, populate_by_name=True, extra="forbid")

    database_url: str | None = Field(
        default=None,
        validation_alias=AliasChoices("SHARDWRIGHT_DATABASE_URL", "DATABASE_URL"),
        description="Postgres to use; None starts an embedded one under data_dir.",
    )
    data_dir: Path = Field(default=Path("var"), description="Where the embedded Postgres keeps its data.")
    host: str = Field(default="127.0.0.1", description="Address to listen on.")
    port: int = Field(default=8000, ge=0, le=65535, validation_alias=AliasChoices("SHARDWRIGHT_PORT", "PORT"))
    model_store: str = Field(default=str(_REPOSITORY / "model_store"), description="Folder of the cost models.")
    planner_processes: int = Field(
        default_factory=lambda: max(2, usable_cores() - 1),
        ge=1,
        le=256,
        description="Plans made at the same time; by default a core is left to the API where there are three that this "
        "process may use.",
    )
    planner_queue: int = Field(
        default=16, ge=0, le=1024, description="Requests that may wait for a planning process; more are answered 503."
    )
    default_time_limit_ms: int = Field(default=2_000, ge=1, description="Time limit of a request that names none.")
    max_time_limit_ms: int = Field(default=60_000, ge=1, description="Largest time limit that a request may name.")
    plan_poll_timeout_s: float = Field(
        default=30.0,
        gt=0,
        description="Seconds without a GET after which a plan that was asked for with `Prefer: respond-async` is "
        "cancelled.",
    )
    max_body_bytes: int = Field(
        default=8 * 1024 * 1024, ge=1_024, description="Larger request bodies are answered 413."
    )
    max_tables: int = Field(default=5_000, ge=1, description="Most tables in one request.")
    body_timeout_s: float = Field(default=30.0, gt=0, description="Seconds a client has for sending its body.")
    drain_s: float = Field(
        default=0.0,
        ge=0,
        description="Seconds after SIGTERM for which /readyz says 503 while all else is answered as before, so that a "
        "proxy finds out; a second signal ends them.",
    )
    memory_limit_gib: float | None = Field(
        default=None,
        gt=0,
        description="Memory that the service may take, which only /metrics shows, for an alert; by default that of its "
        "control group, else the machine's.",
    )
    shutdown_timeout_s: int = Field(default=30, ge=1, description="Seconds that running requests get after SIGTERM.")
    require_keys: bool = Field(
        default_factory=lambda given: not _is_loopback(given["host"]),
        description="Whether callers need an API key (see `shardwright keys`); by default where the host is not a "
        "loopback address. Without, everyone who reaches the service may do everything: not behind a proxy.",
    )
    key_requests_per_minute: int = Field(
        default=6_000,
        ge=1,
        description="Requests that an API key may make to each API process, for keys that were made without a limit.",
    )
    key_burst: int = Field(
        default=2_000, ge=1, description="Of these, so many may come at once, for keys that were made without a burst."
    )
    promotion_poll_s: float = Field(
        default=3.0,
        gt=0,
        le=60,
        description="Seconds after which promotions and API keys are looked for without a notification.",
    )
    prune_spares_plans_of_days: float = Field(
        default=90.0, ge=0, description="Versions named by plans asked for within so many days are not pruned."
    )
    keep_plans_days: int = Field(
        default=90,
        ge=1,
        description="Days for which plans and launches are kept after they were last asked for; those that something "
        "else needs are kept longer.",
    )
    keep_observations_days: int = Field(
        default=365, ge=1, description="Days for which observations are kept, and the plans that they are of."
    )
    keep_profiles_days: int = Field(
        default=90,
        ge=1,
        description="Days for which profiles are kept after they were measured, parked or given up, and requests for "
        "profiles after they were last asked; what was measured is kept as measurements are.",
    )
    keep_measurements_days: int = Field(
        default=365,
        ge=1,
        description="Days for which measurements by an older bench are kept; those by the newest one, and by any that "
        "a version in the model store was trained on, are kept for good.",
    )
    worker_memory_gib: float = Field(
        default=4.0, gt=0, description="Most memory that a worker's measurement may take; tables' rows are cut to it."
    )
    worker_heartbeat_s: float = Field(default=5.0, gt=0, description="Seconds between a worker's heartbeats.")
    worker_stalled_s: float = Field(
        default=30.0,
        gt=0,
        description="Seconds without a heartbeat after which a worker's job is given to another; several heartbeats.",
    )
    worker_alive_s: float = Field(
        default=60.0, gt=0, description="Seconds after a heartbeat for which a worker's hardware counts as served."
    )
    worker_poll_s: float = Field(
        default=5.0, gt=0, description="Seconds between a worker's looks at the queue, beside its notifications."
    )
    worker_sweep_s: float = Field(
        default=5.0, gt=0, description="Seconds between a supervisor's looks for profiles whose worker is gone."
    )
    worker_job_timeout_s: float = Field(default=300.0, gt=0, description="Most seconds that one profile may take.")
    worker_shutdown_s: float = Field(
        default=20.0, gt=0, description="Seconds that a job in hand has after SIGTERM; then it is given back."
    )
    profile_tries: int = Field(default=3, ge=1, description="Tries after which a profile that fails is parked.")
    profile_retry_s: float = Field(
        default=10.0, gt=0, description="Seconds before the second try; four times as long before each later one."
    )
    profile_novelty: float = Field(
        default=1.0,
        ge=0,
        description="Novelty above which a table of a plan is queued to be measured; 1 is where few tables of the "
        "measured kind are.",
    )
    profile_quota: int = Field(
        default=500,
        ge=0,
        description="New profiles that one caller may queue a day (UTC); its plans and estimates queue half at most.",
    )
    profile_expires_days: float = Field(
        default=30.0, gt=0, description="Days after which a profile that waits is given up, or may be measured again."
    )
    profile_noisy_spread: float = Field(
        default=0.3,
        gt=0,
        description="Interquartile range of a measurement's repeats, relative to their median, above which they "
        "disagree and training leaves it out.",
    )
    nightly_cron: str = Field(
        default="0 2 * * *",
        description="When workers retrain the models of their hardware, and prune what is old, as cron in UTC; empty "
        "for never.",
    )
    nightly_timeout_h: float = Field(default=6.0, gt=0, description="Most hours that a nightly training may take.")
    nightly_margin: float = Field(
        default=0.01,
        ge=0,
        lt=1,
        description="By how much a retrained version must be better than the one that serves, relative to its error or "
        "cost, to be promoted.",
    )
    log_level: Literal["debug", "info", "warning", "error"] = "info"

    @field_validator("nightly_cron")
    @classmethod
    def _cron_that_comes(cls, cron: str) -> str:
        if cron:
            try:
                croniter(cron).get_next()
            except CroniterError as error:
                raise ValueError(
                    f"{cron!r} is no time that comes in cron's form, such as '0 2 * * *': {error}"
                ) from error
        return cron

    @model_validator(mode="after")
    def _stalled_after_several_heartbeats(self) -> Self:
        if self.worker_stalled_s < 2 * self.worker_heartbeat_s:
            raise ValueError("worker_stalled_s must be at least twice worker_heartbeat_s: live workers would be dead")
        return self
