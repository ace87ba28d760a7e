"""Sizes as people read them: the unit in which a number is neither long nor 0."""

from typing import Final

_UNITS: Final = ("B", "KiB", "MiB", "GiB")


def size_text(size_bytes: float) -> str:
    """Give bytes in the binary unit that fits, to four digits; whole bytes below a KiB."""
    value, *larger = float(size_bytes), *_UNITS[1:]
    unit = _UNITS[0]
    while larger and abs(float(f"{value:.4g}")) >= 1024:
        value, unit = value / 1024, larger.pop(0)
    return f"{value:,.0f} {unit}" if abs(value) >= 1000 else f"{value:.4g} {unit}"
