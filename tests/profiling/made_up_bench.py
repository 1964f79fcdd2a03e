"""A bench of exchanges that starts no ranks: 1 ms, and 1 ms for each MiB that the rank holds."""

from collections.abc import Sequence

from service.profiling.comm_bench import Exchange, ExchangeTiming


class MadeUpBench:
    """Computes times, and keeps what it was asked for."""

    def __init__(self) -> None:
        self.asked: list[list[Exchange]] = []

    def __call__(self, exchanges: Sequence[Exchange]) -> list[ExchangeTiming]:
        self.asked.append(list(exchanges))
        return [_timing(exchange) for exchange in exchanges]


def _timing(exchange: Exchange) -> ExchangeTiming:
    last = max(exchange.start_delays_ms)
    transfer = tuple(1.0 + width * exchange.batch_size * 4 / 2**20 for width in exchange.widths)
    return ExchangeTiming(tuple(last - delay for delay in exchange.start_delays_ms), transfer, transfer)
