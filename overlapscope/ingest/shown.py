"""Paths as text that can be printed and stored: of URLs, without what opens them."""

import os
import re
from pathlib import Path
from typing import Final

_URL: Final = re.compile(r"([a-z][a-z0-9+.-]+):/(?=[^/])")
"""How a URL begins that was made a path, which has no empty parts."""
_URL_IN_TEXT: Final = re.compile(r"\b[a-z][a-z0-9+.-]+:/{1,3}[^\s'\"<>]+")
_PASSWORD: Final = re.compile(r"^([a-z0-9+.-]+:/+[^/:?]*):[^/?]*@")
_USER: Final = re.compile(r"^(https?:/+)[^/?]*@")
"""On the web a user may be a token; `abfs://` has a folder there."""
_SECRET: Final = re.compile(
    r"([?&;][^=&;]*(?:sig|token|key|secret|credential|passw|pwd|auth|policy)[^=&;]*=)[^&;#]+", re.IGNORECASE
)
HIDDEN: Final = "***"


def shown(path: Path) -> str:
    """Give a path as text, whatever bytes its name holds; of a URL, no password, signature or token."""
    text = os.fsencode(path).decode("utf-8", "replace")
    found = _URL.match(text)
    if found is None:
        return text
    return without_secrets(f"{found[1]}://{'/' if found[1] == 'file' else ''}{text[found.end() :]}")


def shown_name(path: Path) -> str:
    """Give the last part of a path as text."""
    return Path(shown(path)).name


def without_secrets(text: str) -> str:
    """Give a text with passwords, signatures and tokens of the URLs in it hidden."""
    return _URL_IN_TEXT.sub(lambda found: _without(found[0]), text)


def _without(url: str) -> str:
    kept = _USER.sub(rf"\1{HIDDEN}@", _PASSWORD.sub(rf"\1:{HIDDEN}@", url))
    return _SECRET.sub(rf"\1{HIDDEN}", kept)
