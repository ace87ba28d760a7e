"""Write bandwidth tables as nccl-tests prints them (src/common.cu, src/util.cu and one file per program)."""

from collections.abc import Sequence

import msgspec

PROGRAMS = {
    "all_reduce": "all_reduce_perf",
    "all_gather": "all_gather_perf",
    "reduce_scatter": "reduce_scatter_perf",
    "broadcast": "broadcast_perf",
    "reduce": "reduce_perf",
    "all_to_all": "alltoall_perf",
    "gather": "gather_perf",
    "scatter": "scatter_perf",
    "send_recv": "sendrecv_perf",
}
SHARED = ("all_gather", "reduce_scatter", "all_to_all", "gather", "scatter")
"""Programs whose column `count` is one rank's share."""
HEADER = (
    "#                                                              out-of-place                       in-place\n"
    "#       size         count      type   redop    root"
    "     time   algbw   busbw #wrong     time   algbw   busbw #wrong\n"
    "#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)\n"
)


def factor(op: str, ranks: int) -> float:
    """Return the factor by which each program's GetBw multiplies algbw."""
    if op == "all_reduce":
        return (2 * (ranks - 1)) / ranks
    return (ranks - 1) / ranks if op in SHARED else 1.0


def time_text(time_us: float) -> str:
    """Return a time in seven columns, with as many decimals as common.cu prints."""
    if time_us >= 10000:
        return f"{time_us:7.0f}"
    return f"{time_us:7.1f}" if time_us >= 100 else f"{time_us:7.2f}"


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """One size: the times that a run measured out of place and in place, in microseconds."""

    share: int
    """Elements of one rank's share where the program counts shares, else of the buffer."""
    out_us: float
    in_us: float


def row(op: str, ranks: int, measured: Measured, *, check: bool = True, dtype: str = "float") -> str:
    """Return one line."""
    count = measured.share
    size = count * 4 * (ranks if op in SHARED else 1)
    redop = "sum" if op in ("all_reduce", "reduce_scatter", "reduce", "send_recv") else "none"
    root = 0 if op in ("broadcast", "reduce", "gather", "scatter") else -1
    halves = []
    for time_us, in_place in ((measured.out_us, False), (measured.in_us, True)):
        algbw = size / 1e9 / (time_us / 1e6)
        checked = check and not (in_place and op in ("all_to_all", "send_recv"))
        wrong = "     0" if checked else "   N/A"
        halves.append(f"  {time_text(time_us)}  {algbw:6.2f}  {algbw * factor(op, ranks):6.2f}{wrong}")
    return f"{size:12d}  {count:12d}  {dtype:>8}  {redop:>6}  {root:>6}{halves[0]}{halves[1]}\n"


def table(op: str, ranks: int, measured: Sequence[Measured], *, check: bool = True) -> str:
    """Return header and lines, without anything that names the program or its ranks."""
    return HEADER + "".join(row(op, ranks, each, check=check) for each in measured)


def devices(ranks: int, *, groups: int = 1, device: str = "NVIDIA H100 80GB HBM3") -> str:
    """Return the list of devices; `groups` collectives run side by side."""
    lines = [
        f"#  Rank {rank:2d} Group {rank % groups:2d} Pid {4000 + rank:6d} on {'node0':>10} "
        f"device {rank % 8:2d} [0x1b] {device}\n"
        for rank in range(ranks)
    ]
    return "# Using devices\n" + "".join(lines) + "#\n"


def setup(threads: int = 1, gpus: int = 1) -> str:
    """Return the line of settings."""
    return (
        f"# nThread {threads} nGpus {gpus} minBytes 8 maxBytes 8589934592 step: 2(factor) warmup iters: 5 iters: 20 "
        "agg iters: 1 validation: 1 graph: 0\n#\n"
    )
