"""What the profiler writes about a collective, in all its spellings."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from overlapscope.ingest.build.collective_args import (
    CollectiveArgs,
    dtype_name,
    from_concrete_inputs,
    group_ranks,
    input_dtype,
    input_elements,
    named_peer_rank,
    parse_count,
    parse_ranks,
    peer_rank,
    tensor_elements,
)
from overlapscope.timeline.operations import ITEM_BYTES, full_elements
from tests.property.examples import examples

SHOWN = 30
"""Ranks that the profiler writes before it cuts a list."""


SPELLINGS = {
    "float32": ["Float", "float"],
    "float64": ["double"],
    "float16": ["Half", "c10::Half"],
    "bfloat16": ["BFloat16", "c10::BFloat16", "torch.bfloat16"],
    "float8_e4m3fn": ["Float8_e4m3fn"],
    "float8_e5m2": ["c10::Float8_e5m2"],
    "int64": ["Long", "long int"],
    "int32": ["Int"],
    "int16": ["Short"],
    "int8": ["Char", "signed char"],
    "uint8": ["Byte", "unsigned char"],
    "bool": ["Bool"],
    "complex64": ["ComplexFloat"],
    "complex128": ["c10::complex<double>"],
    None: ["", "GenericList", "Scalar", "TensorList", "QInt8", None, 3, ["Float"]],
}


@pytest.mark.parametrize(("name", "spellings"), SPELLINGS.items())
def test_every_spelling_of_a_dtype_gives_torchs_name(name, spellings):
    assert [dtype_name(each) for each in spellings] == [name] * len(spellings)


def test_every_name_of_torch_names_itself():
    assert [dtype_name(name) for name in ITEM_BYTES] == [dtype_name(f"torch.{name}") for name in ITEM_BYTES]
    assert [dtype_name(name) for name in ITEM_BYTES] == list(ITEM_BYTES)


def test_item_sizes_are_those_of_numpy():
    known = {name: size for name, size in ITEM_BYTES.items() if "float8" not in name and name != "bfloat16"}
    assert known == {name: np.dtype(name).itemsize for name in known}


NO_COUNTS = (None, True, False, -1, "-1", "", "x", "1.5", 1.5, [], "0x10", 2**62, 2**80, "²", "9" * 5000)


@pytest.mark.parametrize(
    ("value", "number"),
    [(0, 0), (7, 7), ("7", 7), (" 12 ", 12), (2**61, 2**61), *((value, None) for value in NO_COUNTS)],
    ids=lambda value: repr(value)[:20],
)
def test_a_count_is_a_whole_number_as_number_or_text(value, number):
    assert parse_count(value) == number


@pytest.mark.parametrize(
    ("dims", "elements"),
    [
        ([8], 8), ([4, 5, 6], 120), ([4, 0], 0), ([[4, 5], [6]], 26), ([[8]], 8), ([[[2, 3], [4]], [5]], 15),
        ([], None), ([[]], None), ([[8], []], None), (None, None), ("[8]", None), ([8, "x"], None), ([8.0], None),
        ([-4], None), ([-4, -2], None), ([[8], [-4]], None), ([2**40, 2**40], None),
    ],
)  # fmt: skip
def test_elements_are_the_product_of_dims_and_the_sum_over_tensors(dims, elements):
    assert tensor_elements(dims) == elements


@pytest.mark.parametrize(
    ("args", "position", "elements"),
    [
        ({"input_dims": [[[1024, 2], [16]], [8]]}, 0, 2064),
        ({"input_dims": [[[1024, 2], [16]], [8]]}, 1, 8),
        ({"input_dims": [[[1024, 2], [16]], [8]]}, 2, None),
        ({"old_input_dims": [[3, 3]]}, 0, 9),
        ({"input_dims": [[5]], "old_input_dims": [[3, 3]]}, 0, 5),
        ({}, 0, None),
    ],
)
def test_the_elements_of_an_input_are_those_of_all_its_tensors(args, position, elements):
    assert input_elements(CollectiveArgs(**args), position) == elements


@pytest.mark.parametrize(
    ("types", "dtype"),
    [(["c10::BFloat16", "float"], "bfloat16"), (["GenericList", "float"], None), ([], None), ("float", None)],
)
def test_the_dtype_is_that_of_the_first_input(types, dtype):
    assert input_dtype(CollectiveArgs(input_type=types)) == dtype


@pytest.mark.parametrize(
    ("written", "found"),
    [
        (["", "17", "0", "3", "allreduce", "", "", "64"], (17, 64)),
        (["", "17", "0", "3", "allreduce", "", "", "64", "", ""], (None, None)),
        (["", "0", "", "", "", "", "", "0"], (0, None)),
        (None, (None, None)),
    ],
)
def test_old_versions_write_sequence_number_and_group_size_by_position(written, found):
    assert from_concrete_inputs(CollectiveArgs(concrete_inputs=written)) == found


# --- the size of an operation ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("op", "moved_in", "moved_out", "size", "elements"),
    [
        ("all_reduce", 100, 100, 8, 100), ("all_reduce", 100, None, 8, 100), ("all_reduce", None, 100, None, 100),
        ("broadcast", 100, 100, 8, 100), ("reduce", 100, 100, 8, 100),
        ("all_gather", 100, 800, 8, 800), ("all_gather", 100, None, 8, 800),
        ("all_gather", None, 800, None, 800), ("all_gather", 100, None, None, None),
        ("reduce_scatter", 800, 100, 8, 800), ("reduce_scatter", None, 100, 8, 800),
        ("reduce_scatter", 800, None, None, 800), ("reduce_scatter", None, 100, None, None),
        ("gather", 100, 800, 8, 800), ("gather", 100, 0, 8, 800),
        ("scatter", 800, 100, 8, 800), ("scatter", 0, 100, 8, 800),
        ("all_to_all", 600, 500, 8, 600), ("send_recv", 100, 100, 2, 100),
        ("send", 100, 0, 2, 100), ("send", 100, None, 2, 100),
        ("recv", 0, 100, 2, 100), ("recv", 7, 100, 2, 100), ("recv", 100, None, 2, 100),
        ("dispatch", 100, 300, 8, 100), ("combine", 300, 100, 8, 300),
        ("wait", 1, 1, 8, None), ("barrier", 800, None, 8, None), ("coalesced", 1, 1, 8, None),
        *((op, None, None, 8, None) for op in ("all_reduce", "all_gather", "reduce_scatter", "recv", "send", "wait")),
    ],
)  # fmt: skip
def test_the_size_of_an_operation_is_the_one_nccl_tests_uses(op, moved_in, moved_out, size, elements):
    assert full_elements(op, moved_in, moved_out, size) == elements


@examples(100)
@given(st.integers(1, 2**30), st.integers(1, 4096))
def test_both_ends_of_a_gather_or_scatter_tell_the_same_size(shard, size):
    for op in ("all_gather", "gather"):
        assert full_elements(op, shard, None, size) == full_elements(op, None, shard * size, size) == shard * size
    for op in ("reduce_scatter", "scatter"):
        assert full_elements(op, None, shard, size) == full_elements(op, shard * size, None, size) == shard * size


# --- ranks of a group -----------------------------------------------------------------------------------------------


def cut_old(ranks: list[int]) -> str:
    """Write ranks as torch 2.1 to 2.4 does: the first thirty, then dots."""
    return str(ranks) if len(ranks) <= SHOWN else f"{str(ranks[:SHOWN])[:-1]}, ...]"


def cut_new(ranks: list[int]) -> str:
    """Write ranks as later versions do: the first twenty-nine, dots, the last."""
    return str(ranks) if len(ranks) <= SHOWN else f"{str(ranks[: SHOWN - 1])[:-1]}, ..., {ranks[-1]}]"


cuts = pytest.mark.parametrize("cut", [cut_old, cut_new])
regular = st.tuples(st.integers(0, 100), st.integers(1, 16), st.integers(1, 200))


def written(text: object, *, start=None, stride=None, size=None, name=None) -> CollectiveArgs:
    return CollectiveArgs(group_ranks=text, rank_start=start, rank_stride=stride, group_size=size, group_name=name)


@cuts
@examples(150)
@given(
    st.tuples(st.integers(0, 100), st.integers(1, 16), st.integers(31, 200)), st.integers(0, 29), st.integers(-20, 20)
)
def test_a_visible_rank_that_start_and_stride_do_not_give_makes_the_list_unknown(cut, group, place, change):
    start, stride, size = group
    ranks = list(range(start, start + stride * size, stride))
    shown = place if place < 29 or cut is cut_old else size - 1
    ranks[shown] += change
    found = group_ranks(written(cut(ranks), start=start, stride=stride, size=size), {})
    assert found == (None if change else tuple(ranks))


@cuts
def test_a_cut_list_is_known_from_the_groups_own_configuration(cut):
    ranks = [0, *range(3, 90, 2), 200]
    assert group_ranks(written(cut(ranks), name="5"), {"5": tuple(ranks)}) == tuple(ranks)
    assert group_ranks(written(cut(ranks), name=5), {"5": tuple(ranks)}) == tuple(ranks)


@cuts
@pytest.mark.parametrize("missing", ["start", "stride", "size"])
def test_a_cut_list_without_start_stride_or_size_is_unknown(cut, missing):
    known = {"start": 0, "stride": 1, "size": 64} | {missing: None}
    assert group_ranks(written(cut(list(range(64))), **known, name="5"), {"6": (0, 1)}) is None


@pytest.mark.parametrize(
    ("args", "config", "ranks"),
    [
        pytest.param(
            written("[3, 1, 2]", start=0, stride=1, size=3, name="5"), {"5": (0, 1, 2)}, (3, 1, 2), id="whole"
        ),
        pytest.param(written([4, 5]), {}, (4, 5), id="no text"),
        pytest.param(written("[]", name="5"), {"5": (0, 1)}, (0, 1), id="empty, with a configuration"),
        pytest.param(written("[]", name="5"), {}, None, id="empty"),
        pytest.param(written(None, start=2, stride=4, size=3), {}, (2, 6, 10), id="without a list"),
        pytest.param(written("[0, ...]", start=0, stride=0, size=64), {}, None, id="stride of zero"),
        # Such a list would not fit in memory.
        pytest.param(written("[0, 1, ...]", start=0, stride=1, size=10**15), {}, None, id="impossible size"),
    ],
)
def test_a_whole_list_comes_first_then_the_configuration_then_start_and_stride(args, config, ranks):
    assert group_ranks(args, config) == ranks


@pytest.mark.parametrize(
    ("text", "ranks", "cut"),
    [
        ("[0, 1, 2]", (0, 1, 2), False), ("[0,1,2]", (0, 1, 2), False), ([0, 8], (0, 8), False), ("[]", (), False),
        ("[0, 1, ...]", (0, 1), True), ("[0, 1, ..., 63]", (0, 1, 63), True), ("[...]", (), True),
        ("[0, 1, \u2026, 63]", (0, 1, 63), True), ("[" * 100_000, None, False),
        *((text, None, False) for text in (None, "", "0, 1", 7, "{}", "[0, x]", "[0.5]", "[0, [1]]", "[0")),
        ([0, "1"], None, False), ([0.5], None, False),
    ],
    ids=lambda value: repr(value)[:20],
)  # fmt: skip
def test_a_list_of_ranks_is_read_with_its_cut(text, ranks, cut):
    assert parse_ranks(text) == (ranks, cut)


@pytest.mark.parametrize(
    ("name", "peer"),
    [("nccl:send 1->2", 4), ("nccl:recv 3<-0", 0), ("nccl:send 0->9", None), ("nccl:coalesced", None)],
)
def test_a_range_names_the_peer_by_its_place_in_the_group(name, peer):
    assert named_peer_rank(name, (0, 2, 4, 6)) == peer


@pytest.mark.parametrize(
    ("operation", "source", "target", "peer"),
    [
        ("send", 1, 5, 5),
        ("recv", 5, 1, 5),
        ("coalesced", 5, 1, None),
        ("send", None, 5, 5),
        ("recv", 5, None, 5),
        ("recv", None, None, None),
    ],
)
def test_a_send_goes_to_its_target_and_a_recv_comes_from_its_source(
    operation: str, source: int | None, target: int | None, peer: int | None
):
    assert peer_rank(CollectiveArgs(collective_name=operation, source_rank=source, target_rank=target)) == peer
