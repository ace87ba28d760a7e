"""Colours: one palette in figures and style sheet, distinct from both backgrounds and for colour-blind readers."""

import re
from itertools import combinations

import pytest

from overlapscope.analysis.common.cause_table import CAUSES
from overlapscope_dashboards.server.shell import ASSETS, document
from overlapscope_dashboards.theme import COLOURS, CONFIG, plain

SHEET = (ASSETS / "style.css").read_text(encoding="utf-8")
LEAST_GRAPHIC, LEAST_TEXT = 3.0, 4.5
"""WCAG 2.2, 1.4.11 and 1.4.3."""


def sides(name: str) -> tuple[str, str]:
    found = re.search(rf"--{name}: light-dark\((#\w+), (#\w+)\)", SHEET + document())
    assert found, name
    return found[1], found[2]


def linear(colour: str) -> list[float]:
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    return [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]


def luminance(colour: str) -> float:
    return sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear(colour), strict=True))


def contrast(one: str, other: str) -> float:
    high, low = sorted((luminance(one), luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("name", COLOURS)
def test_every_colour_stands_out_from_both_papers(name: str) -> None:
    for paper in (*sides("card"), *sides("paper")):
        assert contrast(COLOURS[name], paper) >= LEAST_GRAPHIC, (name, paper)


@pytest.mark.parametrize("name", ["ink", "soft", "accent", "bad", "good", "warn"])
def test_every_text_can_be_read_in_light_and_dark(name: str) -> None:
    for at in (0, 1):
        for paper in ("card", "paper"):
            assert contrast(sides(name)[at], sides(paper)[at]) >= LEAST_TEXT, (name, paper, at)


def test_figures_and_style_sheet_have_the_same_palette() -> None:
    assert dict(re.findall(r"--c-(\w+): (#\w+);", document())) == dict(COLOURS)
    assert set(re.findall(r"var\(--c-(\w+)\)", SHEET + document())) <= set(COLOURS)
    assert "--c-exposed:" not in SHEET


def test_every_cause_has_a_look_of_its_own_in_the_page() -> None:
    rules = dict(re.findall(r"^\.k-(\w+) {(.*)}$", document(), re.MULTILINE))
    assert set(rules) == set(CAUSES)
    assert len(set(rules.values())) == len(rules)
    assert all(f"var(--c-{cause.colour})" in rules[name] for name, cause in CAUSES.items())
    assert not set(re.findall(r"\.k-(\w+)", SHEET)) & set(CAUSES)


@pytest.mark.parametrize(
    "seen",
    [
        # Viénot, Brettel and Mollon 1999, on linear RGB: without red cones, without green cones.
        [[0.11238, 0.88762, 0], [0.11238, 0.88762, 0], [0.00401, -0.00401, 1]],
        [[0.29275, 0.70725, 0], [0.29275, 0.70725, 0], [-0.02234, 0.02234, 1]],
    ],
)
def test_neighbouring_colours_are_distinct_for_colour_blind_eyes(seen: list[list[float]]) -> None:
    """Checks the parts of a step; of similar colours, one has a pattern."""
    for one, other in combinations(("compute", "hidden", "exposed"), 2):
        first, second = (
            [sum(a * b for a, b in zip(row, linear(COLOURS[name]), strict=True)) for row in seen]
            for name in (one, other)
        )
        assert sum((a - b) ** 2 for a, b in zip(first, second, strict=True)) ** 0.5 > 0.1, (one, other)


def test_no_chart_can_be_uploaded_and_names_are_text() -> None:
    assert CONFIG["showSendToCloud"] is False
    assert CONFIG["plotlyServerURL"] == ""
    assert plain("<b>&amp;</b>") == "&lt;b&gt;&amp;amp;&lt;/b&gt;"
