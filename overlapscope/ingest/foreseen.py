"""The calls of a file as its ranks will most often have them, so that who reads the file writes them once and for all.

What the whole job tells of calls is known when all files are read. Mostly each file tells the same of its own calls;
a digest shows whether it did, and their table can stay as it was written.
"""

import hashlib

import msgspec
import numpy as np

from overlapscope.ingest.reading import Reading
from overlapscope.ingest.told_by_groups import told_by_groups
from overlapscope.timeline.columns import column_kinds
from overlapscope.timeline.run import RankTimeline


def foreseen(reading: Reading) -> list[RankTimeline]:
    """Give the timelines with what the file's own groups tell of their calls, in order."""
    by_number = dict(enumerate(reading.timelines))  # they may not have ranks yet
    return list(told_by_groups(by_number, reading.groups, reading.world_size).values())


def calls_digest(timeline: RankTimeline) -> str:
    """Give what is the same for timelines whose calls are stored alike."""
    told = hashlib.blake2b(msgspec.json.encode(timeline.names), digest_size=16)
    for column in column_kinds(timeline.collectives):
        told.update(np.ascontiguousarray(getattr(timeline.collectives, column)).data)
    return told.hexdigest()
