"""What tells whether a file is still the one it was, without a look at its content."""

import os

FileState = tuple[int, int, int, int]


def file_state(at: os.stat_result) -> FileState:
    """Give size, time of the content, number, and time of the last change of whatever kind, in ns.

    Whoever replaces a file may give the new one the old one's size and time (`cp -p`, `rsync -t`, `touch -r`); its
    number, or the time of the change, nobody can choose. Both may also change without the content, by a link or a
    backup: then something is done once more.
    """
    return at.st_size, at.st_mtime_ns, at.st_ino, at.st_ctime_ns
