"""Text from files made safe for a terminal."""


def printable(text: str) -> str:
    """Replace what a terminal would act upon (control characters, changes of direction) by its code."""
    return "".join(each if each.isprintable() or each == "\n" else f"\\x{ord(each):02x}" for each in text)
