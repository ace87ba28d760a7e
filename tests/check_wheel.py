"""Build a wheel of the tree, install it in an empty environment without torch, analyze and report a trace with it.

`make docs` has built the documentation before: the wheel has it, and `serve` shows it.
"""

import json
import subprocess
import sys
import tempfile
import venv
import zipfile
from pathlib import Path
from urllib.request import urlopen

ROOT = Path(__file__).parent.parent
SITE = "overlapscope_dashboards/site/"
MAX_SITE_BYTES = 5_000_000


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        run(sys.executable, "-m", "build", "--outdir", str(place), str(ROOT))  # by way of an sdist: a clean tree
        wheel = next(place.glob("*.whl"))
        venv.create(place / "empty", with_pip=True)
        python = str(place / "empty" / "bin" / "python")
        quick = ("-q", "--no-compile")  # most modules of what it needs are never imported here
        run(python, "-m", "pip", "install", *quick, "-c", str(ROOT / "constraints.txt"), str(wheel))
        command = str(place / "empty" / "bin" / "overlapscope")
        analysis = json.loads(run(command, "analyze", str(ROOT / "traces" / "baseline"), "--json", cwd=place))
        assert analysis["run"]["ranks"] == [0, 1], analysis["run"]
        page = run(command, "report", str(ROOT / "traces" / "baseline"), "--format", "html", cwd=place)
        assert page.endswith("</html>\n"), "the page's style and script are not in the wheel"
        assert run(command, "explain", "straggler", "bucket_cap", cwd=place).count("**What to do next.**") == 2
        pages = check_site(wheel, command, place)
        torch = subprocess.run([python, "-c", "import torch"], capture_output=True, text=True, check=False)
        assert "ModuleNotFoundError" in torch.stderr, torch.stderr
        print(f"check-wheel: {wheel.name} analyzes {len(analysis['ranks'])} ranks without torch, {pages}")


def check_site(wheel: Path, command: str, place: Path) -> str:
    """Exit unless the wheel has the whole site, small enough, and `serve` shows it; return how large it is."""
    with zipfile.ZipFile(wheel) as archive:
        found = {each.filename: each.compress_size for each in archive.infolist() if each.filename.startswith(SITE)}
    built = {each.relative_to(ROOT / "dashboards").as_posix() for each in (ROOT / "dashboards/site").rglob("*.*")}
    missing = {f"overlapscope_dashboards/{each}" for each in built} - set(found)
    size_bytes = sum(found.values())
    if not built or missing or size_bytes > MAX_SITE_BYTES:
        sys.exit(f"the site in the wheel: {len(found)} files, {size_bytes} bytes; missing: {sorted(missing)[:9]}")
    asked = [command, "serve", str(ROOT / "traces"), "--port", "0", "--json"]
    with subprocess.Popen(asked, stdout=subprocess.PIPE, text=True, cwd=place) as served:
        try:
            assert served.stdout is not None
            address = json.loads(served.stdout.readline())["url"]
            for page in ("", "search.js", "findings/straggler.html", "pictures/overview.webp"):
                with urlopen(f"{address}docs/{page}", timeout=30) as answer:
                    assert answer.status == 200, page
        finally:
            served.terminate()
    return f"and has {len(found)} files of documentation in {size_bytes / 1e6:.1f} MB"


def run(*command: str, cwd: Path | None = None) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=cwd)
    if done.returncode:
        sys.exit(f"{' '.join(command)}\n{done.stdout}{done.stderr}")
    return done.stdout


if __name__ == "__main__":
    main()
