"""How far two repeats of the same combination differ: new processes, new index streams, interleaved.

Run it alone on the machine: python -m benchmarks.repeatability [combinations] [repeats]
"""

import multiprocessing as mp
import sys
from itertools import combinations as combinations_of

import numpy as np

from service.domain.fused_operator import supported_data_types, supported_optimizers
from service.profiling.campaign import Campaign, CampaignSettings
from service.profiling.compute_bench import BenchSettings, ComputeBench
from service.profiling.pools import generated_pool

_SETTINGS = CampaignSettings("cpu-fbgemm", 77, supported_optimizers("cpu"), supported_data_types("cpu"), 2 * 2**30)
LEAST_MS = 5.0
"""Combinations that take less are counted apart: their spread is that of the machine's clock and scheduler."""


def measure_all(combinations: int, repeat: int) -> list[float]:
    """Milliseconds of forward and backward together of the first combinations; run in a process of its own."""
    campaign = Campaign(generated_pool(), _SETTINGS)
    bench = ComputeBench(BenchSettings(memory_bytes=_SETTINGS.memory_bytes))
    times = []
    for index in range(combinations):
        drawn = campaign.combination(index)
        rng = np.random.default_rng([repeat, index])
        timing = bench.measure(drawn.tables, drawn.batch_size, drawn.optimizer, rng)
        times.append(timing.forward.median_ms + timing.backward.median_ms)
    return times


def main() -> None:
    """Prints how far two repeats of a combination differ, relative to their mean: on average, and at most."""
    combinations, repeats = (int(a) for a in (sys.argv[1:3] if len(sys.argv) > 2 else ("40", "4")))
    context = mp.get_context("spawn")
    runs = []
    for repeat in range(repeats):
        with context.Pool(1) as pool:
            runs.append(pool.apply(measure_all, (combinations, repeat)))
    times = np.array(runs)
    pairs = list(combinations_of(range(repeats), 2))
    deviation = np.mean([np.abs(times[a] - times[b]) / (times[a] + times[b]) * 2 for a, b in pairs], axis=0)
    slow = times.mean(axis=0) >= LEAST_MS
    for name, chosen in ((f"{LEAST_MS:g} ms and more", slow), (f"under {LEAST_MS:g} ms", ~slow)):
        if chosen.any():
            found = deviation[chosen]
            print(
                f"{name}: {chosen.sum()} combinations x {repeats}, two repeats differ by {found.mean():.1%} "
                f"on average, by {found.max():.1%} at most"
            )


if __name__ == "__main__":
    main()
