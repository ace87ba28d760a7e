"""The folder that a recording is written to, which ranks on other hosts may not see."""

import secrets
import shutil
import socket
from contextlib import suppress
from pathlib import Path

from overlapscope.capture.lifecycle import exchange
from overlapscope.capture.lifecycle.guard import Guard, warn
from overlapscope.errors import InputError, UsageError
from overlapscope.timeline.store.manifest import is_rank_folder
from overlapscope.timeline.store.prediction_file import NAME as PREDICTIONS
from overlapscope.timeline.store.run_directory import FACTS, is_run_directory
from overlapscope.timeline.store.run_folder import require_own


def unfinished(rank: int, pid: int | str) -> str:
    """Return how names of files begin that a process keeps under other names once it has read them."""
    return f".rank_{rank:05d}.{socket.gethostname().replace('.', '_')}.{pid}"


def apart_key(session: int) -> str:
    """Return the key of the number of ranks whose files rank 0 does not see."""
    return f"session{session}/apart"


class OutputFolder:
    """The folder of one recording, and whether rank 0 can read what this rank writes."""

    def __init__(self, path: Path, guard: Guard) -> None:
        self.path = path
        self._guard = guard
        self.seen_by_rank_0 = True
        self._token: Path | None = None

    def refuse_foreign(self) -> None:
        """Raise UsageError if the folder contains anything but a run, or a run with files of others inside.

        Files of others beside a run's own stay.
        """
        try:
            taken = self.path.is_dir() and any(not each.name.startswith(".") for each in self.path.iterdir())
        except OSError:
            return  # writing will report it
        if taken and not is_run_directory(self.path):
            raise UsageError(f"profile({str(self.path)!r}): the folder is neither empty nor a run; choose another one")
        if taken:
            with suppress(InputError):  # as above
                require_own(self.path, {each.name for each in self.path.iterdir()})

    def warn_of_replacing(self) -> None:
        """Warn if the folder contains an older run."""
        if is_run_directory(self.path):
            warn(f"the run in {self.path} will be replaced", stacklevel=7)

    def agree(self, session: int, rank: int, world_size: int, wait_seconds: float) -> None:
        """Find out whether this rank sees the same files as rank 0, which leaves a token in a file and in the store."""
        store = exchange.store() if world_size > 1 else None
        if store is None:
            return
        key, token = f"session{session}/place", self.path / f".session{session}"
        if rank == 0:
            word = secrets.token_hex(8)
            written = self._guard("writing to the run", _write, token, word)
            exchange.send(store, key, {"word": word if written else ""})
            self._token = token if written else None
            return
        expected = exchange.receive(store, [key], wait_seconds).get(key, {}).get("word")
        self.seen_by_rank_0 = token.is_file() and token.read_text(encoding="ascii") == expected
        if not self.seen_by_rank_0:
            exchange.count(store, apart_key(session), 1)

    def remove_older_run(self, begun_ns: int) -> None:
        """Remove what is left of an older run once the new one is written: runs must not mix.

        That is its ranks, written before `begun_ns` (epoch), and its facts and predictions, of which a recording has
        none.
        """
        for entry in self.path.glob("rank_*"):
            if is_rank_folder(entry.name) and entry.is_dir() and entry.stat().st_mtime_ns < begun_ns:
                shutil.rmtree(entry)
        if (self.path / FACTS).is_dir():
            shutil.rmtree(self.path / FACTS)
        (self.path / PREDICTIONS).unlink(missing_ok=True)

    def remove_unfinished(self, ranks: list[int]) -> None:
        """Remove the traces of ranks whose processes on this host have died before they could keep them."""
        for rank in ranks:
            for file in self.path.glob(f"{unfinished(rank, '*')}.*"):
                pid = file.name.split(".")[3]
                if pid.isdigit() and not Path(f"/proc/{pid}").exists():
                    file.unlink(missing_ok=True)

    def leave(self) -> None:
        """Remove the token."""
        if self._token is not None:
            self._guard("cleaning up", self._token.unlink, missing_ok=True)


def _write(token: Path, word: str) -> bool:
    token.parent.mkdir(parents=True, exist_ok=True)
    token.write_text(word, encoding="ascii")
    return True
