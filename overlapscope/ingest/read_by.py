"""By which code files are read: columns that other code wrote are not gone on with."""

import hashlib
from functools import cache
from typing import TYPE_CHECKING

from overlapscope.ingest.entry_points import may_be_brought
from overlapscope.ingest.readers import ENTRY_POINTS, readers
from overlapscope.timeline.source_digest import module_digest, source_digest

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint


@cache
def read_by() -> str:
    """Give what is another one as soon as our code, or a reader of another package, is another one.

    Raises InputError where such a reader cannot be loaded.
    """
    readers()
    words = [source_digest("overlapscope.ingest", "overlapscope.timeline")]
    if may_be_brought(ENTRY_POINTS):
        from importlib.metadata import entry_points  # noqa: PLC0415 - takes longer to load than all else here

        words += sorted(map(_reader, entry_points(group=ENTRY_POINTS)))
    return hashlib.blake2b("\0".join(words).encode(), digest_size=16).hexdigest()


def _reader(point: "EntryPoint") -> str:
    version = point.dist.version if point.dist is not None else ""
    return f"{point.name} {point.value} {version} {module_digest(point.module)}"
