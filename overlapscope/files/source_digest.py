"""Compute digests of source code, so that results of other code are recognised without a version number."""

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

    For a package in an archive (`python -m zipapp`) the archive is digested. Where there is no file at all, the digest
    is random in each process: then no stored result is taken for one of this code.
    """
    digest = hashlib.blake2b(__version__.encode(), digest_size=16)
    try:
        for package in packages:
            for folder in import_module(package).__path__:
                for name, content in _files(_on_disk(folder)):
                    digest.update(b"%b\0%d\0" % (os.fsencode(name), len(content)))
                    digest.update(content)
    except OSError:
        return secrets.token_hex(16)
    return digest.hexdigest()


def module_digest(name: str) -> str:
    """Return a digest of one module's own file, as `source_digest` does."""
    try:
        with open(_on_disk(import_module(name).__file__ or ""), "rb") as file:
            return hashlib.blake2b(file.read(), digest_size=16).hexdigest()
    except OSError:
        return secrets.token_hex(16)


def _on_disk(place: str) -> str:
    """Return the path of a package or module, or of the archive that contains it."""
    around = place
    while around and not os.path.exists(around):
        around = os.path.dirname(around)
    return around if os.path.isfile(around) else place


def _files(place: str, within: str = "") -> Iterator[tuple[str, bytes]]:
    """Yield (name, content) of the files below a folder, without hidden and compiled ones; of a file, itself."""
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
