"""Loaded by every Python process of a compile stage (PYTHONPATH), nowhere else.

Folders are listed in sorted order, because a build system that takes its sources from os.walk would otherwise link
them in the order of the file system. An attempt to use the network is recorded: the stage has none, but a setup.py
that looks for a prebuilt wheel must be told to stop, not left to fall back in silence (CASES A4).
"""

import os
import sys

_LOG = os.environ.get("LOCKSTEP_NETWORK_LOG")
_listdir, _scandir = os.listdir, os.scandir


def listdir(path="."):
    return sorted(_listdir(path))


class _Sorted:
    """What os.scandir returns: an iterator and a context manager."""

    def __init__(self, entries):
        with entries:
            self._entries = iter(sorted(entries, key=lambda entry: entry.name))

    def __iter__(self):
        return self

    def __next__(self):
        return next(self._entries)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def close(self):
        pass


def scandir(path="."):
    return _Sorted(_scandir(path))


os.listdir, os.scandir = listdir, scandir


def _audit(event, arguments):
    if event == "socket.getaddrinfo":
        where = f"{arguments[0]}:{arguments[1]}"
    elif event == "socket.connect" and isinstance(arguments[1], tuple):
        where = f"{arguments[1][0]}:{arguments[1][1]}"
    elif event == "urllib.Request":
        where = str(arguments[0])
    else:
        return
    if where.startswith(("127.", "localhost", "None", "::1")):
        return
    with open(_LOG, "a", encoding="utf-8") as log:  # noqa: PTH123 - pathlib is slow to import, and this runs everywhere
        log.write(f"{where}\n")


if _LOG:
    sys.addaudithook(_audit)
