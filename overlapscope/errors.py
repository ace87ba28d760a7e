"""All errors that OverlapScope raises deliberately.

OverlapScopeError            exit code of the command line
├── UsageError               2   the call or the configuration is wrong
└── InputError               3   the input cannot be used
    ├── NotATraceError       3   no reader recognises this file
    ├── HostEventsError      3   host events of a stored rank cannot be read; all else of it can
    └── NewerSchemaError     3   written by a newer OverlapScope

A message says in one line what was wrong, where, and what to do about it. It names arguments of the Python interface;
`in_shell` is the same message with the names of the command line, where these differ. `redacted` is the same message
without any name that the caller gave, for `--redact`; without it the message is omitted there.
"""


class OverlapScopeError(Exception):
    """Root of all deliberate errors; `exit_code` is what the command line returns for it."""

    exit_code = 2

    def __init__(self, *message: object, in_shell: str | None = None, redacted: str | None = None) -> None:
        super().__init__(*message)
        self.in_shell = str(self) if in_shell is None else in_shell
        self.redacted = redacted


class UsageError(OverlapScopeError):
    """The call or the configuration is wrong; the message says what would be right."""

    exit_code = 2


class InputError(OverlapScopeError):
    """An input file or folder cannot be used; the message names it."""

    exit_code = 3


class NotATraceError(InputError):
    """No reader recognises the file's content."""


class HostEventsError(InputError):
    """The host events of a stored rank cannot be read; the rest of the rank can."""

    def __init__(self, path: str, why: str) -> None:
        self.path, self._why = path, why
        self.what = f"cannot be read: {why}"
        super().__init__(f"{path}: {self.what}")

    def __reduce__(self) -> tuple[type["HostEventsError"], tuple[str, str]]:
        """Return how it travels to another process."""
        return HostEventsError, (self.path, self._why)


class NewerSchemaError(InputError):
    """A run directory was written by a newer version than this one."""
