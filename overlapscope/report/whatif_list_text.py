"""What can be asked of a recording, as text."""

from collections.abc import Mapping

from overlapscope.whatif.kinds import NOT_REPLAYED
from overlapscope.whatif.listing import Listing


def render(listing: Listing) -> str:
    """Give the whole text, ending in a newline."""
    heading = f"kind of this recording: {listing.kind}."
    if listing.reason:
        return f"{heading} Nothing can be replayed of it: {listing.reason}\n"
    lines = [f"{heading} What can be replayed of it:", *_table(listing.knobs)]
    lines.append(f"Options that go with it: {', '.join(listing.options)}.")
    if listing.refused:
        by_reason: dict[str, list[str]] = {}
        for name, why in listing.refused.items():
            by_reason.setdefault(why, []).append(name)
        lines += ["What does not, and why:", *_table({", ".join(names): why for why, names in by_reason.items()})]
    return "\n".join([*lines, f"Not replayed: {NOT_REPLAYED}."]) + "\n"


def _table(rows: Mapping[str, str]) -> list[str]:
    wide = max(map(len, rows), default=0)
    return [f"  {name:<{wide}}  {what}" for name, what in rows.items()]
