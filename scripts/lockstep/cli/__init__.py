"""The command line: one file per area, each registering its commands here."""

from __future__ import annotations

import importlib
import sys

import typer

from lockstep.errors import LockstepError

# Each names a module of this package with a function `register(app)`.
_AREAS = ("core", "lockdiff", "engine", "base", "audit", "patches", "add_ons", "source", "wheels", "ship", "plans")


def build_app() -> typer.Typer:
    """Return the program with the commands of every area."""
    app = typer.Typer(
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        help="Reproducible container images for LLM reinforcement-learning stacks.",
    )
    app.callback()(lambda: None)
    for area in _AREAS:
        importlib.import_module(f"lockstep.cli.{area}").register(app)
    return app


def main() -> None:
    """Run the program; a LockstepError becomes one line on stderr and exit code 1."""
    try:
        build_app()()
    except LockstepError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(1)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.exit(130)
