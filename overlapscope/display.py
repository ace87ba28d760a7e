"""Text for people: paths (with the secrets of URLs hidden), short lists and sizes; and which paths are URLs."""

import os
import re
import shlex
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

_URL: Final = re.compile(r"([a-z][a-z0-9+.-]+):/([^/].*)", re.DOTALL)
"""A URL that was converted to a path, which collapses `//` to `/`."""
_URL_IN_TEXT: Final = re.compile(r"\b[a-z][a-z0-9+.-]+:/{1,3}[^\s'\"<>]+")
_PASSWORD: Final = re.compile(r"^([a-z0-9+.-]+:/+[^/:?]*):[^/?]*@")
_USER: Final = re.compile(r"^(https?:/+)[^/?]*@")
"""With http(s) the user may be a token; with `abfs://` it is a folder."""
_SECRET: Final = re.compile(
    r"([?&;][^=&;]*(?:sig|token|key|secret|credential|passw|pwd|auth|policy)[^=&;]*=)[^&;#]+", re.IGNORECASE
)
HIDDEN: Final = "***"
_KERNEL_NOISE: Final = re.compile(r"^void |at::native::|\(anonymous namespace\)::")
"""What names of kernels have in common, and tells none from another."""
_UNITS: Final = ("B", "KiB", "MiB", "GiB")


def url_of(path: Path) -> str | None:
    """Return the URL that a path was made from; None for a local path, also one that only looks like a URL."""
    url = _url(os.fspath(path))
    return None if url is None or path.exists() else url


def display_path(path: Path) -> str:
    """Return a path as text, whatever bytes its name contains, without the password, signature or token of a URL."""
    text = os.fsencode(path).decode("utf-8", "replace")
    url = _url(text)
    return text if url is None else hide_secrets(url)


def display_name(path: Path) -> str:
    """Return the last part of a path as text."""
    return Path(display_path(path)).name


def shortened(text: str, longest: int) -> str:
    """Return a name on one line with at most so many characters; a longer one of a kernel first loses what tells none
    from another (`void `, `at::native::`, `(anonymous namespace)::`)."""
    flat = " ".join(text.split())
    if len(flat) > longest:
        flat = _KERNEL_NOISE.sub("", flat)
    return flat if len(flat) <= longest else f"{flat[: longest - 3]}..."


def hide_secrets(text: str) -> str:
    """Return a text with the passwords, signatures and tokens of its URLs replaced by `***`."""
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


def shell_words(words: Iterable[str]) -> str:
    """Return words as a shell reads them, in one line: those with line breaks or control characters as `$'...'`."""
    return " ".join(shlex.quote(each) if each.isprintable() else _escaped_word(each) for each in words)


def _escaped_word(word: str) -> str:
    plain = word.replace("\\", r"\\").replace("'", r"\'")
    return "$'" + "".join(each if each.isprintable() else _escape(ord(each)) for each in plain) + "'"


def _escape(code: int) -> str:
    if 0xDC80 <= code <= 0xDCFF:  # a byte of a name that is not UTF-8
        return f"\\x{code - 0xDC00:02x}"
    return f"\\x{code:02x}" if code < 0x80 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def list_some(parts: Sequence[object], most: int = 8) -> str:
    """Return the first `most` items, such as ranks, separated by commas, with `...` if there are more."""
    return ", ".join(map(str, parts[:most])) + (", ..." if len(parts) > most else "")


def percent_text(ratio: float, decimals: int = 1) -> str:
    """Return a ratio as a percentage; thresholds are written without decimals."""
    return f"{round(ratio * 100, decimals) + 0.0:.{decimals}f} %"  # no minus before 0


def size_text(size_bytes: float) -> str:
    """Return a size in the binary unit that fits, with four significant digits; whole bytes below 1 KiB."""
    value, *larger = float(size_bytes), *_UNITS[1:]
    unit = _UNITS[0]
    while larger and abs(float(f"{value:.4g}")) >= 1024:
        value, unit = value / 1024, larger.pop(0)
    return f"{value:,.0f} {unit}" if abs(value) >= 1000 else f"{value:.4g} {unit}"
