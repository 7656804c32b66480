"""What the user sees: results on stdout, progress and notes on stderr; plain text where either is not a terminal."""

from __future__ import annotations

import os
import sys

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeElapsedColumn, TransferSpeedColumn
from rich.table import Table

# A pipe has no width of its own: 200 columns keep a table's rows on one line each for grep and for CI logs.
_PIPE_WIDTH = 200

out = Console(width=None if sys.stdout.isatty() or "COLUMNS" in os.environ else _PIPE_WIDTH, highlight=False)
err = Console(
    stderr=True, width=None if sys.stderr.isatty() or "COLUMNS" in os.environ else _PIPE_WIDTH, highlight=False
)


def note(text: str) -> None:
    """Say one line of progress on stderr. `text` may hold rich markup; escape what comes from outside."""
    err.print(text, soft_wrap=True)


def warn(text: str) -> None:
    """Say one line that the user should act on, on stderr; the command goes on. `text` is printed as it is."""
    err.print("[yellow]warning:[/yellow] ", end="")
    err.print(text, markup=False, soft_wrap=True)


def table(*headers: str, right: tuple[str, ...] = ()) -> Table:
    """Return an empty table in the house style; the columns named in `right` are aligned to the right."""
    made = Table(box=None, pad_edge=False, header_style="bold")
    for header in headers:
        made.add_column(header, justify="right" if header in right else "left", overflow="fold")
    return made


def download_progress() -> Progress:
    """Return a progress display for transfers of known size, on stderr, silent where stderr is no terminal."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeElapsedColumn(),
        console=err,
        disable=not err.is_terminal,
    )


def megabytes(size: int) -> str:
    """Return a byte count as decimal megabytes with one digit, as registries and wheel indexes count them."""
    return f"{size / 1e6:,.1f}"
