"""What the files of a deployment say about the service, held against the service itself."""

import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import AliasChoices
from typer.testing import CliRunner

from service.cli import app
from service.settings import Settings
from tests.document import openapi_document

ROOT = Path(__file__).resolve().parents[2]


def project() -> dict[str, Any]:
    """The table ``project`` of pyproject.toml."""
    content: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return content


def setting_names() -> set[str]:
    """Every environment variable that is a setting."""
    names = set()
    for name, field in Settings.model_fields.items():
        alias = field.validation_alias
        names |= {str(c) for c in alias.choices} if isinstance(alias, AliasChoices) else {f"SHARDWRIGHT_{name.upper()}"}
    return names


def is_command(arguments: Sequence[str]) -> bool:
    """Whether the command line has such a command with such options; runs nothing."""
    return CliRunner().invoke(app, [*arguments, "--help"]).exit_code == 0


def routes() -> set[str]:
    """Paths that the API documents."""
    return set(openapi_document()["paths"])
