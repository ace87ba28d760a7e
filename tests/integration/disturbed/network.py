"""A network of this machine alone: a namespace for each rank, joined by a bridge, so that one link can be throttled."""

import secrets
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec

from tests.integration.disturbed.plan import INTERFACE

TRIED = ("ip", "tc")


class Network(msgspec.Struct, frozen=True, kw_only=True):
    """Names of the namespaces: the bridge's, where rank r's link ends at `port<r>`, and one for each rank."""

    hub: str
    ranks: tuple[str, ...]


class NotAllowedError(Exception):
    """Namespaces, links or limits cannot be made here."""


@contextmanager
def network(ranks: int) -> Iterator[Network]:
    """Make namespaces of random names, and take them away at the end. Raises NotAllowedError."""
    for tool in TRIED:
        if shutil.which(tool) is None:
            raise NotAllowedError(f"there is no `{tool}` here")
    tag = f"overlap{secrets.token_hex(4)}"
    made = Network(hub=f"{tag}hub", ranks=tuple(f"{tag}r{rank}" for rank in range(ranks)))
    try:
        _build(made)
        yield made
    finally:
        for name in (*made.ranks, made.hub):
            subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)


@contextmanager
def links_to_compare(ranks: int) -> Iterator[Network]:
    """Make a network whose links can be told apart. Raises NotAllowedError: two ranks have one link."""
    if ranks < 3:
        raise NotAllowedError("two ranks have one link, and nothing to compare it with")
    with network(ranks) as made:
        yield made


def _build(made: Network) -> None:
    for name in (made.hub, *made.ranks):
        _run("ip", "netns", "add", name)
        _run("ip", "-n", name, "link", "set", "lo", "up")
    _run("ip", "-n", made.hub, "link", "add", "bridge0", "type", "bridge")
    _run("ip", "-n", made.hub, "link", "set", "bridge0", "up")
    for rank, name in enumerate(made.ranks):
        port = f"port{rank}"
        _run("ip", "-n", made.hub, "link", "add", port, "type", "veth", "peer", "name", INTERFACE, "netns", name)
        _run("ip", "-n", made.hub, "link", "set", port, "master", "bridge0", "up")
        _run("ip", "-n", name, "addr", "add", f"10.77.0.{rank + 1}/24", "dev", INTERFACE)
        _run("ip", "-n", name, "link", "set", INTERFACE, "up")
    # Whether links can be limited is tried before a job is started.
    _run("tc", "-n", made.ranks[0], "qdisc", "replace", "dev", INTERFACE, "root", "tbf",
         "rate", "1gbit", "burst", "64kb", "latency", "50ms")  # fmt: skip
    _run("tc", "-n", made.ranks[0], "qdisc", "del", "dev", INTERFACE, "root")


def _run(*command: str) -> None:
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode:
        raise NotAllowedError(f"`{' '.join(command[:4])} ...`: {done.stderr.strip().splitlines()[-1:]}")
