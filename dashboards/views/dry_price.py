"""What a dry run would take on a machine: the choices of device and links, and the price in words."""

from collections.abc import Mapping
from typing import Final

import msgspec

from overlapscope.report.formatting import ms
from overlapscope.whatif.pricing.devices import device, devices
from overlapscope.whatif.pricing.links import BETWEEN, INSIDE, link_presets, links
from overlapscope.whatif.pricing.prices import Terms
from overlapscope.whatif.pricing.result import Interval, Prices, RankPrice
from overlapscope_dashboards.parts.quantities import Time, Words
from overlapscope_dashboards.views.what_if import SettingControl

FIRST: Final = {"device": "h100-sxm", "inside": "8xh100-nvswitch", "between": "roce-400"}
"""Of an address that names none."""


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    """What is priced for: names of the tables of devices and links alone, never a file."""

    device: str
    inside: str
    between: str

    @property
    def links(self) -> str:
        """The links as `overlapscope whatif --links` takes them."""
        return f"{self.inside},{self.between}"

    @property
    def query(self) -> dict[str, str]:
        """The query that selects it."""
        return {"device": self.device, "inside": self.inside, "between": self.between}


def read_machine(query: Mapping[str, str]) -> Machine:
    """Return the machine that an address asks for; unknown names are those of `FIRST`."""
    known = {"device": list(devices()), "inside": _presets(INSIDE), "between": _presets(BETWEEN)}
    asked = {name: query.get(name, "") for name in known}
    return Machine(**{name: asked[name] if asked[name] in known[name] else FIRST[name] for name in known})


def terms(machine: Machine) -> Terms:
    """Return what a dry run is priced for."""
    return Terms(device=device(machine.device), links=links(machine.links))


def choices(machine: Machine) -> tuple[SettingControl, ...]:
    """Return the controls of a machine."""
    named = (("device", "device", {key: each.name for key, each in devices().items()}),
             ("inside", "links inside a node", {key: key for key in _presets(INSIDE)}),
             ("between", "links between nodes", {key: key for key in _presets(BETWEEN)}))  # fmt: skip
    return tuple(
        SettingControl(
            name=name, label=label,
            options=tuple((words, key, getattr(machine, name) == key) for key, words in options.items()),
        )
        for name, label, options in named
    )  # fmt: skip


def lead(found: Prices) -> Words:
    """Return a sentence on the longest step of the priced ranks."""
    known = [each.step for each in found.ranks if each.step is not None]
    if not known:
        return (f"No rank can be priced for {found.device} with {found.links}.",)
    longest = max(known, key=lambda each: each.high_ns)
    on = f" on {found.device} with {found.links}"
    if longest.value_ns is None:
        return (f"A step takes between {ms(longest.low_ns)} and {ms(longest.high_ns)} ms{on} (a range, no estimate).",)
    return ("A step takes ", Time(longest.value_ns), f"{on} ({ms(longest.low_ns)} to {ms(longest.high_ns)} ms, 80 %).")


def price_words(price: RankPrice) -> str:
    """Return the priced step of a rank and its exposed communication in a sentence."""
    if price.step is None:
        return "No price."
    exposed = "" if price.exposed_comm is None else f"; exposed communication {_words(price.exposed_comm)}"
    return f"A step of {_words(price.step)}{exposed}."


def constant_rows(found: Prices) -> list[tuple[str, str, str, str]]:
    """Return a row for each number that no data sheet states."""
    return [
        (each.name, f"{each.value:.3g}", "" if each.low is None else f"{each.low:.3g} to {each.high:.3g}", each.source)
        for each in found.constants
    ]


def _presets(level: str) -> list[str]:
    return [name for name, each in link_presets().items() if each.level == level]


def _words(found: Interval) -> str:
    spread = f"{ms(found.low_ns)} to {ms(found.high_ns)} ms"
    return f"{spread} (a range)" if found.value_ns is None else f"{ms(found.value_ns)} ms ({spread}, 80 %)"
