"""What the standard library raises for archives that are cut, damaged or packed in unknown ways, in words of ours."""

import lzma
import tarfile
import zipfile
import zlib
from typing import Final

DAMAGE: Final = (
    tarfile.TarError, zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError, ValueError, OverflowError, IndexError,
)  # fmt: skip
"""What it raises for damaged archives."""
UNREADABLE: Final = (NotImplementedError, RuntimeError)
"""What it raises for a zip member that is encrypted or packed in a way it does not know."""
AGAIN: Final = "copy or pack it again"


def of_zip(error: Exception) -> str:
    """Say why a zip archive cannot be opened, and what to do."""
    if isinstance(error, zipfile.BadZipFile):
        return (
            "its list of members is missing or damaged, which stands at its end: it was cut, as by a copy that broke "
            f"off; {AGAIN}, or mend it with `zip -FF`"
        )
    return damage(error)


def damage(error: Exception) -> str:
    """Say how an archive or a member is damaged."""
    said = str(error).strip().split("\n")[0]
    if isinstance(error, EOFError) or "unexpected end of data" in said or "truncated header" in said:
        return "it ends early"
    if isinstance(error, (zlib.error, lzma.LZMAError)):
        return "its compressed data is damaged"
    if "CRC" in said:
        return "its content does not match its checksum"
    return (said or type(error).__name__)[:200]


def unreadable(error: Exception) -> str:
    """Say why a zip member cannot be read."""
    if "encrypted" in str(error) or "password" in str(error):
        return "it is encrypted: unpack the archive and name the folder"
    return "it is packed by a method that is not read: unpack the archive and name the folder"
