"""Where reports of the sample runs are made."""

import pytest

from tests.conftest import ROOT


@pytest.fixture
def at_root(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stand in the root of the project, and in no CI service."""
    monkeypatch.chdir(ROOT)
    monkeypatch.delenv("GITHUB_ACTIONS", raising=False)
