"""Errors of remote storage are explained: what they mean and what to do."""

import errno
import socket
from importlib.util import find_spec

import pytest

from overlapscope.cli.main import main
from overlapscope.ingest.inputs import remote
from overlapscope.ingest.inputs.remote import PACKAGES, explain

LIBRARY = ImportError("Please install it to access it")


class NoCredentialsError(Exception):
    """As botocore calls it."""


def caused(error: Exception, cause: Exception) -> Exception:
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("s3://bucket/job", "s3:// needs s3fs: pip install s3fs"),
        ("gs://bucket/job", "gs:// needs gcsfs: pip install gcsfs"),
        ("az://container/job", "az:// needs adlfs: pip install adlfs"),
        ("https://host/job", "https:// needs aiohttp: pip install aiohttp"),
        ("hf://datasets/job", "hf:// needs huggingface_hub: pip install huggingface-hub"),
        ("other://job", "Please install it to access it (pip install it beside overlapscope)"),
    ],
)
def test_what_is_not_installed_is_named_with_how_to_install_it(
    url: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote, "find_spec", lambda _: None)
    assert explain(LIBRARY, url) == message


def test_what_is_installed_and_does_not_load_says_so_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "find_spec", lambda _: "found")
    assert explain(LIBRARY, "s3://bucket/job").startswith("Please install it to access it")


@pytest.mark.parametrize("scheme", ["s3", "gs", "az"])
def test_the_command_names_the_package_that_is_missing(scheme: str, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("fsspec", reason="fsspec is not installed")
    package = PACKAGES[scheme]
    if find_spec(package) is not None:
        pytest.skip(f"{package} is installed")
    assert main(["analyze", f"{scheme}://bucket/job"]) == 3
    message = f"cannot be read: {scheme}:// needs {package}: pip install {package}"
    assert capsys.readouterr().err == f"overlapscope analyze: {scheme}://bucket/job: {message}\n"


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (ConnectionRefusedError(111, "Connection refused"), "host:81 refuses the connection: is the server running"),
        (caused(OSError("no"), ConnectionRefusedError(111, "x")), "host:81 refuses the connection"),
        (RuntimeError("Max retries (Caused by [Errno 111] Connection refused)"), "host:81 refuses the connection"),
        (caused(FileNotFoundError("u"), socket.gaierror(-2, "unknown")), "the host name host:81 cannot be resolved"),
        (OSError(errno.ENETUNREACH, "unreachable"), "host:81 cannot be reached from this machine"),
        (NoCredentialsError("Unable to locate credentials"), "no credentials were found: set them as aiohttp docu"),
        (PermissionError("Forbidden"), "access is denied: check the credentials and the name (Forbidden)"),
        (FileNotFoundError("x"), "no such file or folder"),
        (ValueError(), "ValueError"),
        (ValueError("https://me:HUSH@host/?sig=HUSH is bad"), "https://***@host/?sig=*** is bad"),
        (
            caused(FileNotFoundError("u"), ValueError("not verified: https://a:b@c/")),
            "ValueError: not verified: https://***@c/",
        ),
    ],
)
def test_an_error_is_shown_as_what_it_means(error: Exception, message: str) -> None:
    assert explain(error, "http://me:HUSH@host:81/job").startswith(message)


def test_a_failure_that_is_its_own_cause_comes_to_an_end() -> None:
    first, second = OSError("first"), OSError("second")
    first.__cause__, second.__cause__ = second, first
    assert explain(first, "http://host/job") == "first"
