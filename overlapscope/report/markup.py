"""Text from files made so that it stands for itself in HTML, in an element or in an attribute."""

from html import escape

from overlapscope.report.inert import inert


def escaped(text: str) -> str:
    """Give text on one line, without control characters, CI commands, elements or quotes."""
    return escape(" ".join(inert(text).split()), quote=True)
