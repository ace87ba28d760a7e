"""Measure reading an NCCL log against iterating its lines; print MB/s of both, their ratio, and the peak memory.

python -m benchmarks.nccl_log [MEGABYTES]     1,000 unless said otherwise

The log is made in a temporary folder: 16 processes that write as NCCL 2.21, 2.23, 2.24 and RCCL do, into one file,
under mpirun. Four fifths of it are calls and choices; the rest are graphs of communicators that come and go, and what a
training job prints. Both readers run in processes of their own, turn by turn on the same file; figures are medians.
"""

import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec

from benchmarks.inputs import HERE

MEGABYTES = 1_000
TURNS = 3
RANKS = 16
CALLS = (("ReduceScatter", 9), ("AllGather", 9), ("AllReduce", 7))
STEPS_A_LIFE = 20_000
"""Steps after which the communicators are made anew."""


class Turn(msgspec.Struct, frozen=True):
    seconds: float
    peak_mib: float
    said: str


def make(path: Path, size: int) -> None:
    """Write a log of so many bytes, to the end of a line."""
    written = 0
    with open(path, "w", encoding="ascii") as file:
        for lines in steps():
            file.write(lines)
            written += len(lines)
            if written >= size:
                return


def steps() -> Iterator[str]:
    """Yield the lines of one training step after the other."""
    chance = random.Random(0)
    prefixes = [
        f"[1,{r}]<stdout>:gpu-{r // 8}.cluster.local:{4000 + r}:{5000 + r} [{r % 8}] NCCL INFO " for r in range(RANKS)
    ]
    ends = ["", "", "", " task 0 globalrank {rank}"]
    counts = [chance.randrange(1 << 10, 1 << 26) for _ in range(60)]
    seq = [0, 0]
    step = 0
    while True:
        if step % STEPS_A_LIFE == 0:
            seq = [0, 0]
            yield initialise(prefixes, step // STEPS_A_LIFE)
        lines = []
        for op, dtype in CALLS:
            count = counts[chance.randrange(60)]
            for group in range(2):
                where = chance.getrandbits(40)
                for rank in range(RANKS):
                    size, name = (RANKS, "c0") if group == 0 else (4, "c4")
                    lines.append(
                        f"{prefixes[rank]}{op}: opCount {seq[group]:x} "
                        f"sendbuff 0x7f{where:010x} recvbuff 0x7f{where ^ 4096:010x} "
                        f"count {count} datatype {dtype} op 0 root 0 comm 0x55a7{name}{rank:04x} [nranks={size}] "
                        f"stream 0x5581e0{rank:04x}{ends[rank // 4].format(rank=rank)}\n"
                    )
                for leader in (0,) if group == 0 else (4, 8, 12):
                    lines.append(chosen(prefixes[leader], leader // 4, op, count, 4 if group else RANKS, dtype))
                seq[group] += 1
        lines.append(
            f"step {step:>9} | loss {chance.random():.6f} | lr 1.00e-04 | tokens/s {chance.randrange(10**6)}\n"
        )
        lines += [
            f"[1,{rank}]<stdout>:data: worker {rank} read shard {step:08d} in {chance.random():.3f} s, "
            + "." * 300
            + "\n"
            for rank in range(RANKS)
        ]
        yield "".join(lines)
        step += 1


def chosen(prefix: str, version: int, op: str, count: int, ranks: int, dtype: int) -> str:
    """Return a choice as one of the versions writes it."""
    part = count * (2 if dtype == 9 else 4)
    whole = part * (1 if op == "AllReduce" else ranks)
    if version == 0:
        return f"{prefix}{op}: {part} Bytes -> Algo NVLS_TREE proto SIMPLE channel{{Lo..Hi}}={{0..15}}\n"
    if version == 1:
        return f"{prefix}{whole} Bytes -> Algo 1 proto 2 time {whole / 25_000:f}\n"
    if version == 2:
        return f"{prefix}{op}: {whole} Bytes -> Algo 0 proto 1 time {whole / 20_000:f}\n"
    return f"{prefix}{op}: {part} Bytes -> Algo RING proto LL128 channel{{Lo..Hi}}={{0..23}}\n"


def initialise(prefixes: list[str], life: int) -> str:
    """Return the graphs of the world's communicator and of groups of four."""
    lines = []
    for rank, prefix in enumerate(prefixes):
        for name, member, size, unit in (("c0", rank, RANKS, 0), ("c4", rank % 4, 4, rank // 4)):
            state = f"ncclCommInitRank comm 0x55a7{name}{rank:04x} rank {member} nranks {size} cudaDev {rank % 8}"
            state += f" nvmlDev {rank % 8} busId {rank % 8:x}b000 commId 0x{life:08x}{name}{unit:02x}"
            lines.append(f"{prefix}{state} - Init START\n")
            trees = " ".join(f"[{channel}] {(member + 1) % size}/-1/-1->{member}->{member - 1}" for channel in range(8))
            lines.append(f"{prefix}Trees {trees}\n")
            for channel in range(16):
                via = "P2P/CUMEM/read" if channel % 2 else f"[send] via NET/IB/{channel % 8}/GDRDMA"
                via = f"via {via}" if channel % 2 else via
                lines.append(
                    f"{prefix}Channel {channel:02d}/0 : {member}[{member % 8}] -> "
                    f"{(member + 1) % size}[{rank % 8}] {via}\n"
                )
            lines.append(
                f"{prefix}16 coll channels, 16 collnet channels, 0 nvls channels, 16 p2p channels, "
                "2 p2p channels per peer\n"
            )
            lines.append(f"{prefix}{state} - Init COMPLETE\n")
    return "".join(lines)


ITERATE = """
import sys
for line in open(sys.argv[1]):
    pass
"""
READ = """
import sys
from pathlib import Path
from overlapscope.ingest.formats.nccl_log import READER
from overlapscope.ingest.reader import ReadContext
reading = READER.read(Path(sys.argv[1]), ReadContext())
calls = sum(len(each.collectives.seq) for each in reading.timelines)
chosen = sum(int((each.collectives.algorithm >= 0).sum()) for each in reading.timelines)
said = f"{len(reading.timelines)} ranks, {calls:,} calls, {chosen:,} with a choice, {reading.source.dropped} dropped"
"""
TIMED = """
import time
begin = time.perf_counter()
said = ""
{program}
seconds = time.perf_counter() - begin
peak = next((int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM")), 0)
print(seconds, peak / 1024, said, sep="|")
"""


def measure(program: str, path: Path) -> Turn:
    """Run a program on a file in a process of its own; the peak is the operating system's (VmHWM)."""
    done = subprocess.run(
        [sys.executable, "-c", TIMED.format(program=program), str(path)],
        cwd=HERE.parent,
        capture_output=True,
        text=True,
        check=True,
    )
    seconds, peak, said = done.stdout.strip().split("|")
    return Turn(float(seconds), float(peak), said)


def table(megabytes: int = MEGABYTES) -> str:
    """Make the log, measure, give a table."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "nccl.log"
        make(path, megabytes * 1_000_000)
        size = path.stat().st_size / 1e6
        plain, ours = [], []
        for _ in range(TURNS):
            plain.append(measure(ITERATE, path))
            ours.append(measure(READ, path))
    speeds = [size / statistics.median(turn.seconds for turn in turns) for turns in (plain, ours)]
    peaks = [statistics.median(turn.peak_mib for turn in turns) for turns in (plain, ours)]
    return (
        "| log | lines MB/s | ours MB/s | ratio | lines MiB | ours MiB | what was read |\n"
        "|---|---|---|---|---|---|---|\n"
        f"| {size:,.0f} MB | {speeds[0]:.0f} | {speeds[1]:.0f} | **{speeds[1] / speeds[0]:.2f}** "
        f"| {peaks[0]:.0f} | {peaks[1]:.0f} | {ours[0].said} |"
    )


if __name__ == "__main__":
    begin = time.perf_counter()
    print(table(int(sys.argv[1]) if len(sys.argv) > 1 else MEGABYTES))
    print(f"{time.perf_counter() - begin:.0f} s")
