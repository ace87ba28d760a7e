"""Which paths are URLs: those that have a scheme, and that nothing on this machine is called."""

import os
import re
from pathlib import Path
from typing import Final

_URL: Final = re.compile(r"([a-z][a-z0-9+.-]+):/([^/].*)", re.DOTALL)


def url_of(path: Path) -> str | None:
    """Give the URL that a path was made of; None for a path of this machine."""
    found = _URL.fullmatch(os.fspath(path))
    if found is None or path.exists():
        return None
    scheme, rest = found.groups()
    return f"{scheme}:///{rest}" if scheme in ("file", "local") else f"{scheme}://{rest}"
