"""Measuring campaigns of the collectives: which exchanges are drawn, and the loop that measures and stores them."""

import platform
from collections.abc import Callable
from datetime import UTC, datetime

import numpy as np
import torch

from service.domain.measurements import CommunicationMeasurement
from service.domain.ports import MeasurementStore
from service.profiling.campaign import BATCH_SIZES
from service.profiling.comm_bench import Exchange, ExchangeTiming, measure_exchanges
from service.profiling.compute_bench import device_name

REPEATS = 9
_MAX_RANK_BYTES = 128 * 2**20
_WIDEST = 4096
_IN_ONE_RUN = 10


class CommunicationCampaign:
    """Draws exchanges: a batch size, and an uneven number of pooled columns on each rank.

    Args:
        hardware: name that the measurements are stored under.
        ranks: processes that exchange; no more than there are cores, or they wait for each other's turn.
        seed: seed of the draws.
    """

    def __init__(self, hardware: str, ranks: int, seed: int) -> None:
        self.hardware = hardware
        self.ranks = ranks
        self.seed = seed
        self.name = f"{hardware}-exchange-{ranks}-{seed}"

    def exchange(self, index: int) -> Exchange:
        """The exchange at a position; sizes are spread evenly over their logarithm."""
        rng = np.random.default_rng([self.seed, self.ranks, index])
        batch_size = int(rng.choice(list(BATCH_SIZES)))
        widest = min(_WIDEST, _MAX_RANK_BYTES // (4 * batch_size))
        mean = float(np.exp(rng.uniform(np.log(8), np.log(widest))))
        widths = np.clip(np.rint(mean * rng.uniform(0.5, 1.5, self.ranks) / 4) * 4, 4, widest)
        return Exchange(tuple(int(w) for w in widths), batch_size)

    def run(
        self, store: MeasurementStore, samples: int, device: str, report: Callable[[int], None] = lambda done: None
    ) -> int:
        """Measures positions 0 .. ``samples`` that the store lacks; returns how many were measured.

        Raises:
            MeasurementRefused: a rank failed; what was measured before it is stored.
        """
        stored = {m.index for m in store.communication(self.hardware) if m.campaign == self.name}
        name = device_name(torch.device(device))
        missing = [index for index in range(samples) if index not in stored]
        for start in range(0, len(missing), _IN_ONE_RUN):
            chosen = missing[start : start + _IN_ONE_RUN]
            exchanges = [self.exchange(index) for index in chosen]
            timings = measure_exchanges(exchanges, device, repeats=REPEATS)
            for index, exchange, timing in zip(chosen, exchanges, timings, strict=True):
                store.add_communication(self._measurement(index, exchange, timing, name))
            report(start + len(chosen))
        return len(missing)

    def _measurement(
        self, index: int, exchange: Exchange, timing: ExchangeTiming, device: str
    ) -> CommunicationMeasurement:
        return CommunicationMeasurement(
            campaign=self.name,
            index=index,
            hardware=self.hardware,
            widths=exchange.widths,
            batch_size=exchange.batch_size,
            forward_ms=timing.forward_ms,
            backward_ms=timing.backward_ms,
            repeats=REPEATS,
            environment={
                "torch": torch.__version__,
                "device": device,
                "python": platform.python_version(),
            },
            measured_at=datetime.now(UTC),
        )
