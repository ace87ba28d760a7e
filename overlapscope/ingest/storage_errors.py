"""What storage, and the libraries that reach it, answer instead of a file: what that means, and what to do."""

import errno
import socket
import ssl
from collections.abc import Iterator, Sequence
from http import HTTPStatus
from importlib.util import find_spec
from typing import Any, Final
from urllib.parse import urlsplit

from overlapscope.display_path import without_secrets

PACKAGES: Final = {
    "s3": "s3fs", "s3a": "s3fs", "gs": "gcsfs", "gcs": "gcsfs",
    "az": "adlfs", "abfs": "adlfs", "abfss": "adlfs", "adl": "adlfs",
    "http": "aiohttp", "https": "aiohttp", "github": "requests", "webhdfs": "requests",
    "sftp": "paramiko", "ssh": "paramiko", "smb": "smbprotocol", "webdav": "webdav4",
    "hf": "huggingface_hub", "oci": "ocifs", "oss": "ossfs", "box": "boxfs", "lakefs": "lakefs_spec",
}  # fmt: skip
"""What has to be installed beside fsspec, by the scheme of a URL."""
_UNKNOWN_NAME: Final = (
    "name or service not known", "failed to resolve", "nodename nor servname", "name resolution", "getaddrinfo failed"
)  # fmt: skip
_DENIED: Final = (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN)
_GONE: Final = (HTTPStatus.NOT_FOUND, HTTPStatus.GONE)


def unknown_scheme(url: str) -> str:
    """Say that no storage is called as a URL says."""
    return (
        f"nothing reads {scheme_of(url)}://: known are s3://, gs://, az://, https:// and what else fsspec reaches; "
        "what lies on this machine is named by its path alone"
    )


def scheme_of(url: str) -> str:
    """Give the kind of storage that a URL names."""
    return url.partition(":")[0]


def meaning_of(error: BaseException, url: str) -> str:
    """Say in our words what an answer means and what to do, else in the library's own; without secrets."""
    if isinstance(error, ImportError):
        return _of_package(error, url)
    causes = list(_causes(error))
    ours = _of_connection(causes, url) or _of_answer(causes) or _of_access(error, causes, url)
    return ours or _words(error) or type(error).__name__


def _of_connection(causes: Sequence[BaseException], url: str) -> str:
    """Say why there is no connection; nothing where there is one."""
    said = " ".join(str(each) for each in causes).lower()
    untrusted = [each for each in causes if isinstance(each, ssl.SSLCertVerificationError)]
    if untrusted:
        return f"nobody vouches for the certificate of {_host(url)}: {_words(untrusted[0])}"
    if any(isinstance(each, ConnectionRefusedError) for each in causes) or "connection refused" in said:
        return f"{_host(url)} refuses the connection: is the server running, and is the port the right one?"
    if any(isinstance(each, socket.gaierror) for each in causes) or any(each in said for each in _UNKNOWN_NAME):
        return f"{_host(url)} is a name that no machine is known by: check the URL, and the network of this machine"
    if any(getattr(each, "errno", None) in (errno.ENETUNREACH, errno.EHOSTUNREACH) for each in causes):
        return f"{_host(url)} cannot be reached from this machine: check its network, or a proxy"
    return ""


def _of_answer(causes: Sequence[BaseException]) -> str:
    """Say what a web server answers; nothing where it tells that itself."""
    answers = [getattr(each, "status", None) for each in causes]
    return next(filter(None, (_of_status(each) for each in answers if isinstance(each, int))), "")


def _of_access(error: BaseException, causes: Sequence[BaseException], url: str) -> str:
    """Say that something is not there, or not for everybody; nothing where it is."""
    if isinstance(error, FileNotFoundError):
        why = error.__cause__
        # Of the web everything is said to be not found: a redirection, an answer that is none.
        return "no such file or folder" if why is None or isinstance(why, FileNotFoundError) else _named(why)
    if any("credential" in type(each).__name__.lower() for each in causes):
        how = PACKAGES.get(scheme_of(url), "the package that reaches it")
        return f"no credentials were found: set them as {how} documents, in the environment or its own files"
    if isinstance(error, PermissionError):
        return f"access is denied: check the credentials and the name ({_words(error)})"
    return ""


def _of_package(error: ImportError, url: str) -> str:
    package = PACKAGES.get(scheme_of(url))
    if package is None or find_spec(package) is not None:
        return f"{_words(error)} (pip install it beside overlapscope)"
    return f"{scheme_of(url)}:// needs {package}: pip install {package.replace('_', '-')}"


def _of_status(status: int) -> str:
    """Say what a web server's answer means; nothing for one that tells itself."""
    told = next((f"{status} {each.phrase}" for each in HTTPStatus if each.value == status), str(status))
    if status in _GONE:
        return "no such file or folder"
    if status in _DENIED:
        return f"access is denied ({told}): does the URL lack a token, or has it run out?"
    if status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        return f"the server fails ({told}): try again later"
    return ""


def _causes(error: BaseException) -> Iterator[BaseException]:
    """Give an error and what led to it."""
    seen: set[int] = set()
    waiting: list[Any] = [error]
    while waiting:
        each = waiting.pop(0)
        if isinstance(each, BaseException) and id(each) not in seen:
            seen.add(id(each))
            yield each
            waiting += [each.__cause__, each.__context__, getattr(each, "os_error", None)]


def _host(url: str) -> str:
    """Give the machine of a URL, with its port."""
    try:
        name, port = urlsplit(url).hostname, urlsplit(url).port
    except ValueError:
        name, port = None, None
    return f"{name}:{port}" if name and port else name or "the server"


def _named(error: BaseException) -> str:
    return f"{type(error).__name__}: {_words(error)}".strip()


def _words(error: BaseException) -> str:
    return without_secrets(" ".join(str(error).split()))[:300]
