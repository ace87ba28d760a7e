"""`overlapscope demo --serve` as people have it: a process that trains, prints an address, and answers there."""

import http.client
import json
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import IO, Any
from urllib.parse import urlsplit

import pytest

from tests.conftest import ROOT
from tests.support.fork_server import start

pytestmark = [
    pytest.mark.xdist_group("training"),
    pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed: the demo trains with it"),
]
PATIENCE_S = 300
TRAINED = """
import shutil
import signal
import sys
from overlapscope.cli import main
from overlapscope.cli.verbs import demo
signal.signal(signal.SIGINT, signal.default_int_handler)  # who starts the tests in the background has it ignored
demo.train_and_record = lambda run: shutil.copytree("trained", run, dirs_exist_ok=True)
sys.exit(main.main())
"""
"""The command, after a training that forked processes did: two more imports of torch would take most of the time."""


def trained(folder: Path) -> None:
    """Train as the demo does, but for two recorded steps."""
    place = [str(folder / "trained"), str(folder / "store"), "2"]
    ranks = [["-m", "overlapscope.cli.demo_training", *place, str(rank), "4", "2"] for rank in range(2)]
    for ended in start(ranks).wait(PATIENCE_S):
        assert ended.code == 0, ended.output


def lines_of(stream: IO[str]) -> Iterator[str]:
    """Yield lines as they come, none later than PATIENCE_S: what hangs fails."""
    found: queue.Queue[str] = queue.Queue()

    def read() -> None:
        for line in stream:
            found.put(line.rstrip("\n"))
        found.put("the process ended")

    threading.Thread(target=read, daemon=True).start()
    while True:
        yield found.get(timeout=PATIENCE_S)


def asked(port: int, method: str, path: str, body: Any = None) -> Any:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S)
    headers = {} if body is None else {"Content-Type": "application/json"}
    connection.request(method, path, None if body is None else json.dumps(body), headers)
    answer = connection.getresponse()
    assert answer.status == 200
    text = answer.read().decode()
    connection.close()
    return text


def first_address(port: int) -> str:
    """Return where the address that was printed leads: to the only run."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S)
    connection.request("GET", "/")
    place = connection.getresponse().headers["Location"]
    connection.close()
    return place


def page(port: int, path: str) -> str:
    """Return a page as the browser gets it, asking again while it is being made."""
    specs = json.loads(asked(port, "GET", "/_dash-dependencies"))
    spec = next(each for each in specs if "main.children" in each["output"])
    inputs = [{**each, "value": path if each["property"] == "pathname" else None} for each in spec["inputs"]]
    names = [each.rpartition(".") for each in spec["output"].strip(".").split("...")]
    outputs = [{"id": name, "property": what} for name, _, what in names]
    body = {"output": spec["output"], "outputs": outputs, "inputs": inputs, "changedPropIds": ["address.pathname"],
            "state": [{**each, "value": None} for each in spec["state"]]}  # fmt: skip
    for _ in range(PATIENCE_S):
        answer = json.loads(asked(port, "POST", "/_dash-update-component", body))
        text = json.dumps(answer)
        if "The page appears when it is ready." not in text:
            return text
    raise AssertionError("the page was never made")


def test_the_demo_trains_prints_its_table_and_serves_the_run(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join((str(ROOT), os.environ.get("PYTHONPATH", "")))}
    trained(tmp_path)
    command = [sys.executable, "-c", TRAINED, "demo", "--serve", "-o", "run"]
    with subprocess.Popen(
        command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        try:
            assert process.stdout is not None
            said: list[str] = []
            for line in lines_of(process.stdout):
                said.append(line)
                if line.startswith("serving on ") or line == "the process ended":
                    break
            assert said[-1].startswith("serving on http://127.0.0.1:"), said
            assert any(line.startswith("2 ranks of 2, 2 steps") for line in said), said
            assert "The run is in run." in said
            port = urlsplit(said[-1].removeprefix("serving on ")).port
            assert port
            only = first_address(port)
            assert only.startswith("/runs/")
            assert "<title>OverlapScope</title>" in asked(port, "GET", only)
            overview = page(port, only)
            assert "Where a step goes" in overview
            assert "exposed" in overview
            process.send_signal(signal.SIGINT)
            process.wait(PATIENCE_S)
            assert process.returncode in (0, 130, -signal.SIGINT)
        finally:
            if process.poll() is None:
                process.kill()
    assert (tmp_path / "run" / "run.json").is_file()
