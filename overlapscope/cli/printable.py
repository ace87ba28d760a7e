"""Text from files made safe for a terminal."""

import json


def escaped(text: str) -> str:
    """Replace the same in JSON by its JSON escape."""
    return "".join(each if each.isprintable() or each == "\n" else json.dumps(each)[1:-1] for each in text)


def printable(text: str) -> str:
    """Replace what a terminal would act upon (control characters, changes of direction) by its code."""
    return "".join(each if each.isprintable() or each == "\n" else f"\\x{ord(each):02x}" for each in text)
