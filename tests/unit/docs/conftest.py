"""The site, built once for the tests of a file."""

from pathlib import Path

import pytest

from docs.site.build import build


@pytest.fixture(scope="package")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    assert build(folder) == []
    return folder
