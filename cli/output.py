"""What a command prints: for people by rich, or one line of JSON for scripts.

Results go to stdout, everything else to stderr, so that a pipe carries results only.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from domicile.cli.failures import CliError


class Output:
    """One command's output. `as_json` makes every result one line of JSON."""

    def __init__(self, *, as_json: bool) -> None:
        self.as_json = as_json

    def value(self, value: Any) -> None:
        """A result of any JSON shape."""
        if self.as_json or not sys.stdout.isatty():
            print(json.dumps(value, ensure_ascii=False))
            return
        from rich.console import Console

        Console().print_json(json.dumps(value), ensure_ascii=False)

    def rows(self, rows: Sequence[Mapping[str, Any]], columns: Sequence[str], empty: str) -> None:
        """A list of like things; `empty` is said, to stderr, when there are none."""
        if self.as_json:
            print(json.dumps(rows, ensure_ascii=False))
            return
        if not rows:
            print(empty, file=sys.stderr)
            return
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text

        table = Table(box=None, pad_edge=False, header_style="bold")
        for column in columns:
            table.add_column(column, overflow="fold")
        for row in rows:
            table.add_row(*(Text(plain(row.get(column))) for column in columns))
        Console(width=None if sys.stdout.isatty() else 200).print(table)

    def say(self, text: str) -> None:
        """One line for people; not printed with --json."""
        if not self.as_json:
            print(text, flush=True)

    def event(self, text: str, event: str, **fields: Any) -> None:
        """A line of a long-running command: the text, or with --json an object with `event` and the fields."""
        print(json.dumps({"event": event, **fields}) if self.as_json else text, flush=True)

    def failure(self, error: CliError) -> None:
        """An error, to stderr."""
        if self.as_json:
            print(json.dumps(error.document(), ensure_ascii=False), file=sys.stderr)
            return
        print(f"error: {error.what}", file=sys.stderr)
        if error.advice:
            print(f"  {error.advice}", file=sys.stderr)


def plain(value: Any) -> str:
    """One cell: text as it is, nothing for None, JSON for the rest."""
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
