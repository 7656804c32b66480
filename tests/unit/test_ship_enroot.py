"""The files that enroot makes of an image's configuration."""

from __future__ import annotations

import shutil
import subprocess
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from lockstep.ship.enroot_config import make, quote

RC_TAIL = """
mkdir -p "/workspace" 2> /dev/null
cd "/workspace" && unset OLDPWD || exit 1

if [ -s /etc/rc.local ]; then
    . /etc/rc.local
fi

if [ $# -gt 0 ]; then
    exec '/opt/lockstep/entrypoint' "$@"
else
    exec '/opt/lockstep/entrypoint' '/bin/bash'
fi
"""


def config(**settings_: Any) -> dict[str, Any]:
    return {"architecture": "amd64", "os": "linux", "config": settings_}


def test_rc_of_an_ordinary_image() -> None:
    made = make(
        config(
            Entrypoint=["/opt/lockstep/entrypoint"],
            Cmd=["/bin/bash"],
            WorkingDir="/workspace",
            Labels={"b": "two\nlines", "a": "x"},
        ),
        "docker://host#rl:v1",
    )
    assert made.rc == "# enroot-provenance: docker://host#rl:v1\n# b two lines\n# a x\n" + RC_TAIL
    assert made.workdir == "/workspace"


@pytest.mark.parametrize(
    ("entrypoint", "command", "lines"),
    [
        (None, None, ['    exec  "$@"', "    exec  '/bin/sh'"]),
        (["/e"], None, ["    exec '/e' \"$@\"", "    exec '/e' "]),
        (None, ["a", "b c"], ['    exec  "$@"', "    exec  'a' 'b c'"]),
        (["/e", "a\nb"], ["it's"], ["    exec '/e' 'a' 'b' \"$@\"", "    exec '/e' 'a' 'b' 'it'\\''s'"]),
        (["/e", ""], [], ["    exec '/e' '' \"$@\"", "    exec '/e' '' "]),
    ],
)
def test_entrypoint_and_command(entrypoint: list[str] | None, command: list[str] | None, lines: list[str]) -> None:
    made = make(config(Entrypoint=entrypoint, Cmd=command), "x")
    assert [line for line in made.rc.splitlines() if line.startswith("    exec")] == lines


def test_environment_and_volumes() -> None:
    made = make(config(Env=["A=b c", "PATH=/bin"], Volumes={"/z": {}, "/a": {}}), "x")
    assert made.environment == "A=b c\nPATH=/bin\n"
    assert made.fstab == (
        "${ENROOT_ROOTFS}/a /a none x-create=dir,bind,rw,nosuid,nodev\n"
        "${ENROOT_ROOTFS}/z /z none x-create=dir,bind,rw,nosuid,nodev\n"
    )


def test_an_empty_configuration() -> None:
    made = make({"architecture": "amd64", "os": "linux"}, "x")
    assert 'cd "/" && unset OLDPWD' in made.rc
    assert (made.environment, made.fstab, made.workdir) == ("", "", "/")
    assert made.rc_local.startswith("# This file is sourced by /etc/rc")


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")
@settings(max_examples=60, deadline=None)
@example(["'", "''", "'a"])
@given(st.lists(st.text(st.characters(max_codepoint=0x17F, exclude_characters="\0\n"), max_size=12), min_size=1))
def test_words_are_quoted_as_bash_quotes_them(words: list[str]) -> None:
    done = subprocess.run(
        ["bash", "-c", 'printf "%s\\n" "${@@Q}"', "bash", *words],
        env={"LC_ALL": "C.UTF-8", "PATH": "/usr/bin:/bin"},
        capture_output=True,
        check=True,
    )
    assert [quote(word) for word in words] == done.stdout.decode().split("\n")[:-1]
