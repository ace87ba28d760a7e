"""Build a wheel of the tree, install it in an empty environment without torch, analyze and report a trace with it."""

import json
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).parent.parent


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        run(sys.executable, "-m", "build", "--outdir", str(place), str(ROOT))  # by way of an sdist: a clean tree
        wheel = next(place.glob("*.whl"))
        venv.create(place / "empty", with_pip=True)
        python = str(place / "empty" / "bin" / "python")
        run(python, "-m", "pip", "install", "-q", "-c", str(ROOT / "constraints.txt"), str(wheel))
        command = str(place / "empty" / "bin" / "overlapscope")
        analysis = json.loads(run(command, "analyze", str(ROOT / "traces" / "baseline"), "--json", cwd=place))
        assert analysis["run"]["ranks"] == [0, 1], analysis["run"]
        page = run(command, "report", str(ROOT / "traces" / "baseline"), "--format", "html", cwd=place)
        assert page.endswith("</html>\n"), "the page's style and script are not in the wheel"
        assert run(command, "explain", "straggler", "bucket_cap", cwd=place).count("**What to do next.**") == 2
        torch = subprocess.run([python, "-c", "import torch"], capture_output=True, text=True, check=False)
        assert "ModuleNotFoundError" in torch.stderr, torch.stderr
        print(f"check-wheel: {wheel.name} analyzes {len(analysis['ranks'])} ranks without torch")


def run(*command: str, cwd: Path | None = None) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=cwd)
    if done.returncode:
        sys.exit(f"{' '.join(command)}\n{done.stdout}{done.stderr}")
    return done.stdout


if __name__ == "__main__":
    main()
