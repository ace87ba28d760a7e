"""The pictures of the documentation are of the dashboard as it is: `--update-golden` takes them anew."""

import base64
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from overlapscope.cli.main import main
from overlapscope_dashboards.runs.site import Site, run_address
from tests.conftest import ROOT, shared_file
from tests.support.dashboard_runs import ids, served
from tests.unit.dashboard.test_browser import PATIENCE_MS, STANDS

pytestmark = [pytest.mark.browser, pytest.mark.xdist_group("dashboard-browser")]
FOLDER = ROOT / "docs" / "pictures"
SHOWN = FOLDER / "shown.json"
"""The words that stand in each picture, by its name."""
WIDTH, MAX_BYTES, MAX_ALL_BYTES, QUALITY = 1200, 80_000, 600_000, 82
STEP = "?t0=278000000&t1=424000000"
"""One step of the run, in ns from the run's start."""
DRAWN = """() => [...document.querySelectorAll(".tl-chart")].every((each) => each.querySelector(".barlayer path"))
  && (!document.querySelector("#runs") || document.querySelector(".runs .pill.bad"))"""
"""The timeline asks for its bars when its axes stand already; the list of runs has a verdict when all are analysed."""
FOLLOWED = """() => {
  const asked = new URLSearchParams(location.search), plot = document.querySelector("#timeline-figure");
  if (!asked.has("chain")) return true;
  const begin = plot && plot._fullLayout ? plot._fullLayout.xaxis.range[0] : NaN;
  return asked.has("t0") && document.querySelectorAll(".tl-step").length && document.querySelector(".tl-drawn .disc")
    && Math.abs(begin - asked.get("t0") / 1e6) < 0.001;
}"""
"""A chain comes after the first view, whose window it then changes."""
WORDS = """(height) => {
  const words = [], walk = document.createTreeWalker(document.querySelector("main"), NodeFilter.SHOW_TEXT);
  for (let node = walk.nextNode(); node; node = walk.nextNode()) {
    if (node.parentElement.closest("svg, script, style, .unseen")) continue;
    const range = document.createRange();
    range.selectNodeContents(node);
    const box = range.getBoundingClientRect();
    if (box.width && box.top < height) words.push(node.textContent);
  }
  return words.join(" ").replace(/\\s+/g, " ").trim();
}"""


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory, browser: Any) -> dict[str, tuple[bytes, str]]:
    """Return each picture of the tutorial as WebP, and its words, by name."""
    place = tmp_path_factory.mktemp("tutorial")
    for name, run in (("before", "regressed"), ("after", "baseline")):
        shutil.copytree(ROOT / "traces" / run, place / "runs" / name)
    with pytest.MonkeyPatch.context() as patched:
        patched.chdir(place)  # pages show paths as they were given
        assert main(["advise", "runs/before", "--bucket-cap-mb", "1,4,10", "--record", "--date", "2026-11-23"]) == 0
        return taken(Path("runs"), browser)


def taken(folder: Path, browser: Any) -> dict[str, tuple[bytes, str]]:
    """Return the pictures, and their words, of the runs in a folder."""
    known = ids(Site([folder]))
    pages = {
        "runs": (f"/?pin={known['after']}&pick={known['before']}", 360),
        "overview": (run_address(known["before"]), 620),
        "timeline": (run_address(known["before"], "timeline") + STEP, 700),
        "whatif": (run_address(known["before"], "what-if") + "?cap=4", 700),
        "compare": (f"/compare?base={known['before']}&candidate={known['after']}", 800),
    }
    return photographed(folder, pages, browser)


@pytest.fixture(scope="module")
def of_gpus(tmp_path_factory: pytest.TempPathFactory, browser: Any) -> dict[str, tuple[bytes, str]]:
    """Return each picture of the README, which shows a public recording, and its words, by name."""
    folder = tmp_path_factory.mktemp("gpus") / "megatron_tp8"
    shutil.copytree(shared_file("kineto/megatron_tp8"), folder)
    run = ids(Site([folder]))["megatron_tp8"]
    pages = {
        "gpu_overview": (run_address(run), 720),
        # The longest time without compute, explained, with a rank that waits for it.
        "gpu_chain": (run_address(run, "timeline") + "?ranks=4,6&show=host&chain=loss", 860),
    }
    return photographed(folder, pages, browser)


def photographed(folder: Path, pages: dict[str, tuple[str, int]], browser: Any) -> dict[str, tuple[bytes, str]]:
    """Return picture and words of pages (address and height of what is shown), by name."""
    address, found = served([folder]).rstrip("/"), {}
    context = browser.new_context(color_scheme="light", viewport={"width": WIDTH, "height": 1000})
    page = context.new_page()
    devtools = context.new_cdp_session(page)
    for name, (path, height) in pages.items():
        page.goto(address + path)
        page.wait_for_function(STANDS, timeout=PATIENCE_MS)
        page.wait_for_function(FOLLOWED, timeout=PATIENCE_MS)
        page.wait_for_function(DRAWN, timeout=PATIENCE_MS)
        clip = {"x": 0, "y": 0, "width": WIDTH, "height": height, "scale": 1}
        shot = devtools.send("Page.captureScreenshot", {"format": "webp", "quality": QUALITY, "clip": clip})
        found[name] = base64.b64decode(shot["data"]), page.evaluate(WORDS, height)
    context.close()
    return found


@pytest.mark.slow
@pytest.mark.parametrize("of", ["pictures", "of_gpus"])
def test_the_pictures_show_the_dashboard_as_it_is(of: str, request: pytest.FixtureRequest) -> None:
    pictures: dict[str, tuple[bytes, str]] = request.getfixturevalue(of)
    if request.config.getoption("--update-golden"):
        FOLDER.mkdir(exist_ok=True)
        for name, (picture, _) in pictures.items():
            (FOLDER / f"{name}.webp").write_bytes(picture)
        words = json.loads(SHOWN.read_text(encoding="utf-8")) if SHOWN.exists() else {}
        words |= {name: words for name, (_, words) in pictures.items()}
        SHOWN.write_text(json.dumps(words, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    shown = json.loads(SHOWN.read_text(encoding="utf-8"))
    again = "take the pictures anew: pytest tests/unit/dashboard/test_docs_pictures.py --update-golden"
    for name, (_, words) in pictures.items():
        assert words == shown[name], again
    assert {each.stem for each in FOLDER.glob("*.webp")} == set(shown)


@pytest.mark.slow
def test_the_pictures_are_few_and_small(pictures: dict[str, tuple[bytes, str]]) -> None:
    kept: list[Path] = [*FOLDER.glob("*.webp"), ROOT / "docs" / "dashboard.png"]
    assert all(each.stat().st_size <= MAX_BYTES for each in kept if each.suffix == ".webp")
    assert sum(each.stat().st_size for each in kept) <= MAX_ALL_BYTES
    assert all(each.read_bytes()[8:12] == b"WEBP" for each in kept if each.suffix == ".webp")
    assert all(len(picture) <= MAX_BYTES for picture, _ in pictures.values())
