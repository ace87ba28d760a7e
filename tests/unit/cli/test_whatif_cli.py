"""`overlapscope plan`: what it prints, its JSON under the published schema, and wrong input answered in one line."""

import json
import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from overlapscope.cli.main import main
from overlapscope.report.formats.json import schema as schema_of
from tests.conftest import ROOT, shared_file
from tests.support.commands import failed, stdout_of

EXAMPLE = ROOT / "examples" / "gpt2_8gpu.toml"
SMALL = """
world_size = 2
[compute]
forward_ms = 30
backward_ms = 60
optimizer_ms = 3
[collectives]
points = [[65536, 0.1], [1048576, 1.0], [16777216, 15.0]]
[[parameters]]
name = "weight"
shape = [1024, 1024]
[[measured]]
step_ms = 97.0
"""


def planned(capsys: pytest.CaptureFixture[str], *arguments: object) -> dict[str, Any]:
    return json.loads(stdout_of(capsys, "plan", *map(str, arguments), "--json"))  # type: ignore[no-any-return]


@pytest.mark.slow
def test_the_json_is_valid_under_its_published_schema(capsys: pytest.CaptureFixture[str]) -> None:
    schema = schema_of("whatif")
    jsonschema.Draft202012Validator.check_schema(schema)
    document = planned(capsys, EXAMPLE, "--bucket-cap-mb", "10,100")
    jsonschema.Draft202012Validator(schema).validate(document)
    assert document["schema"] == "overlapscope.whatif/1"
    assert document["baseline"]["measured_step_ns"] == 153_070_000
    caps = [each["knobs"].get("bucket_cap_mb") for each in document["scenarios"]]
    assert caps[:2] == [100.0, 10.0]
    document["verdict"] = "maybe"
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.Draft202012Validator(schema).validate(document)


@pytest.mark.slow
def test_the_page_shows_what_the_commands_print(capsys: pytest.CaptureFixture[str]) -> None:
    page = (ROOT / "docs" / "whatif.md").read_text(encoding="utf-8")
    shown = [each.split("```")[0] for each in page.split("```text\n")]
    printed = []
    for words in (
        ("whatif", str(ROOT / "traces/regressed"), "--bucket-cap-mb", "1,4,25", "--no-search"),
        ("plan", str(EXAMPLE), "--bucket-cap-mb", "1,10,25,100,500"),
        ("plan", str(EXAMPLE), "--no-search", "--zero-stage", "1,2,3"),
    ):
        assert main(words) == 0
        printed.append(capsys.readouterr().out)
        assert all(len(line) <= 120 or words[1] in line for line in printed[-1].splitlines())
    assert printed[0].startswith(shown[1])
    assert printed[1].startswith(shown[2])
    assert printed[1].endswith("\nTo test this, measure a step with bucket_cap_mb=25 and add it as [[measured]].\n")
    rows = [each.split() for each in shown[3].splitlines() if "zero_stage" in each]
    assert len(rows) == 3
    assert [each.split() for each in printed[2].splitlines() if "_stage=" in each] == rows


def test_a_table_beside_the_description_is_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "table.csv").write_text("op,ranks,bytes,time_us\nallreduce,2,65536,100\nallreduce,2,16777216,15000\n")
    text = SMALL.replace("points = [[65536, 0.1], [1048576, 1.0], [16777216, 15.0]]", 'file = "table.csv"')
    (tmp_path / "w.toml").write_text(text)
    document = planned(capsys, tmp_path / "w.toml", "--no-search")
    assert document["bounds"]["no_comm_ns"] == 93_000_000
    assert 96e6 < document["bounds"]["no_overlap_ns"] < 98e6


@pytest.mark.parametrize(
    ("text", "code", "message"),
    [
        ("world_size =", 2, "w.toml: not TOML: "),
        ("\xff", 2, "w.toml: "),
        ("wrld_size = 2", 2, "unknown key 'wrld_size'; the nearest known one is 'world_size'"),
        ("world_size = 2", 2, "missing required field `compute`"),
        (SMALL.replace("points =", "file = 'none.txt' #"), 3, "none.txt"),
        (SMALL + "[ddp]\nbucket_cap_mb = -1", 2, "ddp.bucket_cap_mb must be more than 0"),
        ("a = " + "[" * 5000, 2, "w.toml: not TOML: "),
    ],
    ids=["cut", "bytes", "key", "section", "table", "cap", "deep"],
)
def test_a_wrong_description_ends_in_one_line(
    text: str, code: int, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "w.toml").write_bytes(text.encode("latin-1"))
    assert message in failed(capsys, code, "plan", tmp_path / "w.toml")


@pytest.mark.parametrize("caps", ["x", "1,,2", "0", "-3", "nan", "1e300", "1," * 1000 + "1"])
def test_wrong_caps_are_refused(caps: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert "--bucket-cap-mb" in failed(capsys, 2, "plan", EXAMPLE, f"--bucket-cap-mb={caps}")


def test_a_missing_file_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "none.toml: cannot be read" in failed(capsys, 3, "plan", tmp_path / "none.toml")


def test_options_of_another_kind_of_recording_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    refusal = failed(capsys, 2, "whatif", ROOT / "traces/regressed", "--link-speed", "4")
    assert "--link-speed cannot be used with a recording of kind ddp" in refusal
    listing = json.loads(stdout_of(capsys, "whatif", ROOT / "traces/regressed", "--list", "--json"))
    assert listing["kind"] == "ddp"
    assert "bucket_cap_mb" in listing["knobs"]


DEVICES = "a100_ddp_rank0of2_collective_args.json.gz"
ASKED = {
    "--bucket-cap-mb": ["4"], "--no-search": [], "--zero-stage": ["2"], "--partition-mb": ["8"], "--priority": [],
    "--link-speed": ["4"], "--algorithm": ["ring"], "--channels": ["8"],
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("recording", ["traces/regressed", "rank 0 of 2", DEVICES])
def test_what_is_listed_can_be_asked_and_what_is_not_is_refused_for_the_reason_that_the_list_tells(
    recording: str, capsys: pytest.CaptureFixture[str]
) -> None:
    of_one_rank = next((ROOT / "traces/baseline/rank_00000").glob("*.json.gz"))
    place = {"rank 0 of 2": of_one_rank, DEVICES: None}.get(recording, ROOT / recording)
    given = str(place or shared_file(f"kineto/{DEVICES}"))
    listing = json.loads(stdout_of(capsys, "whatif", given, "--list", "--json"))
    refused = {name: why for name, why in listing["refused"].items() if name.startswith("--")}
    assert {*listing["options"], *refused} == ASKED.keys()
    assert refused.keys() & {"--link-speed", "--bucket-cap-mb"}
    for option, values in ASKED.items():
        cheap = [] if "--no-search" in refused or option == "--no-search" else ["--no-search"]
        code = main(["whatif", given, *cheap, option, *values])
        said = capsys.readouterr().err
        assert code == (2 if option in refused else 0), said
        assert refused.get(option, "") in said


def test_a_recording_of_which_nothing_can_be_replayed_lists_nothing_and_says_why(
    capsys: pytest.CaptureFixture[str],
) -> None:
    given = str(shared_file("kineto/sampled_pair"))
    listed = stdout_of(capsys, "whatif", given, "--list")
    assert main(["whatif", given]) == 3
    assert "Nothing can be replayed: " in listed
    assert listed.split("Nothing can be replayed: ")[1].strip() in capsys.readouterr().err


@pytest.mark.slow
def test_what_if_names_the_setting_that_advise_recommends(capsys: pytest.CaptureFixture[str]) -> None:
    regressed = str(ROOT / "traces" / "regressed")
    assert main(["advise", regressed]) == 0
    advised = capsys.readouterr().out
    (cap,) = re.findall(r"^\d+\. Set (bucket_cap_mb=\d+) ", advised, re.MULTILINE)
    assert f"verify:    record the new run, then: overlapscope compare {regressed} NEW_RUN" in advised
    assert main(["whatif", regressed]) == 0
    said = capsys.readouterr().out
    assert said.splitlines()[1].startswith(f"{cap} saves ")
    assert said.endswith(
        f"\nRecord a run with {cap} and compare both:\nnext: overlapscope compare {regressed} NEW_RUN\n"
    )
