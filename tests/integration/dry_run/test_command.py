"""`overlapscope dryrun` as a user types it: what it prints and writes, and what it refuses in one line."""

import json
import re
import signal
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import overlapscope
from overlapscope.cli.main import main
from overlapscope.dry_run.passes import LOWEST_TORCH
from tests.conftest import ROOT
from tests.integration.jobs.without_sockets import NOT_HERE
from tests.support.fork_server import Ended, start

torch = pytest.importorskip("torch", reason="torch is not installed: no step can run")

pytestmark = [pytest.mark.torch, pytest.mark.dry_run, pytest.mark.xdist_group("training")]

EXAMPLE = str(ROOT / "examples" / "sharded_step.py:build")


def ended(words: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    code = main(words)
    out, err = capsys.readouterr()
    return code, out, err


def test_it_prints_what_the_readme_shows_and_writes_a_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = str(tmp_path / "run")
    code, out, _ = ended(["dryrun", EXAMPLE, "--world", "1024", "-o", run], capsys)
    assert code == 0
    shown = re.search(r"```text\n(collective .*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    assert shown
    assert shown[1] in out
    assert f"next: overlapscope analyze {run}" in out
    code, again, _ = ended(["analyze", run], capsys)
    assert code == 0
    assert again == out.removesuffix(f"\nnext: overlapscope analyze {run}\n")
    code, document, _ = ended(["analyze", run, "--json"], capsys)
    found = json.loads(document)
    assert [each["calls"] for each in found["dry_step"]["ranks"][0]["calls"]] == [4, 4, 4]
    assert found["headline"]["step_ns"] is None
    trace = ["--format", "perfetto", "-o", str(tmp_path / "trace.json")]
    for verb in ("compare", "gate"):
        assert ended([verb, run, run], capsys)[0] == 0, verb
    timed = ("whatif",), ("advise",), ("explain", "--at", "0:1"), ("export", *trace)
    for verb, *rest in timed:
        words = [verb, run, *rest]
        code, out, err = ended(words, capsys)
        assert code == 3, words
        assert out == ""
        assert "a dry run, which has no times" in err
        assert err.count("\n") == 1


@pytest.mark.slow
def test_an_existing_run_is_replaced_only_when_asked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["dryrun", EXAMPLE, "--world", "8", "-o", str(tmp_path / "run")]
    assert ended(words, capsys)[0] == 0
    code, _, err = ended(words, capsys)
    assert code == 2
    assert "exists already" in err
    assert ended([*words, "-f"], capsys)[0] == 0


def write(folder: Path, text: str) -> str:
    (folder / "job.py").write_text(text)
    return str(folder / "job.py")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "code", "words"),
    [
        ("import nowhere_at_all", 3, "nowhere_at_all is not installed: install what the job"),
        ("1 / 0", 3, "the import fails: ZeroDivisionError"),
        ("def other(device): ...", 2, "has no build; it has other"),
        ("build = 3", 2, "no function"),
        ("def build(device): return lambda: None", 0, ""),
        ("def build(device): return lambda: print('hello')", 0, ""),
        (
            "import torch\ndef build(d): return lambda: torch.ones(2, device='cuda') + torch.ones(2, device=d)",
            3,
            "needs a device",
        ),
        ("def build(device): pass", 3, "return the step"),
        ("import torch\ndef build(d): return lambda: torch.ones(4, device=d).nonzero()", 3, "use fixed shapes"),
        (
            "from torch.distributed.device_mesh import init_device_mesh as m\ndef build(d): m(d.type, (1, 3))",
            3,
            "choose a world",
        ),
        ("raise SystemExit(2)", 3, "the module ends the process as it is imported (SystemExit: 2)"),
        ("def build(device): raise SystemExit(2)", 3, "SystemExit: 2"),
        ("def build(device): raise ValueError('no\\nway')", 3, "ValueError: no way"),
        ("import sys; sys.exit('usage: job')", 3, 'under if __name__ == "__main__"'),
        ("import sys; assert len(sys.argv) == 1\ndef build(device): return lambda: None", 0, ""),
        (
            "import torch\ndef build(d): return lambda: torch.ones(3) @ torch.ones(4)",
            3,
            "job.py:2: the step cannot run",
        ),
        ("import torch\ndef build(d): return lambda: torch.cuda.Event().record()", 3, "needs a device"),
        (
            "import torch\ndef build(d): return lambda: torch.save(torch.ones(3), __import__('io').BytesIO())",
            3,
            "leave saving out of the step",
        ),
        ("import torch\ndef build(d): return lambda: torch.ones(3).pin_memory().to(d)", 0, ""),
    ],
)
def test_what_a_module_does_wrong_is_one_line(
    text: str, code: int, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ["dryrun", f"{write(tmp_path, text)}:build", "--world", "4", "-o", str(tmp_path / "run")]
    found, out, err = ended(given, capsys)
    assert found == code
    assert words in err
    assert "hello" not in out
    if code:
        assert err.count("\n") == 1
        assert not (tmp_path / "run").exists()


def test_a_torch_older_than_the_extra_promises_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["optional-dependencies"]["dryrun"] == [f"torch>={'.'.join(map(str, LOWEST_TORCH))}"]
    monkeypatch.setattr("torch.__version__", "2.6.1+cpu")
    lacks = write(tmp_path, "from torch import something_newer")
    code, _, err = ended(["dryrun", f"{lacks}:build", "--world", "4", "-o", str(tmp_path / "run")], capsys)
    assert code == 2
    assert "needs torch 2.7 or later, this is 2.6.1+cpu" in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--world", "0"], "--world must be"),
        (["--world", "4", "--rank", "4"], "rank 4"),
        (["--world", "4", "--rank", "a"], "--rank must be"),
        (["--world", "4", "--input", "8x8"], "--input is for"),
        ([], "--world N is needed"),
        (["--world", "4", "--mesh", "dp=2,tp=4"], "the mesh has 2 x 4 = 8 ranks, the world 4"),
        (["--mesh", "dp=2,dp=4"], "names a dimension twice"),
        (["--mesh", "dp=2,tp"], "--mesh must be names and sizes"),
        (["--mesh", "dp=0"], "--mesh must be names and sizes"),
    ],
)
def test_wrong_options_are_refused(
    options: list[str], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, err = ended(["dryrun", EXAMPLE, *options, "-o", str(tmp_path / "run")], capsys)
    assert code == 2
    assert words in err


@pytest.mark.slow
@pytest.mark.parametrize("wrapper", ["--ddp", "--fsdp2"])
def test_a_plain_module_is_wrapped(wrapper: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = "import torch\ndef model(): return torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Linear(64, 64))"
    given = ["dryrun", f"{write(tmp_path, text)}:model", wrapper, "--world", "8", "-o", str(tmp_path / "run")]
    code, _, err = ended(given, capsys)
    assert code == 2
    assert "no example input" in err
    code, out, _ = ended([*given, "--input", "4x64"], capsys)
    assert code == 0
    assert ("all_reduce" if wrapper == "--ddp" else "reduce_scatter") in out


OF_A_MESH = """
import torch
from torch import distributed
from torch.distributed.device_mesh import init_device_mesh

def build(device, mesh):
    assert mesh.mesh_dim_names == ("dp", "tp") and mesh.shape == (3, 2)
    def step():
        distributed.all_reduce(torch.ones(7, device=device), group=mesh["tp"].get_group())
        distributed.all_reduce(torch.ones(5, device=device), group=mesh["dp"].get_group())
    return step

def alone(device):
    return build(device, init_device_mesh(device.type, (3, 2), mesh_dim_names=("dp", "tp")))
"""


@pytest.mark.slow
def test_a_function_is_given_the_mesh_that_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    job = write(tmp_path, OF_A_MESH)
    for name, given in (("build", ["--mesh", "dp=3,tp=2"]), ("alone", ["--world", "6"])):
        words = ["dryrun", f"{job}:{name}", *given, "--rank", "0,3", "-o", str(tmp_path / name)]
        code, _, err = ended(words, capsys)
        assert code == 0, err
    run, alone = (overlapscope.load(tmp_path / name) for name in ("build", "alone"))
    groups = {each.name: each.ranks for each in run.run.groups}
    for rank, members in ((0, [(0, 1), (0, 2, 4)]), (3, [(2, 3), (1, 3, 5)])):
        calls = run.table("collectives", rank)
        assert calls.equals(alone.table("collectives", rank))
        assert calls.bytes.tolist() == [28, 20]
        assert [groups[each] for each in calls.group] == members
    code, _, err = ended(["dryrun", f"{job}:alone", "--mesh", "dp=3,tp=2", "-o", str(tmp_path / "no")], capsys)
    assert code == 3
    assert "write def build(device, mesh)" in err


@pytest.mark.slow
def test_a_plain_module_is_sharded_over_a_mesh(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    job = write(tmp_path, "import torch\ndef model(): return torch.nn.Sequential(torch.nn.Linear(64, 64))")
    given = ["dryrun", f"{job}:model", "--input", "4x64", "-o", str(tmp_path / "run")]
    code, _, err = ended([*given, "--fsdp2", "--mesh", "replicate=2,shard=4"], capsys)
    assert code == 0, err
    run = overlapscope.load(tmp_path / "run")
    members = {each.name: len(each.ranks or ()) for each in run.run.groups}
    calls = run.table("collectives", 0)
    assert {(row.op, members[row.group]) for row in calls.itertuples()} == {
        ("all_gather", 4), ("reduce_scatter", 4), ("all_reduce", 2),
    }  # fmt: skip
    for wrapper, mesh, words in (
        ("--ddp", "dp=4", "--ddp takes no --mesh"),
        ("--fsdp2", "a=2,b=2,c=2", "one dimension, or of two"),
    ):
        code, _, err = ended([*given, "-f", wrapper, "--mesh", mesh], capsys)
        assert code == 2
        assert words in err


def without_sockets(folder: Path, *specs: str) -> Ended:
    (done,) = start([["-m", "tests.integration.jobs.without_sockets", str(folder), *specs]]).wait(240)
    if done.code == NOT_HERE:
        pytest.skip("the kernel takes no filter of system calls")
    return done


@pytest.mark.slow
def test_dry_runs_work_where_no_socket_may_be_opened(tmp_path: Path) -> None:
    kinds = ("ddp", "fsdp", "fsdp_tensor", "pipeline", "by_hand")
    specs = [f"tests.integration.jobs.dry_steps:{kind}" for kind in kinds]
    done = without_sockets(tmp_path, *specs, "tests.unit.dry_run.steps:loads_with_workers")
    assert done.code == 0, done.output


@pytest.mark.slow
def test_a_socket_would_have_been_seen(tmp_path: Path) -> None:
    build = write(tmp_path, "import socket\ndef build(device): socket.socket()")
    assert without_sockets(tmp_path, f"{build}:build").code == -signal.SIGSYS


def test_help_and_import_load_no_torch() -> None:
    code = """
import sys
from overlapscope.cli.main import main
try:
    main(["dryrun", "--help"])
except SystemExit:
    assert "torch" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
