"""Dry runs in a process that the kernel ends where it opens a socket.

python -m tests.integration.jobs.without_sockets FOLDER MODULE:FUNCTION...

Exits with NOT_HERE where the kernel takes no such filter.
"""

import ctypes
import os
import platform
import struct
import sys

SOCKET = {"x86_64": 41, "aarch64": 198}
"""Number of the system call, by processor."""
NOT_HERE = 77
KILL, ALLOW = 0x8000_0000, 0x7FFF_0000


def deny_sockets() -> bool:
    """Return whether this process now ends with SIGSYS where it calls `socket` (seccomp(2), a filter of BPF)."""
    number = SOCKET.get(platform.machine())
    if sys.platform != "linux" or number is None:
        return False
    load, equal, end = 0x20, 0x15, 0x06
    program = [(load, 0, 0, 0), (equal, 0, 1, number), (end, 0, 0, KILL), (end, 0, 0, ALLOW)]
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *each) for each in program))
    filtered = struct.pack("HP", len(program), ctypes.addressof(code))
    control = ctypes.CDLL(None, use_errno=True).prctl
    no_new_privileges, seccomp, mode_filter = 38, 22, 2
    return control(no_new_privileges, 1, 0, 0, 0) == 0 and control(seccomp, mode_filter, filtered, 0, 0) == 0


def main(folder: str, specs: list[str]) -> None:
    os.environ.setdefault(
        "LOGNAME", "nobody"
    )  # torch asks for the user's name, and the C library a daemon, by a socket
    if not deny_sockets():
        sys.exit(NOT_HERE)
    from overlapscope.cli.main import main as overlapscope  # noqa: PLC0415 - no thread may be there before

    for number, spec in enumerate(specs):
        code = overlapscope(["dryrun", spec, "--world", "4", "-o", f"{folder}/{number}"])
        if code:
            sys.exit(code)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
