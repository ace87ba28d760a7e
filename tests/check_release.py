"""Build wheel and sdist into dist/, check them, and try both on every Python there is: `make release`.

    python tests/check_release.py [PYTEST ARGUMENT ...]

Each Python gets two empty environments, one from the wheel and one from the sdist, and runs there what README tells a
user to run, in a folder that holds nothing of the repository but its examples. Then the unpacked sdist runs its own
tests, in an environment made from it.
"""

import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import zipfile
from pathlib import Path

ROOT = Path(__file__).parent.parent
DIST = ROOT / "dist"
OWN_LICENCE = {"LICENSE", "LICENSES/Apache-2.0.txt", "REUSE.toml", "tests/check_release.py"}
FOREIGN = re.compile(rb"(?i)copyright|\(c\) 20\d\d|spdx-|licen[sc]ed under")
NEEDS_TORCH = "overlapscope dryrun "
"""The command of README that asks for torch where there is none; the sdist's own tests run it with torch."""
NEWEST_MINOR = 30
"""Python 3.11 up to this minor version are looked for."""


def main() -> None:
    """Build, check, try; exits with what failed."""
    shutil.rmtree(DIST, ignore_errors=True)
    run(sys.executable, "-m", "build", "--outdir", str(DIST), str(ROOT))
    (wheel,), (sdist,) = DIST.glob("*.whl"), DIST.glob("*.tar.gz")
    run(sys.executable, "-m", "twine", "check", "--strict", str(wheel), str(sdist))
    check_content(wheel, sdist)
    with tempfile.TemporaryDirectory() as folder:
        with tarfile.open(sdist) as archive:
            archive.extractall(folder, filter="data")
        (unpacked,) = Path(folder).iterdir()
        run(str(Path(sys.executable).with_name("reuse")), "--root", str(unpacked), "lint", "--lines")
        found = pythons()
        for version, python in found.items():
            for artefact in (wheel, sdist):
                count = try_out(python, artefact, unpacked)
                print(f"release: {artefact.name} on Python {version}: {count} commands of README", flush=True)
        print(f"release: {sdist.name}, its own tests: {run_own_tests(unpacked)}")
    if untried := promised() - {version.rpartition(".")[0] for version in found}:
        print(f"release: NOT TRIED: Python {', '.join(sorted(untried))}: not found here")


def promised() -> set[str]:
    """Return the versions of Python that pyproject.toml names."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return set(re.findall(r"Python :: (3\.\d+)", "\n".join(project["classifiers"])))


def pythons() -> dict[str, str]:
    """Return the executable of each Python that is new enough, by its version."""
    found = {}
    homes = sorted(Path.home().glob(".pyenv/versions/3.*/bin"))
    for minor in range(11, NEWEST_MINOR):
        name = f"python3.{minor}"
        for command in (*(str(home / name) for home in homes), shutil.which(name)):
            if command and os.access(command, os.X_OK):
                asked = subprocess.run([command, "--version"], capture_output=True, text=True, check=False)
                if not asked.returncode:
                    found[asked.stdout.split()[-1]] = command
                    break
    return found


def check_content(wheel: Path, sdist: Path) -> None:
    """Exit unless both hold all that they should, the licence too, and nothing under somebody else's licence."""
    with zipfile.ZipFile(wheel) as archive:
        in_wheel = set(archive.namelist())
    with tarfile.open(sdist) as archive:
        in_sdist = {name.partition("/")[2] for name in archive.getnames()}
    tracked = run("git", "-C", str(ROOT), "ls-files").splitlines()
    missing = [each for each in tracked if each not in in_sdist and not each.startswith(".")]
    for source, target in (("overlapscope/", "overlapscope/"), ("dashboards/", "overlapscope_dashboards/")):
        shipped = [target + each.removeprefix(source) for each in tracked if each.startswith(source)]
        missing += [each for each in shipped if each not in in_wheel]
    if not any(each.endswith("licenses/LICENSE") for each in in_wheel):
        missing.append("LICENSE in the wheel")
    if missing:
        sys.exit(f"not shipped: {', '.join(missing)}")
    foreign = [each for each in tracked if each not in OWN_LICENCE and FOREIGN.search((ROOT / each).read_bytes())]
    if foreign:
        sys.exit(f"of somebody else's, by what they say themselves: {', '.join(foreign)}; ship their licence, too")


def readme_commands() -> list[str]:
    """Return the commands of README that need neither make nor pip."""
    blocks = re.findall(r"```bash\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    lines = [line for block in blocks for line in block.splitlines()]
    return [line for line in lines if line.startswith("overlapscope ")]


def try_out(python: str, artefact: Path, unpacked: Path) -> int:
    """Install one artefact in an empty environment, run README's commands there, and return their number."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        run(python, "-m", "venv", str(place / "environment"))
        binaries = place / "environment" / "bin"
        run(str(binaries / "python"), "-m", "pip", "install", "-q", str(artefact))
        user = place / "user"
        user.mkdir()
        for name in ("traces", "examples"):
            shutil.copytree(unpacked / name, user / name)
        commands = readme_commands()
        for command in commands:
            with_torch = f"{command} 2>&1 | grep -q \"pip install 'overlapscope\\[dryrun]'\""
            run("bash", "-e", "-c", with_torch if NEEDS_TORCH in command else command, cwd=user, path=binaries)
        return len(commands)


def run_own_tests(unpacked: Path) -> str:
    """Run the tests of an unpacked sdist in an environment made from it, and return pytest's last line."""
    with tempfile.TemporaryDirectory() as folder:
        run(sys.executable, "-m", "venv", folder)
        binaries = Path(folder, "bin")
        python, constraints = str(binaries / "python"), str(unpacked / "constraints.txt")
        run(python, "-m", "pip", "install", "-q", "-c", constraints, f"{unpacked}[torch,dev]")
        tests = (python, "-m", "pytest", "-q", "--dist", "loadgroup", *sys.argv[1:])
        return run(*tests, cwd=unpacked, path=binaries).splitlines()[-1]


def run(*command: str, cwd: Path | None = None, path: Path | None = None) -> str:
    """Run a command and return what it prints; exits with all of that where it fails."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "VIRTUAL_ENV"))}
    if path is not None:
        environment["PATH"] = f"{path}{os.pathsep}{environment['PATH']}"
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=cwd, env=environment)
    if done.returncode:
        sys.exit(f"{' '.join(command)}\n{done.stdout}{done.stderr}")
    return done.stdout


if __name__ == "__main__":
    main()
