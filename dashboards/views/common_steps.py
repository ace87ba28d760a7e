"""Which step of which rank two runs are laid above each other by: what the address asks for, or a usual one."""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import msgspec

from overlapscope_dashboards.site import Unknown

MAX_TRIED: Final = 16
"""Ranks that are looked at for a common step, where the address names none."""
MAX_OFFERED: Final = 32
Steps = dict[int, tuple[int, int]]
"""Start and end by number."""
StepsOf = Callable[[int], Steps]


class Chosen(msgspec.Struct, frozen=True, kw_only=True):
    """A step on a rank that both runs recorded whole; `steps` and `ranks` are what else there is."""

    rank: int
    step: int
    base: tuple[int, int]
    candidate: tuple[int, int]
    steps: tuple[int, ...]
    ranks: tuple[int, ...]
    usual: bool
    """Whether the address left the step open."""


def choose(
    asked: Mapping[str, str], ranks: tuple[Sequence[int], Sequence[int]], steps: tuple[StepsOf, StepsOf]
) -> Chosen | str:
    """Choose by `rank` and `step` of an address; says why where the runs have no whole step of a rank in common.

    Nobody asked: the first rank with such a step, and of its steps the one whose difference in length is the middle
    one. Raises Unknown, with what there is, where what is asked for is not there.
    """
    common = sorted(set(ranks[0]) & set(ranks[1]))
    if not common:
        ours, theirs = (_few(sorted(each), "rank") for each in ranks)
        return f"No rank was recorded in both runs: {ours} in the base, {theirs} in the candidate."
    wanted = _number(asked.get("rank"))
    if "rank" in asked and wanted not in common:
        raise Unknown(f"Rank {asked['rank'][:20]} was not recorded in both runs.", _links("rank", common, {}))
    tried = common[:MAX_TRIED] if wanted is None else [wanted]
    for rank in tried:
        own = [each(rank) for each in steps]
        both = sorted(set(own[0]) & set(own[1]))
        if both:
            return _of_rank(asked, rank, common, both, own)
    said = f"rank {tried[0]}" if len(tried) == 1 else f"the first {len(tried)} ranks that both recorded"
    ours, theirs = (_few(sorted(each(tried[0])), "step") for each in steps)
    there = f"of rank {tried[0]} the base has {ours}, the candidate {theirs}"
    return f"No step of the same number is whole in both runs on {said}: {there}."


def _of_rank(
    asked: Mapping[str, str], rank: int, ranks: Sequence[int], both: Sequence[int], own: Sequence[Steps]
) -> Chosen:
    step = _number(asked.get("step"))
    if "step" in asked and step not in both:
        there = _links("step", both, {"rank": rank})
        raise Unknown(f"Step {asked['step'][:20]} of rank {rank} is not whole in both runs.", there)
    if step is None:
        longer = {each: _length(own[1][each]) - _length(own[0][each]) for each in both}
        step = sorted(both, key=lambda each: (longer[each], each))[len(both) // 2]
    base, candidate = (each[step] for each in own)
    return Chosen(rank=rank, step=step, base=base, candidate=candidate, steps=tuple(both), ranks=tuple(ranks),
                  usual="step" not in asked)  # fmt: skip


def _length(window: tuple[int, int]) -> int:
    return window[1] - window[0]


def _links(name: str, values: Sequence[int], others: Mapping[str, int]) -> list[tuple[str, str]]:
    """Give links to the first of what there is, as (words, query)."""
    more = "".join(f"&{key}={value}" for key, value in others.items())
    return [(f"{name} {each}", f"{name}={each}{more}") for each in values[:MAX_OFFERED]]


def _few(values: Sequence[int], noun: str) -> str:
    if not values:
        return f"no {noun}"
    if len(values) == 1:
        return f"{noun} {values[0]}"
    whole = values[-1] - values[0] + 1 == len(values)
    return f"{noun}s {values[0]} to {values[-1]}" + ("" if whole else f" ({len(values)} of them)")


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and re.fullmatch(r"[0-9]{1,9}", text) else None
