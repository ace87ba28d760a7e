"""Paths as text to print and to store, with the secrets of URLs hidden; and which paths are URLs."""

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final

_URL: Final = re.compile(r"([a-z][a-z0-9+.-]+):/([^/].*)", re.DOTALL)
"""A URL that was made a path, which has no empty parts."""
_URL_IN_TEXT: Final = re.compile(r"\b[a-z][a-z0-9+.-]+:/{1,3}[^\s'\"<>]+")
_PASSWORD: Final = re.compile(r"^([a-z0-9+.-]+:/+[^/:?]*):[^/?]*@")
_USER: Final = re.compile(r"^(https?:/+)[^/?]*@")
"""On the web a user may be a token; `abfs://` has a folder there."""
_SECRET: Final = re.compile(
    r"([?&;][^=&;]*(?:sig|token|key|secret|credential|passw|pwd|auth|policy)[^=&;]*=)[^&;#]+", re.IGNORECASE
)
HIDDEN: Final = "***"
_UNITS: Final = ("B", "KiB", "MiB", "GiB")


def url_of(path: Path) -> str | None:
    """Return the URL that a path was made of; None for a path of this machine, and for one that exists there."""
    url = _url(os.fspath(path))
    return None if url is None or path.exists() else url


def shown(path: Path) -> str:
    """Return a path as text, whatever bytes its name holds; of a URL, no password, signature or token."""
    text = os.fsencode(path).decode("utf-8", "replace")
    url = _url(text)
    return text if url is None else without_secrets(url)


def shown_name(path: Path) -> str:
    """Return the last part of a path as text."""
    return Path(shown(path)).name


def without_secrets(text: str) -> str:
    """Return a text with passwords, signatures and tokens of the URLs in it hidden."""
    return _URL_IN_TEXT.sub(lambda found: _without(found[0]), text)


def _url(text: str) -> str | None:
    found = _URL.fullmatch(text)
    if found is None:
        return None
    scheme, rest = found.groups()
    return f"{scheme}://{'/' if scheme in ('file', 'local') else ''}{rest}"


def _without(url: str) -> str:
    kept = _USER.sub(rf"\1{HIDDEN}@", _PASSWORD.sub(rf"\1:{HIDDEN}@", url))
    return _SECRET.sub(rf"\1{HIDDEN}", kept)


def listed(parts: Sequence[object], most: int = 8) -> str:
    """Return the first parts, such as ranks, with `...` where there are more."""
    return ", ".join(map(str, parts[:most])) + (", ..." if len(parts) > most else "")


def size_text(size_bytes: float) -> str:
    """Return bytes in the binary unit that fits, to four digits; whole bytes below a KiB."""
    value, *larger = float(size_bytes), *_UNITS[1:]
    unit = _UNITS[0]
    while larger and abs(float(f"{value:.4g}")) >= 1024:
        value, unit = value / 1024, larger.pop(0)
    return f"{value:,.0f} {unit}" if abs(value) >= 1000 else f"{value:.4g} {unit}"
