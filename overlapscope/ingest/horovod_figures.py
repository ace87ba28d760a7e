"""The figures of a Horovod timeline: in sum, for each rank that is late, for each tensor."""

from collections.abc import Mapping

from overlapscope.ingest.fact_tables import FigureRows
from overlapscope.ingest.horovod_tensors import PARTS, Tensor, Tensors
from overlapscope.timeline.facts import Facts

ALL_TENSORS = "all tensors"
NEGOTIATIONS = "negotiations"
TRANSFERS = "transfers"


def horovod_figures(told: Tensors, names: Mapping[int, str], source: str) -> tuple[Facts, list[str]]:
    """Give the figures, and what has to be said about them.

    `<part>_us` are sums over a tensor's operations, each from the start of its negotiation to its end; `<part>_share`
    their share of `total_us`. The parts add up to the whole.
    """
    rows = FigureRows()
    tensors = sorted(told.tensors.items(), key=lambda item: (-item[1].total_us - item[1].alone_us, item[0]))
    whole = Tensor()
    for _, tensor in tensors:
        whole.calls += tensor.calls
        whole.total_us += tensor.total_us
        whole.parts_us = [a + b for a, b in zip(whole.parts_us, tensor.parts_us, strict=True)]
        whole.alone += tensor.alone
        whole.alone_us += tensor.alone_us
    _add_tensor(rows, ALL_TENSORS, whole)
    _add_readiness(rows, told)
    _add_transfers(rows, told)
    for pid, tensor in tensors:
        _add_tensor(rows, names.get(pid, f"tensor {pid}"), tensor)
    notes = []
    if whole.alone:
        notes.append(f"no operation follows {whole.alone} of the negotiations: their time stands apart, without shares")
    if whole.calls and not told.readiness.judged:
        notes.append(
            "no negotiation has ready ticks of all ranks, as with a response cache (HOROVOD_CACHE_CAPACITY=0 turns it "
            "off): which rank is late is not known"
        )
    if rows.left_out:
        notes.append(f"{rows.left_out} figures of further tensors were left out")
    return rows.facts(source), notes


def _add_tensor(rows: FigureRows, subject: str, tensor: Tensor) -> None:
    if tensor.calls:
        rows.add(subject, "calls", tensor.calls)
        rows.add(subject, "total_us", tensor.total_us)
        for part, spent in zip(PARTS, tensor.parts_us, strict=True):
            rows.add(subject, f"{part}_us", spent)
        if tensor.total_us:
            for part, spent in zip(PARTS, tensor.parts_us, strict=True):
                rows.add(subject, f"{part}_share", spent / tensor.total_us)
    if tensor.alone:
        rows.add(subject, "negotiations_alone", tensor.alone)
        rows.add(subject, "negotiation_alone_us", tensor.alone_us)
    if tensor.bytes is not None:
        rows.add(subject, "output_bytes", tensor.bytes)


def _add_readiness(rows: FigureRows, told: Tensors) -> None:
    readiness = told.readiness
    if readiness.judged:
        rows.add(NEGOTIATIONS, "with_all_ticks", readiness.judged)
        for rank, times, lead_us in readiness.late():
            rows.add(NEGOTIATIONS, "times_last", times, rank=rank)
            rows.add(NEGOTIATIONS, "lead_us", lead_us, rank=rank)


def _add_transfers(rows: FigureRows, told: Tensors) -> None:
    batches = told.batches
    if batches.transfers:
        rows.add(TRANSFERS, "transfers", batches.transfers)
        rows.add(TRANSFERS, "of_one_tensor", batches.single)
        rows.add(TRANSFERS, "tensors_mean", batches.tensors / batches.transfers)
        rows.add(TRANSFERS, "duration_us", batches.duration_us)
    if batches.sized:
        rows.add(TRANSFERS, "of_known_size", batches.sized)
        rows.add(TRANSFERS, "below_1_mib", batches.tiny)
    if batches.unclear:
        rows.add(TRANSFERS, "unclear", batches.unclear)
