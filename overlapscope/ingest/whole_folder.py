"""Whether what a file gave is on disk as it was written: after a power cut a file may be empty, or half.

A digest costs less than to wait for the disk with each file of each folder: only what is gone on with is looked at.
"""

import hashlib
import os
from functools import partial
from pathlib import Path
from typing import Final

_DIGEST: Final = partial(hashlib.blake2b, digest_size=16)


def content_digest(folder: Path, but: str) -> str:
    """Give a digest of all files below a folder, without the one that is named. Raises OSError."""
    told = _DIGEST()
    for name in sorted(os.path.relpath(each, folder) for each in folder.rglob("*") if each.is_file()):
        if name != but:
            with open(folder / name, "rb") as file:
                told.update(os.fsencode(name) + b"\0" + hashlib.file_digest(file, _DIGEST).digest())
    return told.hexdigest()
