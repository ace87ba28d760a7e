"""Looking for plain text first changes nothing of what an expression finds."""

import re
import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from overlapscope.ingest.needed_texts import Needing, needed_texts

TABLES = Path(__file__).parents[1] / "overlapscope" / "ingest"
COMPUTE = tomllib.loads((TABLES / "compute_names.toml").read_text("utf-8"))
COMM = tomllib.loads((TABLES / "comm_names.toml").read_text("utf-8"))
OURS = [*(rule["pattern"] for rule in COMM["rule"]), COMPUTE["never"], *COMPUTE["patterns"]]
SEEN = re.findall(r"[\"']([^\"'\n]{4,})[\"']", (TABLES / "comm_names.toml").read_text("utf-8"))
HARD = [
    "ab?c", "abc{2}d", "a|b", "x(a|b)y+z", "[ab]cd[^]x]ef*", r"\dabc", "(?i)aBc|xyZ", "ab*", "a?", r"\d{1,22}x", "",
    "(?:ab|cd)?ef", "(?:ab|c?)gh", "(?<!x)(?:lo|hi)_(?P<op>a|b)", "(?=ab)c?", "(ab(cd|e)*)+f", r"\x41b", r"a\.bc",
    "(?i)k", "((a|b)|(c|))d", "[(]ab", r"\(ab\)", "a{,3}b", "a.b", "^ab$", "(?:(?:ab)?|cd)",
]  # fmt: skip
STRANGE = [
    "(?i:abc)d", "x(?i:y)z", "(?x)a b", "(?is)A.b", "(?s)a.b", "(?i)ab(?-i:CD)", "(?-i:ab)", "a(?#comment)b", "(?>ab)c",
    "(a)?(?(1)bb|cc)", "(?P<q>ab)(?P=q)", r"\N{DIGIT ONE}x", r"\101b", r"(a)\1b", "(?i)\u017fo", "(?i)stra\u00dfe",
]  # fmt: skip
"""Flags, comments, conditions, characters by number or name: what of these is plain text is not looked for first."""


@pytest.mark.parametrize("pattern", [*OURS, *HARD, *STRANGE])
def test_what_matches_is_found(pattern: str) -> None:
    @given(st.from_regex(pattern))
    def check(text: str) -> None:
        assert Needing(pattern).search(text) is not None

    check()


@pytest.mark.parametrize("pattern", [*OURS, *HARD, *STRANGE])
def test_the_same_is_found_in_real_names_and_in_odd_ones(pattern: str) -> None:
    names = [*SEEN, *HARD, "", "K", "\u212a", "SO\u017fT", "abcc", "ABC", "xay", "cdef", "efgh", "lo_b", "a.bc", "Ab"]
    names += [
        "ABCd",
        "abcd",
        "xYz",
        "ab",
        "a\nB",
        "abCD",
        "abc",
        "acc",
        "aabb",
        "cc",
        "abab",
        "1x",
        "aab",
        "so",
        "STRASSE",
    ]
    for name in names:
        ours, plain = Needing(pattern).search(name), re.search(pattern, name)
        assert (ours and ours.span()) == (plain and plain.span()), name


def test_the_needed_texts_are_the_longest_that_are_sure() -> None:
    assert needed_texts("(?<![a-z])(?:one|two)_shot(?:_kernel)?(?P<op>ab|cde)+") == ("_shot",)
    assert needed_texts("x(?:reduce|gather|(?:long|longer)est)y?") == ("reduce", "gather", "long", "longer")
    assert needed_texts("reduce|.") == ()
