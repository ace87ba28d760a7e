"""axe-core, the accessibility checker: fetched once from the npm registry, cached outside the repository."""

import os
import shutil
import subprocess
import tarfile
from pathlib import Path

import pytest

VERSION = "4.14.1"
INSIDE = "package/axe.min.js"
MAX_BYTES = 5_000_000


def axe_script() -> str:
    """Return the script, or skip the test if it is neither cached nor available."""
    place = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "overlapscope" / f"axe-core-{VERSION}"
    packed = place / f"axe-core-{VERSION}.tgz"
    if not packed.is_file():
        npm = shutil.which("npm")
        if npm is None:
            pytest.skip(f"axe-core {VERSION} is not kept here, and there is no npm to fetch it")
        place.mkdir(parents=True, exist_ok=True)
        asked = [npm, "pack", f"axe-core@{VERSION}", "--silent", "--pack-destination", str(place)]
        try:
            subprocess.run(asked, check=True, capture_output=True, timeout=60, cwd=place)
        except (subprocess.SubprocessError, OSError):
            pytest.skip(f"axe-core {VERSION} could not be fetched from the npm registry")
    with tarfile.open(packed) as archive:
        script = archive.extractfile(INSIDE)
        assert script is not None
        return script.read(MAX_BYTES).decode()
