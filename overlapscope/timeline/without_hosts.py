"""Leave the names of hosts out of a run, for a place that more people can read than the job's machines."""

import re
from collections.abc import Mapping
from copy import copy
from pathlib import PurePath
from typing import Any, Final

from msgspec.structs import replace

from overlapscope.timeline.facts import FACT_TABLES, Facts
from overlapscope.timeline.run import Run

_ADDRESS: Final = re.compile(
    r"(?<![\w.])(?:\d{1,3}\.){3}\d{1,3}(?![\w.])|(?<![\w:])(?:[0-9a-f]{0,4}:){3,7}[0-9a-f]{1,4}(?![\w:])"
)
"""An IPv4 address, or an IPv6 or hardware address; a PCI bus address has fewer colons."""
_PLAIN: Final = ("", "localhost", "host")
"""Names that say nothing."""


def without_hosts(run: Run) -> Run:
    """Return the run with `host-1`, `host-2`, ... in place of its hosts' names, wherever a text contains one.

    Addresses become `address-1`, ...; a source keeps its file's name, neither its folder nor its warnings. Figures and
    all other names stay, so the run compares with others as before. All tables but host spans are read into memory.
    """
    names = _Names(run)
    return replace(
        run,
        ranks={
            rank: replace(
                copy(timeline),
                names=tuple(map(names.hidden, timeline.names)),
                recorded=names.hidden_in(timeline.recorded),
            )
            for rank, timeline in run.ranks.items()
        },
        sources=tuple(replace(each, path=names.hidden(PurePath(each.path).name), warnings=()) for each in run.sources),
        facts=replace(run.facts, names=tuple(map(names.hidden, run.facts.names))),
    )


class _Names:
    """The names of a run's hosts, each with and without its domain, and addresses as they are met."""

    def __init__(self, run: Run) -> None:
        self._hosts: dict[str, str] = {}
        for number, name in enumerate(sorted(_stated_hosts(run)), 1):
            self._hosts |= {name: f"host-{number}"}
            self._hosts.setdefault(name.split(".")[0], f"host-{number}")
        longest_first = sorted(self._hosts, key=len, reverse=True)
        self._pattern = re.compile(rf"(?<![\w-])(?:{'|'.join(map(re.escape, longest_first))})(?![\w-])")
        self._addresses: dict[str, str] = {}

    def hidden(self, text: str) -> str:
        """Return the text without names and addresses."""
        if self._hosts:
            text = self._pattern.sub(lambda found: self._hosts[found[0]], text)
        return _ADDRESS.sub(
            lambda found: self._addresses.setdefault(found[0], f"address-{len(self._addresses) + 1}"), text
        )

    def hidden_in(self, value: Any) -> Any:
        """Return a value of JSON with its texts hidden; keys stay."""
        if isinstance(value, Mapping):
            return {key: self.hidden_in(each) for key, each in value.items()}
        if isinstance(value, (list, tuple)):
            return [self.hidden_in(each) for each in value]
        return self.hidden(value) if isinstance(value, str) else value


def _stated_hosts(run: Run) -> set[str]:
    found = _hosts_of_facts(run.facts)
    for timeline in run.ranks.values():
        settings = timeline.recorded.get("settings")
        for stated in (timeline.recorded, settings if isinstance(settings, Mapping) else {}):
            found |= {host for host in (stated.get("host"),) if isinstance(host, str)}
    return found.difference(_PLAIN)


def _hosts_of_facts(facts: Facts) -> set[str]:
    tables = (getattr(facts, name) for name in FACT_TABLES)
    codes = {int(code) for table in tables if hasattr(table, "host") for code in table.host}
    return {name for code in codes if (name := facts.name(code)) is not None}
