"""Pickles from a stranger: plain data is read as pickle itself reads it, anything else is refused and does not run."""

import os
import pickle
import re
import struct
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from overlapscope.errors import InputError
from overlapscope.ingest.formats.flight_recorder.safe_pickle import decode_plain
from tests.conftest import ROOT
from tests.property.examples import examples
from tests.support.writers.flight_recorder import Entry, dump

plain = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.lists(inner).map(tuple) | st.dictionaries(st.text() | st.integers(), inner),
    max_leaves=30,
)
FRAMES = [{"name": "f", "filename": "a.py", "line": 1}]
CALLS = [Entry(), Entry(op="_all_gather_base", out_sizes=[[2048]], frames=FRAMES)]
DUMP = pickle.dumps(dump(CALLS, groups={"0": ("default_pg", [0, 1])}), protocol=2)


def decoded(content: bytes) -> object:
    return decode_plain(content, "dump")[0]


@given(value=plain, protocol=st.integers(2, 5))
def test_plain_data_comes_back_as_it_was(value: object, protocol: int) -> None:
    content = pickle.dumps(value, protocol=protocol)
    assert decode_plain(content, "dump") == (value, len(content))


def test_a_value_used_twice_comes_back_twice() -> None:
    assert decoded(pickle.dumps([[FRAMES, FRAMES], [FRAMES]], protocol=2)) == [[FRAMES, FRAMES], [FRAMES]]


# --- what could run code ---------------------------------------------------------------------------------------------


class Touches:
    """Makes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, (f"touch {self.path}",)


def opcode_payloads(path: Path) -> dict[str, bytes]:
    """Return pickles that reach for code by each opcode there is for it."""
    command = f"touch {path}".encode()
    text = b"X" + struct.pack("<I", len(command)) + command
    name = b"\x8c\x05posix\x8c\x06system"
    return {
        "GLOBAL": b"\x80\x02cposix\nsystem\n" + text + b"\x85R.",
        "STACK_GLOBAL": b"\x80\x04" + name + b"\x93" + text + b"\x85R.",
        "REDUCE": b"\x80\x02" + text + text + b"\x85R.",
        "BUILD": b"\x80\x02}" + text + b"b.",
        "INST": b"(" + text + b"iposix\nsystem\n.",
        "OBJ": b"\x80\x02(" + text + text + b"o.",
        "NEWOBJ": b"\x80\x02" + text + b")\x81.",
        "NEWOBJ_EX": b"\x80\x04" + text + b")}\x92.",
        "EXT1": b"\x80\x02\x82\x01.",
        "EXT2": b"\x80\x02\x83\x01\x00.",
        "EXT4": b"\x80\x02\x84\x01\x00\x00\x00.",
        "PERSID": b"Panything\n.",
        "BINPERSID": b"\x80\x02" + text + b"Q.",
    }


def test_the_payload_would_run_if_it_were_loaded(tmp_path: Path) -> None:
    pickle.loads(pickle.dumps(Touches(tmp_path / "touched")))
    assert (tmp_path / "touched").exists()


@pytest.mark.parametrize("protocol", range(6))
def test_a_pickle_that_calls_is_refused_and_nothing_runs(tmp_path: Path, protocol: int) -> None:
    content = pickle.dumps({"version": "2.10", "entries": [Touches(tmp_path / "touched")]}, protocol=protocol)
    with pytest.raises(InputError, match=r"^dump: byte \d+: the pickle holds (GLOBAL|STACK_GLOBAL|DICT)"):
        decoded(content)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("opcode", sorted(opcode_payloads(Path("x"))))
def test_every_opcode_that_reaches_for_code_is_refused_by_name_and_place(tmp_path: Path, opcode: str) -> None:
    content = opcode_payloads(tmp_path / "touched")[opcode]
    with pytest.raises(
        InputError, match=rf"^dump: byte \d+: the pickle holds {opcode}, which plain data does not need"
    ):
        decoded(content)
    assert list(tmp_path.iterdir()) == []


def test_no_reader_can_unpickle_what_it_is_given() -> None:
    """One module may: it takes over what our own processes wrote into a folder that only their user sees.

    Another has an unpickler without the opcodes that call, which the tests above are about.
    """
    importing = re.compile(r"^\s*(?:import|from) _?pickle", re.MULTILINE)
    package = ROOT / "overlapscope"
    found = [path for path in sorted(package.rglob("*.py")) if importing.search(path.read_text(encoding="utf-8"))]
    assert [str(path.relative_to(package)) for path in found] == [
        "ingest/column_handoff.py",
        "ingest/formats/flight_recorder/safe_pickle.py",
    ]
    calls = re.compile(r"pickle\.(?!_Unpickler\b|UnpicklingError\b)\w+")
    assert not calls.search((package / "ingest/formats/flight_recorder/safe_pickle.py").read_text(encoding="utf-8"))


# --- what is damaged, or meant to exhaust ----------------------------------------------------------------------------


CUT = "ends in the middle or is damaged"


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", f"byte 0: the pickle {CUT}"),
        (b"\x80", CUT),
        (b"\x80\x02", CUT),
        (b"\x80\x02.", CUT),
        (b"\x80\x02N(.", CUT),
        (b"\x80\x02NN.", CUT),
        (b"\x80\x09N.", CUT),
        (b"\x80\x02a.", CUT),
        (b"\x80\x02Na.", CUT),
        (b"\x80\x02NNa.", CUT),
        (b"\x80\x02]K\x00Ns.", CUT),
        (b"\x80\x02]NNs.", "a key that is neither text nor a whole number"),
        (b"\x80\x02}(Nu.", "a key that is neither text nor a whole number"),
        (b"\x80\x02}(K\x01u.", CUT),
        (b"\x80\x02}(NNu.", "a key that is neither text nor a whole number"),
        (b"\x80\x02})Ns.", "a key that is neither text nor a whole number"),
        (b"\x80\x02e.", CUT),
        (b"\x80\x02h\x05.", CUT),
        (b"\x80\x02q\x05.", CUT),
        (b"\x80\x02](\x85.", CUT),
        (b"\x80\x02X\xff\xff\xff\x7fab.", CUT),
        (b"\x80\x02\x8d" + b"\xff" * 8 + b"ab.", CUT),
        (b"\x80\x02\x8a\xff\x01.", CUT),
        (b"\x80\x02\x8b\x00\x00\x00\x40.", "LONG4"),
        (b"\x80\x02\xff.", "the unknown opcode 0xff"),
        (b"\x80\x022.", "DUP"),
        (b"\x80\x02Ncposix\nsystem\n.", "byte 3: the pickle holds GLOBAL"),
    ],
)
def test_damage_is_reported_with_its_place(content: bytes, said: str) -> None:
    with pytest.raises(InputError, match=r"^dump: byte \d+: the pickle ") as caught:
        decoded(content)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_a_cycle_is_refused(protocol: int) -> None:
    through_list: list[object] = []
    through_list.append({"again": through_list})
    through_dict: dict[str, object] = {}
    through_dict["again"] = (through_dict,)
    for value in (through_list, through_dict):
        with pytest.raises(InputError, match="as a cycle does"):
            decoded(pickle.dumps(value, protocol=protocol))


def shared(levels: int) -> bytes:
    """Return a list of lists, of which each holds the one before through the memo, the innermost first."""
    outer = (
        b"]r" + struct.pack("<I", level) + b"j" + struct.pack("<I", level - 1) + b"a" for level in range(1, levels)
    )
    return b"\x80\x02(]r\0\0\0\0" + b"".join(outer) + b"t."


@pytest.mark.slow
@pytest.mark.parametrize(
    "content",
    [
        b"\x80\x02N" + b"\x85" * 100_000 + b".",
        b"\x80\x02" + b"]" * 100_000 + b"a" * 99_999 + b".",
        shared(64),
        shared(100_000),
    ],
    ids=["tuples", "lists", "shared by one too many", "shared, the innermost first"],
)
def test_deep_nesting_is_refused(content: bytes) -> None:
    with pytest.raises(InputError, match=r"nests containers more than 64 deep$"):
        decoded(content)


def test_what_nests_as_deep_as_allowed_is_read() -> None:
    value = decoded(shared(63))
    assert repr(value) == repr(pickle.loads(shared(63)))
    assert decoded(b"\x80\x02N" + b"\x85" * 64 + b".") is not None


def test_a_value_that_doubles_at_each_level_is_refused_in_no_time() -> None:
    content = b"\x80\x02(]q\x00"  # each level holds the one before 200 times
    for level in range(1, 40):
        content += b"]" + b"q" + bytes([level]) + b"(" + (b"h" + bytes([level - 1])) * 200 + b"e"
    begun = time.process_time()
    with pytest.raises(InputError, match="repeats values too often"):
        decoded(content + b"t.")
    assert time.process_time() - begun < 20


def test_more_values_than_allowed_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("overlapscope.ingest.formats.flight_recorder.safe_pickle.MAX_VALUES", 100)
    places = b"".join(b"r" + struct.pack("<I", place) for place in range(200))
    for content in (
        pickle.dumps(list(range(200)), protocol=2),
        b"\x80\x02N" + places + b".",
        b"\x80\x02" + b"(" * 200 + b".",
    ):
        with pytest.raises(InputError, match="more than 100 values"):
            decoded(content)


HUNGRY = {
    "a place far away": b"\x80\x02Nr\xff\xff\xff\x7f.",
    "a long text": b"\x80\x02X\xff\xff\xff\x7f",
    "a longer text": b"\x80\x04\x8d" + struct.pack("<Q", 1 << 33),
    "bytes": b"\x80\x04\x8e" + struct.pack("<Q", 1 << 33),
    "a bytearray": b"\x80\x05\x96" + struct.pack("<Q", 1 << 33),
    "a frame": b"\x80\x04\x95" + struct.pack("<Q", 1 << 33),
    "a whole number": b"\x80\x02\x8b\xff\xff\xff\x7f",
    "a key of tuples within tuples": b"\x80\x02}N" + b"\x85" * 200_000 + b"Ns.",
    "a key of tuples that double": b"\x80\x02})" + b"q\x00h\x00\x86" * 60 + b"Ns.",
}


@pytest.mark.parametrize("what", HUNGRY)
def test_a_small_dump_takes_no_memory_and_no_time(what: str, tmp_path: Path) -> None:
    """In a process that may hold 1 GiB: Python's own unpickler takes 2 GiB or more for most, or crashes."""
    (tmp_path / "dump").write_bytes(HUNGRY[what])
    script = (
        "import resource, sys; from pathlib import Path\n"
        "from overlapscope.ingest.formats.flight_recorder.safe_pickle import decode_plain\n"
        "resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30)); resource.setrlimit(resource.RLIMIT_CPU, (20, 20));"
        "from overlapscope.errors import InputError\n"
        "try: print(decode_plain(Path(sys.argv[1]).read_bytes(), 'dump'))\n"
        "except InputError as error: print(error)"
    )
    ended = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "dump")], capture_output=True, text=True, check=False
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    assert re.fullmatch(r"dump: byte \d+: the pickle .+\n|\(None, 9\)\n", ended.stdout)


def test_text_that_is_no_utf8_is_replaced() -> None:
    assert decoded(b"\x80\x02X\x02\x00\x00\x00\xffa.") == "\ufffda"


def test_the_length_is_that_of_the_pickle_alone() -> None:
    content = pickle.dumps([1, 2], protocol=2)
    assert decode_plain(content + b"more", "dump") == ([1, 2], len(content))


# --- anything at all -------------------------------------------------------------------------------------------------

OPCODES = b"N\x88\x89KMJGX\x8c\x8d\x8a\x8bqr\x94hj(]})\x85\x86\x87tldaesu\x80\x95.cRbioP0123Q\x93\x81\x82"
pieces = st.one_of(
    st.sampled_from(OPCODES).map(lambda code: bytes([code])),
    st.builds(lambda code, number: bytes([code, number]), st.sampled_from(b"Kqh\x80\x8a"), st.integers(0, 8)),
    st.text(max_size=4).map(lambda text: b"X" + struct.pack("<I", len(text.encode())) + text.encode()),
    st.integers(-(2**31), 2**31 - 1).map(lambda number: b"J" + struct.pack("<i", number)),
    st.sampled_from([b"]q\x00(", b"}q\x01(", b"h\x00", b"h\x01", b"e", b"u", b"K\x01K\x02"]),
)


def check_as_pickle_does(content: bytes) -> None:
    """Whatever is decoded, pickle decodes to the same; it holds data opcodes only, so that loading it is safe."""
    try:
        value, length = decode_plain(content, "dump")
    except InputError as error:
        assert str(error).startswith("dump: byte ")  # noqa: PT017 - a refusal is right, and says where
        return
    with suppress(UnicodeDecodeError):
        assert repr(pickle.loads(content[:length])) == repr(value)


@examples(500)
@given(program=st.lists(pieces, max_size=30))
def test_any_program_of_opcodes_is_read_as_pickle_reads_it_or_refused(program: list[bytes]) -> None:
    check_as_pickle_does(b"\x80\x02" + b"".join(program) + b".")


@examples(500)
@given(content=st.binary(max_size=60))
def test_any_bytes_are_read_as_pickle_reads_them_or_refused(content: bytes) -> None:
    check_as_pickle_does(content)


@examples(500)
@given(
    changes=st.lists(st.tuples(st.integers(0, len(DUMP) - 1), st.integers(0, 255)), min_size=1, max_size=6),
    cut=st.integers(0, len(DUMP)),
)
def test_a_damaged_dump_is_read_as_pickle_reads_it_or_refused(changes: list[tuple[int, int]], cut: int) -> None:
    content = bytearray(DUMP)
    for place, value in changes:
        content[place] = value
    check_as_pickle_does(bytes(content))
    check_as_pickle_does(bytes(content[:cut]))
