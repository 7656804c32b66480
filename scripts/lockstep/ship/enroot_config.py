"""The files that `enroot import` makes from an image's configuration, byte for byte.

Behaviour observed in enroot 4.1.2 and the revision after it (src/docker.sh of github.com/NVIDIA/enroot); nothing is
taken from its text but the four files that it writes, whose content is the interface between an image and enroot.
"""

from __future__ import annotations

import unicodedata
from dataclasses import dataclass
from typing import Any

_ANSI = {7: "\\a", 8: "\\b", 9: "\\t", 10: "\\n", 11: "\\v", 12: "\\f", 13: "\\r", 27: "\\E", 39: "\\'", 92: "\\\\"}
"""What bash writes for these characters within $'…' (bash(1), "${parameter@Q}" and QUOTING)."""


@dataclass(frozen=True)
class EnrootFiles:
    """Content of the four files below /etc, and the working directory that must exist."""

    rc: str
    environment: str
    fstab: str
    rc_local: str
    workdir: str


def quote(word: str) -> str:
    """Quote a word as bash's ${word@Q} does in a UTF-8 locale."""
    if word == "'":
        return "\\'"  # bash has a case of its own for this one word (lib/sh/shquote.c, sh_single_quote)
    if all(_printable(letter) for letter in word):
        return "'" + word.replace("'", "'\\''") + "'"
    return "$'" + "".join(_escape(letter) for letter in word) + "'"


def _escape(letter: str) -> str:
    if ord(letter) in _ANSI:
        return _ANSI[ord(letter)]
    return letter if _printable(letter) else "".join(f"\\{byte:03o}" for byte in letter.encode())


def _printable(letter: str) -> bool:
    """Say what glibc's iswprint says: all but controls, surrogates, separators of lines, and what is not assigned."""
    return unicodedata.category(letter) not in {"Cc", "Cn", "Cs", "Zl", "Zp"}


def _lines(words: list[str] | None) -> list[str]:
    """Split words at newlines: enroot passes them through a line-wise reader."""
    return [line for word in words or [] for line in str(word).split("\n")]


def make(config: dict[str, Any], provenance: str) -> EnrootFiles:
    """Return the files for an image configuration (the OCI config object, whose key `config` holds the settings).

    provenance: the URI that enroot would have imported; enroot up to 4.1.2 writes no such comment, later ones do.
    """
    settings: dict[str, Any] = config.get("config") or {}
    entrypoint, command = _lines(settings.get("Entrypoint")), _lines(settings.get("Cmd"))
    if not entrypoint and not command:
        command = ["/bin/sh"]
    workdir = str(settings.get("WorkingDir") or "").partition("\n")[0].strip(" \t") or "/"
    labels = settings.get("Labels") or {}
    head = [f"# enroot-provenance: {provenance}"]
    head += [f"# {key} {str(value).replace(chr(10), ' ')}" for key, value in labels.items()]
    start = " ".join(quote(word) for word in entrypoint)
    arguments = " ".join(quote(word) for word in command)
    body = [
        "",
        f'mkdir -p "{workdir}" 2> /dev/null',
        f'cd "{workdir}" && unset OLDPWD || exit 1',
        "",
        "if [ -s /etc/rc.local ]; then",
        "    . /etc/rc.local",
        "fi",
        "",
        "if [ $# -gt 0 ]; then",
        f'    exec {start} "$@"',
        "else",
        f"    exec {start} {arguments}",
        "fi",
    ]
    volumes = sorted(settings.get("Volumes") or {})
    return EnrootFiles(
        rc="\n".join([*head, *body]) + "\n",
        environment="".join(f"{each}\n" for each in settings.get("Env") or []),
        fstab="".join(f"${{ENROOT_ROOTFS}}{each} {each} none x-create=dir,bind,rw,nosuid,nodev\n" for each in volumes),
        rc_local=(
            "# This file is sourced by /etc/rc when the container starts.\n"
            "# It can be used to manipulate the entrypoint or the command of the container.\n"
        ),
        workdir=workdir,
    )
