"""Settings of the service, read from the environment once."""

import os
from ipaddress import ip_address
from pathlib import Path
from typing import Literal
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from pydantic import AliasChoices, Field, field_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

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
        default_factory=lambda: max(2, (os.cpu_count() or 1) - 1),
        ge=1,
        le=256,
        description="Plans made at the same time; by default a core is left to the API where there are three.",
    )
    planner_queue: int = Field(
        default=16, ge=0, le=1024, description="Requests that may wait for a planning process; more are answered 503."
    )
    default_time_limit_ms: int = Field(default=2_000, ge=1, description="Time limit of a request that names none.")
    max_time_limit_ms: int = Field(default=60_000, ge=1, description="Largest time limit that a request may name.")
    max_body_bytes: int = Field(
        default=8 * 1024 * 1024, ge=1_024, description="Larger request bodies are answered 413."
    )
    max_tables: int = Field(default=5_000, ge=1, description="Most tables in one request.")
    body_timeout_s: float = Field(default=30.0, gt=0, description="Seconds a client has for sending its body.")
    shutdown_timeout_s: int = Field(default=30, ge=1, description="Seconds that running requests get after SIGTERM.")
    admin_calls: bool = Field(
        default_factory=lambda given: _is_loopback(given["host"]),
        description="Whether POST /models/... may change which versions serve; by default only where the host is a "
        "loopback address.",
    )
    promotion_poll_s: float = Field(
        default=3.0, gt=0, le=60, description="Seconds after which promotions are looked for without a notification."
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
    keep_measurements_days: int = Field(
        default=365,
        ge=1,
        description="Days for which measurements by an older bench are kept; those by the newest one, and by any that "
        "a version in the model store was trained on, are kept for good.",
    )
    nightly_cron: str = Field(
        default="0 3 * * *",
        pattern=r"^\S+( \S+){4}$",
        description="When models are retrained, as cron has it: minute, hour, day of month, month, day of week.",
    )
    nightly_timezone: str = Field(default="UTC", description="Time zone of nightly_cron, by its IANA name.")
    nightly_margin: float = Field(
        default=0.01,
        ge=0,
        lt=1,
        description="By how much a retrained version must be better than the one that serves, relative to its error or "
        "cost, to be promoted.",
    )
    log_level: Literal["debug", "info", "warning", "error"] = "info"

    @field_validator("nightly_timezone")
    @classmethod
    def _known_timezone(cls, name: str) -> str:
        try:
            ZoneInfo(name)
        except (ZoneInfoNotFoundError, ValueError, OSError) as error:
            raise ValueError(f"{name!r} is no time zone of the IANA database, as UTC or Europe/Berlin are") from error
        return name
