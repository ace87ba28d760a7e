"""Every error OverlapScope raises on purpose.

OverlapScopeError            exit code of the command line
├── UsageError               2   the call or the configuration is wrong
└── InputError               3   the input cannot be used
    ├── NotATraceError       3   no reader knows this file
    └── NewerSchemaError     3   written by a newer OverlapScope

A message says what was wrong, where, and what to do about it, on one line. It names arguments of the Python interface;
where the command line calls them otherwise, `in_shell` is the same message in its words. `redacted` is the same without
anything that the caller named, for `--redact`; without it the message is left out there.
"""


class OverlapScopeError(Exception):
    """Root of all deliberate errors; `exit_code` is what the command line returns for it."""

    exit_code = 2

    def __init__(self, *said: object, in_shell: str | None = None, redacted: str | None = None) -> None:
        super().__init__(*said)
        self.in_shell = str(self) if in_shell is None else in_shell
        self.redacted = redacted


class UsageError(OverlapScopeError):
    """The caller asked for something that makes no sense; the message says what would."""

    exit_code = 2


class InputError(OverlapScopeError):
    """An input file or folder cannot be used; the message names it."""

    exit_code = 3


class NotATraceError(InputError):
    """No reader recognises the file's content."""


class NewerSchemaError(InputError):
    """A run directory was written by a newer version than this one."""
