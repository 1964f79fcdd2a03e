"""Fuzzes a service with schemathesis: every operation, all checks, sequences of calls along links too.

``python -m tests.contract.fuzzing`` is what ``make fuzz`` runs.
"""

import argparse
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from service.domain.access import NewKey
from service.domain.callers import Scope
from service.settings import Settings
from service.storage.api_keys import ApiKeyRepository
from service.storage.audit import AuditTrail
from service.storage.embedded import EmbeddedPostgres
from service.storage.engine import build_engine
from service.wiring import running_app
from tests.api.support import listening
from tests.storage.live_worker import live_worker

_ROOT = Path(__file__).parents[2]
_CONFIG = Path(__file__).with_name("schemathesis.toml")
_COUNTS = re.compile(r"^Test cases:\n +([\d,]+) generated(?:, ([\d,]+) found)?", re.MULTILINE)

_LEAST_LINKS = 5
"""Along fewer links sequences of calls hardly get anywhere."""


@dataclass(frozen=True, slots=True)
class Fuzzed:
    """What came of a run.

    Attributes:
        cases: requests that were made up and sent.
        links: of the document, along which calls were made.
        failures: requests whose answer a check refused; 1 where the run itself failed.
        output: what schemathesis wrote, with a command for each failure.
    """

    cases: int
    links: int
    failures: int
    output: str


@dataclass(frozen=True, slots=True)
class Target:
    """A service that requires keys, and headers with one that may do everything, as often as it likes."""

    url: str
    admin: Mapping[str, str]


@contextmanager
def target(database_url: str) -> Iterator[Target]:
    """A service with the models that ship, and a worker that lives for a day and measures nothing."""
    configured = Settings(
        database_url=database_url,
        require_keys=True,
        planner_processes=1,
        planner_queue=16,
        default_time_limit_ms=50,
        max_time_limit_ms=200,
        profile_quota=1_000_000,
    )
    engine = build_engine(database_url)
    with running_app(configured) as app, listening(app) as client:
        live_worker(engine, "cpu-fbgemm", age_s=-86_400)
        wanted = NewKey("fuzzer", frozenset({Scope.ADMIN}), requests_per_minute=10_000_000, burst=1_000_000)
        _, secret = ApiKeyRepository(engine, AuditTrail(engine)).create(wanted, "a test")
        yield Target(str(client.base_url), {"X-API-Key": secret})
    engine.dispose()


def fuzz(url: str, headers: Mapping[str, str], examples: int, seed: int) -> Fuzzed:
    """Runs all phases against a service.

    Args:
        url: of the service.
        headers: of all requests.
        examples: most cases of an operation and phase.
        seed: the same seed makes up the same cases.
    """
    command = [str(Path(sys.executable).with_name("schemathesis")), f"--config-file={_CONFIG}"]
    command += ["run", f"{url}/openapi.json", f"--url={url}", f"--max-examples={examples}", f"--seed={seed}"]
    command += [f"--header={name}: {value}" for name, value in headers.items()]
    ran = subprocess.run(command, cwd=_ROOT, capture_output=True, text=True, check=False)
    found = _COUNTS.search(ran.stdout)
    cases, failures = (int((count or "0").replace(",", "")) for count in found.groups()) if found else (0, 0)
    links = re.search(r"API Links: +(\d+) covered", ran.stdout)
    return Fuzzed(
        cases, int(links[1]) if links else 0, max(failures, int(ran.returncode != 0)), ran.stdout + ran.stderr
    )


def main() -> int:
    """Fuzzes a service of its own until enough cases were sent, with another seed each time; 1 where one failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=5_000, help="at least so many (5,000)")
    parser.add_argument("--examples", type=int, default=50, help="of an operation and phase of a run (50)")
    parser.add_argument("--seed", type=int, default=1, help="of the first run (1)")
    parser.add_argument("--max-time", type=float, default=1_200, help="seconds after which no run begins (1,200)")
    options = parser.parse_args()
    began, found = time.monotonic(), list[Fuzzed]()
    with tempfile.TemporaryDirectory() as folder, EmbeddedPostgres(Path(folder)) as url, target(url) as service:
        while sum(run.cases for run in found) < options.cases and time.monotonic() - began < options.max_time:
            # One run in four is of somebody without a key.
            headers = {} if len(found) % 4 == 3 else service.admin
            found.append(fuzz(service.url, headers, options.examples, options.seed + len(found)))
            print(found[-1].output, flush=True)
    cases, failures = sum(run.cases for run in found), sum(run.failures for run in found)
    links = max(run.links for run in found)
    print(f"calls were made along {links} links of the document")
    print(f"{cases} cases, {failures} failures")
    return int(failures > 0 or cases < options.cases or links < _LEAST_LINKS)


if __name__ == "__main__":
    sys.exit(main())
