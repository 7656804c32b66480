"""What the user sees: results on stdout, progress and notes on stderr; plain text where either is not a terminal.

rich is loaded when something of it is first used: a command that only says a plain line starts without it.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress
    from rich.table import Table

    out: Console
    err: Console

# A pipe has no width of its own: 200 columns keep a table's rows on one line each for grep and for CI logs.
_PIPE_WIDTH = 200


def __getattr__(name: str) -> Console:
    """Make `out` (stdout) and `err` (stderr) when they are first used."""
    if name not in {"out", "err"}:
        raise AttributeError(name)
    from rich.console import Console

    stream = sys.stdout if name == "out" else sys.stderr
    width = None if stream.isatty() or "COLUMNS" in os.environ else _PIPE_WIDTH
    console = globals()[name] = Console(stderr=name == "err", width=width, highlight=False)
    return console


def note(text: str) -> None:
    """Say one line of progress on stderr. `text` may hold rich markup; escape what comes from outside."""
    if "err" not in globals() and "[" not in text:  # no markup, and no display in progress that it could cut through
        print(text, file=sys.stderr)
        return
    _err().print(text, soft_wrap=True)


def _err() -> Console:
    made: Console | None = globals().get("err")
    return made or __getattr__("err")


def warn(text: str) -> None:
    """Say one line that the user should act on, on stderr; the command goes on. `text` is printed as it is."""
    _err().print("[yellow]warning:[/yellow] ", end="")
    _err().print(text, markup=False, soft_wrap=True)


def table(*headers: str, right: tuple[str, ...] = ()) -> Table:
    """Return an empty table in the house style; the columns named in `right` are aligned to the right."""
    from rich.table import Table

    made = Table(box=None, pad_edge=False, header_style="bold")
    for header in headers:
        made.add_column(header, justify="right" if header in right else "left", overflow="fold")
    return made


def download_progress() -> Progress:
    """Return a progress display for transfers of known size, on stderr, silent where stderr is no terminal."""
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeElapsedColumn, TransferSpeedColumn

    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeElapsedColumn(),
        console=_err(),
        disable=not _err().is_terminal,
    )


def megabytes(size: int) -> str:
    """Return a byte count as decimal megabytes with one digit, as registries and wheel indexes count them."""
    return f"{size / 1e6:,.1f}"
