"""What changes like ours did elsewhere: a table of published measurements, each with its source, losses included."""

import tomllib
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files
from typing import Final

import msgspec
from msgspec.structs import replace

from overlapscope.advice.job_kind import JobKind
from overlapscope.analysis.result import PublishedEffect, Recommendation

TABLE: Final = "published_effects.toml"
MUCH: Final = 0.2
"""Throughput that is much to lose, or to gain. A choice."""


class _Row(PublishedEffect, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """A row of the table: an effect, the recommendation that suggests the change, and where it applies."""

    recommendation: str
    printed: str
    """Text in the recommendation's code where that makes this change: it may advise others only."""
    experts: bool = False
    """Whether it was measured where experts exchange tokens: other jobs have no such calls."""

    @property
    def effect(self) -> PublishedEffect:
        return PublishedEffect(**{name: getattr(self, name) for name in PublishedEffect.__struct_fields__})


@cache
def _rows() -> Sequence[_Row]:
    return msgspec.convert(
        tomllib.loads((files("overlapscope.advice") / TABLE).read_text("utf-8"))["effect"], list[_Row]
    )


def published_effects() -> Mapping[str, Sequence[PublishedEffect]]:
    """Return the published effects by id of the recommendation that suggests the change."""
    found: dict[str, list[PublishedEffect]] = {}
    for row in _rows():
        found.setdefault(row.recommendation, []).append(row.effect)
    return found


def with_published(found: Sequence[Recommendation], job: JobKind, *, has_experts: bool) -> list[Recommendation]:
    """Return recommendations with what the changes that their code makes did elsewhere, where that points one way; all
    were measured in training, some where experts exchange tokens, which say nothing of jobs without (`has_experts`)."""
    rows = [] if job.serves else [row for row in _rows() if has_experts or not row.experts]
    return [replace(each, published=_told([row.effect for row in rows if _is_of(row, each)])) for each in found]


def _told(effects: Sequence[PublishedEffect]) -> list[PublishedEffect]:
    """Return effects of which those that are shown, the end-to-end ones if there are any, do not both lose and gain
    much: then they say nothing to act on."""
    gains = [each.gain for each in effects if each.kind == "end-to-end"] or [each.gain for each in effects]
    both = bool(gains) and min(gains) <= -MUCH and max(gains) >= MUCH
    return [] if both else list(effects)


def _is_of(row: _Row, each: Recommendation) -> bool:
    return row.recommendation == each.id and any(row.printed in code for code in each.apply.values())
