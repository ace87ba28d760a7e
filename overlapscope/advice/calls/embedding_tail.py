"""Rule: the last gradient is by far the largest, as a tied embedding's, so no bucket cap overlaps its all-reduce."""

import re
from statistics import fmean
from typing import Final

import msgspec
import numpy as np

from overlapscope.advice.calls.savings import kept_by_hosts, saved_time, transferring
from overlapscope.advice.last_bucket import MOST_STEPS, OF_BUCKET, last_bucket
from overlapscope.advice.rule_input import RuleInput, Windows, ms, recommended
from overlapscope.analysis.result import Recommendation
from overlapscope.display import percent_text
from overlapscope.timeline.columns import NONE
from overlapscope.timeline.intervals import BusyTime, difference
from overlapscope.timeline.operations import ITEM_BYTES
from overlapscope.timeline.rows import unique
from overlapscope.timeline.run import RankTimeline

LARGER: Final = 2.0
"""Least ratio to the largest gradient of another size. A choice: the two largest of a transformer's layer differ by 1.8
at most (a gated MLP's fused 16/3 h^2, beside the 3 h^2 of a fused attention projection, of width h), an embedding by
far more."""
MOST_OF_ITS_SIZE: Final = 2
"""An embedding and the output layer, where they do not share a weight; more gradients of one size are layers."""
EMBEDDING: Final = re.compile(r"emb|wte|vocab|lm_head|tok|shared", re.I)
_LESS_OFTEN: Final = {"torch": "# sum gradients over k micro-batches, then reduce them once"}
_LESS_OFTEN_IN_DDP: Final = {
    "ddp": "with model.no_sync():  # all but the last of k micro-batches: reduced once in k\n    loss.backward()"
}


class _Tail(msgspec.Struct, frozen=True, kw_only=True):
    """The last gradient of the steps of one rank, and the exposed time of its bucket."""

    name: str
    elements: int
    item_bytes: int
    of_bucket: float
    of_its_size: int
    """Gradients of its size."""
    exposed_ns: float
    saved_ns: float
    """What of it overlap can save at most: no waiting, nor what the host takes meanwhile."""


def embedding_tail(given: RuleInput) -> Recommendation | None:
    """Return the recommendation where the last bucket is mostly one large gradient and its transfer is exposed."""
    tails = [each for timeline, own in given.some_ranks() if (each := _tail(given, timeline, own)) is not None]
    if not tails or len({each.elements for each in tails}) > 1:
        return None
    exposed = fmean(each.exposed_ns for each in tails)
    saved = min(fmean(each.saved_ns for each in tails), given.host_free_ns)
    if not given.is_worth(saved):
        return None
    one = tails[0]
    tied = one.of_its_size == 1
    what = " (a tied embedding?)" if tied and EMBEDDING.search(one.name) else ""
    volume = one.elements * one.item_bytes
    most = f", of which {ms(saved)} can be saved at most" if ms(saved) != ms(exposed) else ""
    return recommended(
        given,
        id="embedding_tail",
        title=f"{one.name}{what}, {volume / 1e6:.1f} MB, is ready last and {percent_text(one.of_bucket)} of the last "
        f"bucket: {ms(exposed)} of its all-reduce are exposed{most}, and no bucket cap changes that",
        at_most_ns=saved,
        apply={
            **(_LESS_OFTEN_IN_DDP if "ddp" in given.job.frameworks else _LESS_OFTEN),
            "fsdp2": "fully_shard([embedding, head])  # one group for the shared weight; sends half",
            "megatron": "--untie-embeddings-and-output-weights  # another model: train it anew",
        },
        evidence={
            "gradient": one.name, "bytes": volume, "share_of_bucket": one.of_bucket, "tail_ns": round(exposed),
            "saved_at_most_ns": round(saved), "no_other_of_its_size": tied,
        },
        measured=["the order of gradients, and the exposed part of the last bucket"],
        assumed=[
            "that all of it could be overlapped or avoided: the gain is an upper bound", *kept_by_hosts(given, saved)
        ],
    )  # fmt: skip


def _tail(given: RuleInput, timeline: RankTimeline, windows: Windows) -> _Tail | None:
    table = timeline.gradients
    calls = timeline.collectives
    reduces = timeline.names.index("all_reduce") if "all_reduce" in timeline.names else -2
    since, saveable = transferring(given, timeline).since_ns, BusyTime(saved_time(given, timeline))
    bare = BusyTime(difference(given.coverage[timeline.rank].comm, given.coverage[timeline.rank].compute))
    exposed: list[int] = []
    saved: list[int] = []
    last = -1
    bucket = 0
    for step in unique(table.step[table.step != NONE])[-MOST_STEPS:].tolist():
        rows = np.flatnonzero((calls.step == step) & (calls.op == reduces) & (calls.end_ns != NONE))
        rows = rows[np.argsort(calls.end_ns[rows], kind="stable")]
        own = np.flatnonzero(table.step == step)
        own = own[np.argsort(table.order[own], kind="stable")]
        row = last_bucket(calls.elements[rows], table.elements[own])
        if row is None:
            continue
        at = int(rows[row])
        start = int(calls.start_ns[at])
        if not any(begin <= start < until for begin, until in windows):
            continue
        last, bucket = int(own[-1]), int(calls.elements[at])
        end = calls.end_ns[at : at + 1]
        exposed.append(int(bare.within(calls.start_ns[at : at + 1], end)[0]))
        saved.append(int(saveable.within(since[at : at + 1], end)[0]))
    if last < 0:
        return None
    elements = int(table.elements[last])
    sizes = table.elements[table.step == table.step[last]]
    alike = sizes == elements
    named = table.name[table.step == table.step[last]][alike]
    of_its_size = unique(named).size if (named >= 0).all() else named.size  # each pass of a step has them all
    others = sizes[~alike]
    if not others.size or elements < LARGER * int(others.max()) or elements < OF_BUCKET * bucket:
        return None
    if of_its_size > MOST_OF_ITS_SIZE:
        return None
    return _Tail(
        name=timeline.names[table.name[last]] if table.name[last] >= 0 else "the last gradient",
        elements=elements,
        item_bytes=ITEM_BYTES.get(timeline.names[table.dtype[last]] if table.dtype[last] >= 0 else "", 4),
        of_bucket=min(elements / bucket, 1.0),
        of_its_size=of_its_size,
        exposed_ns=fmean(exposed),
        saved_ns=fmean(saved),
    )
