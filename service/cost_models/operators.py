"""What is assumed of how the fused lookup operator runs on a kind of device."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Operator:
    """What no data sheet says about how the operator runs on a kind of device; bytes stand for their time from memory.

    Attributes:
        memory_share: share of ``memory_gb_s`` that the lookups reach on long rows.
        sector_bytes: memory is read in pieces of this size: a row is a whole number of them.
        row_overhead_bytes: what a looked-up row costs besides its own bytes.
        new_row_bytes: what it costs besides where it was not read before.
        cache_speedup: how much faster than memory the cache is.
        gradient_share: speed of reading gradients in the order of the rows, relative to reading rows.
        sort_bytes: memory traffic of sorting one lookup's row number for backward.
        forward_kernels: pieces of work that forward launches.
        backward_kernels: pieces of work that backward launches.
        launch_ms: time of a launch.
        table_ms: time of starting on one more table, in forward and in backward.
    """

    memory_share: float
    sector_bytes: int
    row_overhead_bytes: float
    new_row_bytes: float
    cache_speedup: float
    gradient_share: float
    sort_bytes: float
    forward_kernels: int
    backward_kernels: int
    launch_ms: float
    table_ms: float


GPU_OPERATOR = Operator(
    # FBGEMM's forward was measured at 63 to 65% of the peak on production tables (TorchRec, pull request 4757),
    # gathers of 256-byte rows at 71 to 82% (4688) and copies at 89 to 91% (4634); with the overhead of a row, rows of
    # 512 bytes are at 66%.
    memory_share=0.75,
    # CUDA C++ Best Practices Guide.
    sector_bytes=32,
    # Time a lookup for dims 16 to 128 was 28, 34, 62 and 130 ps (TorchRec, pull request 2365), which is 20 to 60
    # bytes; TorchRec's planner (planner/constants.py) takes 1.15 times the time a byte for dims up to 64 and 1.75 up
    # to 32, which is 90 to 170. Between the two.
    row_overhead_bytes=64.0,
    # Thousands of threads wait at once.
    new_row_bytes=0.0,
    # NVIDIA's A100 white paper has 5,120 bytes a clock, 4.6 times its memory; microbenchmarks come to less. Assumed.
    cache_speedup=3.0,
    # TorchRec's planner takes twice the forward's time for backward; in pull request 4757 backward reached 26.5% of
    # the peak where forward reached 64.7%.
    gradient_share=0.5,
    # 4 passes that read and write a 64-bit key and a 32-bit value, a pass for the histograms, writing the keys and
    # finding their runs. At ``memory_share`` that is the rate published for such sorts (Onesweep, arXiv 2206.01784:
    # 29.4 billion 32-bit keys a second on an A100, 68% of its memory's peak).
    sort_bytes=4 * 2 * (8 + 4) + 8 + (8 + 8 + 4) + 8,
    # Bounds check, lookup and one to spare. Assumed.
    forward_kernels=3,
    # Linearize, 6 to sort, 4 for runs and their sums, long segments, 2 that update, one to spare. Counted in FBGEMM's
    # backward as its pull request 6222 lists it.
    backward_kernels=15,
    # Where the GPU waits for it. Assumed.
    launch_ms=0.005,
    # All tables are in one kernel.
    table_ms=0.0,
)
"""The operator on a GPU."""

CPU_OPERATOR = Operator(
    # Rows are scattered. Assumed; on one thread of a processor that is not named, weighted, rows of 512 bytes, FBGEMM's
    # forward reached 3.5 GB/s (FBGEMM, pull request 1111).
    memory_share=0.5,
    # Cache lines.
    sector_bytes=64,
    # About 10 ns of instructions a lookup. Assumed.
    row_overhead_bytes=128.0,
    # About 5 ns of walking the page tables: tables are far larger than what a processor's TLB covers. Assumed, and
    # added after looking at measurements of the thread.
    new_row_bytes=64.0,
    # The last-level cache gives a core three to four times what memory does. Assumed.
    cache_speedup=3.0,
    # In the same pull request backward took 5.2 times as long as forward.
    gradient_share=0.33,
    # 4 passes that read and write a 32-bit key and a 64-bit value, in an order that no prefetcher follows. Assumed.
    sort_bytes=4 * 2 * (4 + 8) * 2,
    # One call each, with Python's and PyTorch's work around it. Assumed.
    forward_kernels=1,
    backward_kernels=2,
    launch_ms=0.04,
    table_ms=0.003,
)
"""The operator in FBGEMM's CPU mode, on one thread."""
