"""Console scripts: out of a wheel's entry points, and out of the script that an installer writes for one."""

from __future__ import annotations

import configparser
import json
import re
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor

from lockstep.audit.wheels import DAMAGE, FIX, locate
from lockstep.errors import LockstepError
from lockstep.files import write_text
from lockstep.index import open_wheel
from lockstep.lock import LockedWheel
from lockstep.paths import state_dir

FILE = "a file of the wheel"
"""The target of a script that is no entry point: a program, or a script that the wheel brings as it is."""

_IMPORT = re.compile(r"^from (?P<module>[\w.]+) import (?P<name>\w+)$", re.MULTILINE)
_FORMAT = 1
_PARALLEL = 12  # as lockstep.audit.wheels: an index answers in tens of milliseconds


class _Parser(configparser.ConfigParser):
    def optionxform(self, optionstr: str) -> str:
        """Keep the case of names."""
        return optionstr


def script_target(text: str) -> str:
    """Return `module:name` of a script that an installer wrote for an entry point, by its first lines; else FILE.

    Of `module:name.attribute` only the name is told: the import line is all that every installer writes alike.
    """
    match = _IMPORT.search(text)
    return f"{match['module']}:{match['name']}" if text.startswith("#!") and match else FILE


def entry_points(text: str) -> dict[str, str]:
    """Return the console and GUI scripts of an entry_points.txt, each with its `module:name`.

    The format is https://packaging.python.org/en/latest/specifications/entry-points/.
    """
    parser = _Parser(delimiters=("=",), interpolation=None, strict=False)
    parser.read_string(text)
    found = {}
    for section in ("console_scripts", "gui_scripts"):
        for name, value in parser[section].items() if parser.has_section(section) else ():
            module, _, attribute = value.partition("[")[0].strip().partition(":")
            found[name] = f"{module.strip()}:{attribute.strip().partition('.')[0]}"
    return found


def wheel_scripts(wheels: Iterable[LockedWheel]) -> Iterator[tuple[LockedWheel, dict[str, str]]]:
    """Yield the scripts of each wheel that can be read, from where it lies; what was read is kept by its sha256.

    A wheel that is not at hand (compiled or mirrored elsewhere) is left out.
    """
    known = list(wheels)
    with ThreadPoolExecutor(_PARALLEL) as pool:
        for wheel, found in zip(known, pool.map(_scripts, known), strict=True):
            if found is not None:
                yield wheel, found


def _scripts(wheel: LockedWheel) -> dict[str, str] | None:
    note = state_dir() / "wheel-scripts" / f"{wheel.sha256}.v{_FORMAT}.json"
    try:
        return {str(name): str(target) for name, target in json.loads(note.read_text("utf-8")).items()}
    except (OSError, ValueError, AttributeError):
        source = locate(wheel)
    if source is None:
        return None
    found: dict[str, str] = {}
    try:
        with open_wheel(source) as archive:
            for member in archive.namelist():
                top, _, rest = member.partition("/")
                if top.endswith(".data") and rest.startswith("scripts/") and not rest.endswith("/"):
                    found[rest.removeprefix("scripts/")] = FILE
                elif top.endswith(".dist-info") and rest == "entry_points.txt":
                    found |= entry_points(archive.read(member).decode("utf-8", "replace"))
    except (*DAMAGE, configparser.Error) as error:
        raise LockstepError(f"is not a sound wheel: {error}", where=wheel.filename, fix=FIX) from None
    write_text(note, json.dumps(found, sort_keys=True))
    return found
