"""What tells one state of the code from another: its text, where no number is raised by hand."""

import hashlib
import os
import secrets
from collections.abc import Iterator
from functools import cache
from importlib import import_module

from overlapscope.version import __version__


@cache
def source_digest(*packages: str) -> str:
    """Return a digest of the files of packages: the same on every machine with the same code.

    Of a package in an archive (`python -m zipapp`) the archive counts. Where there is no file at all, it is another
    one in each process: then nothing is ever taken for what this code gave.
    """
    told = hashlib.blake2b(__version__.encode(), digest_size=16)
    try:
        for package in packages:
            for folder in import_module(package).__path__:
                for name, content in _files(_on_disk(folder)):
                    told.update(b"%b\0%d\0" % (os.fsencode(name), len(content)))
                    told.update(content)
    except OSError:
        return secrets.token_hex(16)
    return told.hexdigest()


def module_digest(name: str) -> str:
    """Return a digest of one module's own file, as `source_digest` does."""
    try:
        with open(_on_disk(import_module(name).__file__ or ""), "rb") as file:
            return hashlib.blake2b(file.read(), digest_size=16).hexdigest()
    except OSError:
        return secrets.token_hex(16)


def _on_disk(place: str) -> str:
    """Return the place of a package or module, or the archive that it lies in."""
    around = place
    while around and not os.path.exists(around):
        around = os.path.dirname(around)
    return around if os.path.isfile(around) else place


def _files(place: str, within: str = "") -> Iterator[tuple[str, bytes]]:
    """Yield the files below a folder, but hidden ones and what Python compiled, by their names in it; a file itself."""
    if os.path.isfile(place):
        with open(place, "rb", buffering=0) as file:
            yield within, file.read()
        return
    with os.scandir(place) as inside:
        found = sorted((each for each in inside if not each.name.startswith((".", "__pycache__"))), key=_name)
    for each in found:
        if each.is_dir():
            yield from _files(each.path, f"{within}{each.name}/")
        else:
            with open(each.path, "rb", buffering=0) as file:
                yield within + each.name, file.read()


def _name(entry: "os.DirEntry[str]") -> str:
    return entry.name
