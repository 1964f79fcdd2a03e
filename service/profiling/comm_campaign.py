"""Measuring campaigns of the collectives: which exchanges are drawn, and the loop that measures and stores them."""

import platform
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from math import inf

import numpy as np
import torch

from service.domain.errors import MeasurementRefused
from service.domain.measurements import CommunicationMeasurement
from service.domain.plan import content_hash
from service.domain.ports import MeasurementStore
from service.profiling.campaign import Progress
from service.profiling.combinations import BATCH_SIZES
from service.profiling.comm_bench import BENCH_VERSION, Exchange, ExchangeTiming, measure_exchanges
from service.profiling.compute_bench import device_name
from service.profiling.host import oversubscribed, usable_cores

REPEATS = 9
IN_ONE_RUN = 50
"""Exchanges that one start of the ranks measures, and that are stored together."""

MOST_SKEW_MS = 200.0
_CPU_RANKS = (2, 4, 8)
_BUFFERS_BYTES = 2 * 2**30
_MOST_RANK_BYTES = 128 * 2**20
_WIDTHS = (8, 4096)
_UNEVENNESS = (0.03, 1.5)
_WITHOUT_TABLES_SHARE = 0.1
_TOGETHER_SHARE = 1 / 3
_LEAST_SKEW_MS = 1.0

MOST_RANKS = _BUFFERS_BYTES // (2 * 4 * _WIDTHS[0] * max(BATCH_SIZES))
"""With more, the two buffers of a rank would not hold the narrowest widths of the largest batch."""

Bench = Callable[[Sequence[Exchange]], list[ExchangeTiming]]


def default_ranks(device: str) -> tuple[int, ...]:
    """Numbers of ranks to measure: 2, 4 and 8 processes of the CPU; all GPUs, or none where there are not two."""
    if not device.startswith("cuda"):
        return _CPU_RANKS
    gpus = torch.cuda.device_count()
    return (gpus,) if gpus > 1 else ()


def exchange_environment(ranks: int, device: str) -> dict[str, str]:
    """Versions and names that an exchange depends on; ``oversubscribed`` where ranks outnumber the cores."""
    found = {
        "torch": torch.__version__,
        "bench": str(BENCH_VERSION),
        "device": device_name(torch.device(device)),
        "python": platform.python_version(),
        "cores": str(usable_cores()),
    }
    if oversubscribed(ranks, device):
        found["oversubscribed"] = "true"
    return found


class CommunicationCampaign:
    """Draws exchanges: a batch size, an uneven number of pooled columns on each rank, and when each rank starts.

    Adapted from NeuroShard, whose widths are those of random placements and whose ranks start 1 to 20 ms late. Here
    widths are drawn directly, from nearly equal to one rank with most of them, now and then with a rank that has
    none; a third of the exchanges start together, the others up to a skew of 1 to 200 ms, evenly over its logarithm.

    Args:
        hardware: name that the measurements are stored under.
        ranks: processes that exchange.
        seed: seed of the draws.
        device: ``cpu`` or ``cuda``; another processor's campaign is another one.

    Raises:
        MeasurementRefused: so many ranks could not hold their parts of every exchange in memory.
    """

    def __init__(self, hardware: str, ranks: int, seed: int, device: str = "cpu") -> None:
        if ranks > MOST_RANKS:
            raise MeasurementRefused(f"{ranks} ranks do not fit on one host: give at most {MOST_RANKS}")
        self.hardware = hardware
        self.ranks = ranks
        self.seed = seed
        self.device = device
        self._rank_bytes = min(_MOST_RANK_BYTES, _BUFFERS_BYTES // (2 * ranks))
        self.name = self._name()

    def exchange(self, index: int) -> Exchange:
        """The exchange at a position; sizes are spread evenly over their logarithm."""
        rng = np.random.default_rng([self.seed, self.ranks, index])
        sizes, weights = zip(*BATCH_SIZES.items(), strict=True)
        batch_size = int(rng.choice(sizes, p=weights))
        return Exchange(self._widths(rng, batch_size), batch_size, self._start_delays_ms(rng))

    def runs(
        self,
        store: MeasurementStore,
        samples: int,
        budget_s: float = inf,
        bench: Bench | None = None,
    ) -> Iterator[Progress]:
        """Measures positions 0 .. ``samples`` that the store lacks, ``IN_ONE_RUN`` at a time, each run then stored.

        Stops after ``budget_s`` seconds, once the run in hand is done; a KeyboardInterrupt loses only that run.

        Args:
            store: keeps the measurements, and says which there are.
            samples: exchanges to have in the end.
            budget_s: seconds after which no run is begun.
            bench: measures the exchanges of a run; ``measure_exchanges`` on the device by default.

        Yields:
            The progress before the first run, and after each.

        Raises:
            MeasurementRefused: a rank failed; what was measured before this run is stored.
        """
        bench = bench or partial(measure_exchanges, device=self.device, repeats=REPEATS)
        stored = {m.index for m in store.communication(self.hardware) if m.campaign == self.name}
        environment = exchange_environment(self.ranks, self.device)
        missing = [index for index in range(samples) if index not in stored]
        progress = Progress(measured=0, refused=0, stored=len(stored))
        started = time.monotonic()
        yield progress
        for first in range(0, len(missing), IN_ONE_RUN):
            if time.monotonic() - started > budget_s:
                break
            made = self._measured(bench, missing[first : first + IN_ONE_RUN], environment)
            added = sum(store.add_communication(measurement) for measurement in made)
            progress = replace(progress, measured=progress.measured + added)
            yield progress

    def _measured(
        self, bench: Bench, indices: Sequence[int], environment: dict[str, str]
    ) -> list[CommunicationMeasurement]:
        exchanges = [self.exchange(index) for index in indices]
        began = datetime.now(UTC)
        timings = bench(exchanges)
        # Measured together, repeat by repeat: each gets its share of the time.
        share = (datetime.now(UTC) - began) / len(indices)
        return [
            CommunicationMeasurement(
                campaign=self.name,
                index=index,
                hardware=self.hardware,
                widths=exchange.widths,
                batch_size=exchange.batch_size,
                start_delays_ms=exchange.start_delays_ms,
                forward_wait_ms=timing.forward_wait_ms,
                forward_transfer_ms=timing.forward_transfer_ms,
                backward_ms=timing.backward_ms,
                repeats=REPEATS,
                environment=environment,
                measured_at=began + place * share,
            )
            for place, (index, exchange, timing) in enumerate(zip(indices, exchanges, timings, strict=True), 1)
        ]

    def _widths(self, rng: np.random.Generator, batch_size: int) -> tuple[int, ...]:
        """Multiples of 4 around a mean, each factor of a log-normal law whose spread is drawn, too."""
        narrowest, widest = _WIDTHS
        widest = min(widest, self._rank_bytes // (16 * batch_size) * 4)
        mean = _log_uniform(rng, narrowest, widest)
        factors = np.exp(_log_uniform(rng, *_UNEVENNESS) * rng.standard_normal(self.ranks))
        widths = np.clip(np.rint(mean * factors / factors.mean() / 4) * 4, 4, widest)
        if rng.uniform() < _WITHOUT_TABLES_SHARE:
            widths[rng.integers(self.ranks)] = 0
        return tuple(int(width) for width in widths)

    def _start_delays_ms(self, rng: np.random.Generator) -> tuple[float, ...]:
        if rng.uniform() < _TOGETHER_SHARE:
            return (0.0,) * self.ranks
        delays = rng.uniform(0.0, _log_uniform(rng, _LEAST_SKEW_MS, MOST_SKEW_MS), self.ranks)
        return tuple(round(float(delay), 3) for delay in delays - delays.min())

    def _name(self) -> str:
        content = {
            "bench": BENCH_VERSION,
            "draws": [sorted(BATCH_SIZES.items()), _WIDTHS, self._rank_bytes, _UNEVENNESS, _WITHOUT_TABLES_SHARE],
            "delays": [_TOGETHER_SHARE, _LEAST_SKEW_MS, MOST_SKEW_MS],
            "hardware": self.hardware,
            "device": device_name(torch.device(self.device)),
            "ranks": self.ranks,
            "seed": self.seed,
        }
        return f"{self.hardware}-exchange-{self.ranks}-{content_hash(content)[:12]}"


def in_turn(campaigns: Mapping[str, Iterator[Progress]]) -> Iterator[tuple[str, Progress | MeasurementRefused]]:
    """The ``runs`` of several campaigns, one of each in turn, so that no number of ranks takes all of the time.

    A campaign that is refused yields the refusal last, and the others go on.
    """
    going = dict(campaigns)
    while going:
        for name, runs in list(going.items()):
            try:
                reached: Progress | MeasurementRefused | None = next(runs, None)
            except MeasurementRefused as refused:
                reached = refused
            if not isinstance(reached, Progress):
                del going[name]
            if reached is not None:
                yield name, reached


def _log_uniform(rng: np.random.Generator, low: float, high: float) -> float:
    return float(np.exp(rng.uniform(np.log(low), np.log(high))))
