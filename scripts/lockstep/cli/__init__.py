"""The command line: one file per area, each registering its commands here."""

from __future__ import annotations

import gc
import importlib
import os
import sys

import typer

from lockstep.errors import LockstepError

# Each names a module of this package with a function `register(app)`.
_AREAS = (
    *("core", "lockdiff", "archreport", "engine", "base", "audit", "patches", "add_ons", "source"),
    *("wheels", "ship", "plans"),
)

# What people and CI run over and over starts without the other areas: reading fifty commands' signatures takes a tenth
# of a second. A test compares this with what the areas register.
_QUICK = {"render": "core", "plan": "core", "image": "core", "probe": "core", "lock": "core"}


def build_app(command: str = "") -> typer.Typer:
    """Return the program with the commands of every area, or of the one area that has `command` where that is known."""
    app = typer.Typer(
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        help="Reproducible container images for LLM reinforcement-learning stacks.",
    )
    app.callback()(lambda: None)
    for area in [_QUICK[command]] if command in _QUICK else _AREAS:
        importlib.import_module(f"lockstep.cli.{area}").register(app)
    return app


def main() -> None:
    """Run the program; a LockstepError becomes one line on stderr and exit code 1."""
    # A start makes some hundred thousand objects that live to its end: collecting them over and over is a tenth of it.
    gc.set_threshold(50_000, 20, 50)
    # Looking for plug-ins that no one here has would read the metadata of every installed package.
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    try:
        build_app(sys.argv[1] if len(sys.argv) > 1 else "")()
    except LockstepError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(1)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.exit(130)
