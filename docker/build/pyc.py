"""Compile a tree's Python files to bytecode that is the same bytes every time.

CPython's marshal writes a back-reference flag for each object whose reference count is above one at that moment
(Python/marshal.c, w_ref), and strings that earlier files interned raise the counts: what was compiled before in the
same process shows in the bytes. So each file is compiled in a child forked from one parent that never changes: every
child starts from the same state, whatever the order, the number of workers or the load.

The .pyc are of the kind that checks its source by hash (PEP 552): valid after a tool rewrote file times (enroot does
with SOURCE_DATE_EPOCH), and stale, as they should be, after somebody edited the source.
"""

from __future__ import annotations

import _imp
import importlib._bootstrap_external as external
import importlib.util
import os
import sys
import warnings
from pathlib import Path


def compile_tree(root: Path, workers: int = 0) -> tuple[int, int]:
    """Compile every .py below `root` that has no .pyc; return how many were compiled and how many would not parse.

    A file that does not parse (a template, code for another Python) is left alone, as pip and uv do.
    """
    if os.environ.get("PYTHONHASHSEED") != "0":
        raise SystemExit("error: bytecode needs PYTHONHASHSEED=0 to be the same every time")
    warnings.simplefilter("ignore")  # invalid escapes in other people's code are not for our users' eyes
    sources = sorted(path for path in root.rglob("*.py") if path.is_file() and not path.is_symlink())
    todo: list[tuple[str, str]] = []
    for source in sources:
        target = Path(importlib.util.cache_from_source(str(source)))
        if not target.exists():
            target.parent.mkdir(exist_ok=True)
            todo.append((str(source), str(target)))
    failed = _fork_all(todo, workers or os.cpu_count() or 1)
    return len(todo) - failed, failed


def _fork_all(todo: list[tuple[str, str]], workers: int) -> int:
    failed = running = 0
    for source, target in todo:
        if running == workers:
            failed += _reap()
            running -= 1
        if os.fork() == 0:
            _child(source, target)
        running += 1
    while running:
        failed += _reap()
        running -= 1
    return failed


def _reap() -> int:
    _, status = os.wait()
    code = os.waitstatus_to_exitcode(status)
    if code not in (0, 1):
        raise SystemExit(f"error: compiling bytecode ended with status {code}: is the disk or the memory full?")
    return code


def _child(source: str, target: str) -> None:
    """Compile one file and end the process: 0 done, 1 not Python of this version, anything else a fault."""
    try:
        with open(source, "rb") as stream:  # noqa: PTH123 - pathlib would be imported state of the child
            data = stream.read()
        try:
            code = compile(data, source, "exec", dont_inherit=True, optimize=0)
        except (SyntaxError, ValueError, RecursionError):
            os._exit(1)
        digest = _imp.source_hash(external._RAW_MAGIC_NUMBER, data)
        with open(target, "wb") as stream:  # noqa: PTH123
            stream.write(external._code_to_hash_pyc(code, digest, True))
        os._exit(0)
    except BaseException as error:  # the child must never return into the parent's loop
        sys.stderr.write(f"{source}: {error}\n")
        os._exit(2)


if __name__ == "__main__":
    done, skipped = compile_tree(Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 0)
    print(f"{done} files compiled, {skipped} left alone")
