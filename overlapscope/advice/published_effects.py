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


class _Row(PublishedEffect, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """A row of the table: an effect, and the recommendation that suggests the change."""

    recommendation: str


@cache
def published_effects() -> Mapping[str, Sequence[PublishedEffect]]:
    """Return the published effects by id of the recommendation that suggests the change."""
    rows = msgspec.convert(
        tomllib.loads((files("overlapscope.advice") / TABLE).read_text("utf-8"))["effect"], list[_Row]
    )
    found: dict[str, list[PublishedEffect]] = {}
    for row in rows:
        effect = PublishedEffect(**{name: getattr(row, name) for name in PublishedEffect.__struct_fields__})
        found.setdefault(row.recommendation, []).append(effect)
    return found


def with_published(found: Sequence[Recommendation], job: JobKind) -> list[Recommendation]:
    """Return recommendations with what such changes did elsewhere; all were measured in training."""
    effects = {} if job.serves else published_effects()
    return [replace(each, published=list(effects.get(each.id, ()))) for each in found]
