"""How a command ends when it does not end well: one exception, one exit code a script can act on.

0  done
1  the call ran and failed, or was refused for good; `check` or `doctor` found something wrong
2  the command line cannot be understood
3  no node answered
4  refused for now, nothing ran: try again later
5  the outcome is unknown: run the same command again with the same --key
130  interrupted
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any


class Exit(IntEnum):
    """Exit codes, as above."""

    OK = 0
    FAILED = 1
    USAGE = 2
    UNREACHABLE = 3
    RETRYABLE = 4
    UNKNOWN = 5
    INTERRUPTED = 130


class CliError(Exception):
    """What happened, what to do about it, and the exit code. `problem` is the node's own document, if it sent one."""

    def __init__(self, what: str, exit_code: Exit, advice: str = "", problem: dict[str, Any] | None = None) -> None:
        super().__init__(what)
        self.what = what
        self.exit_code = exit_code
        self.advice = advice
        self.problem = problem

    def document(self) -> dict[str, Any]:
        """The same as JSON, for --json."""
        return {"error": self.what, "advice": self.advice, "exit_code": int(self.exit_code), **(self.problem or {})}


def exit_for(problem: dict[str, Any]) -> Exit:
    """The exit code for a problem document, by its `outcome` and `retryable` (API, "HTTP")."""
    if problem.get("outcome") == "unknown":
        return Exit.UNKNOWN
    return Exit.RETRYABLE if problem.get("retryable") else Exit.FAILED
