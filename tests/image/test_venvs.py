"""Each venv: its interpreter, the exact versions of its lock, and that every declared module imports."""

from __future__ import annotations

import json
import re

import pytest
from testinfra.host import Host

from image.subject import Subject
from lockstep.narrow import LEFT_OUT

ENTRY = "/opt/lockstep/entrypoint"
TIMEOUT = 600
"""Seconds for one import: vLLM's takes about 30 on a slow disk, and an emulated processor is ten times slower."""

DRIVER = re.compile(
    r"Failed to infer device type|"
    r"lib(cuda|nvidia-ml)\.so\.1: cannot open shared object file|Found no NVIDIA driver|no NVIDIA driver"
)
"""What a module says that fails only because the machine has no NVIDIA driver (CASES E3)."""


def python(venv: str) -> str:
    return f"/opt/venvs/{venv}/bin/python"


def test_interpreter(host: Host, subject: Subject, venv: str) -> None:
    code = "import sys; print(sys.prefix, '.'.join(map(str, sys.version_info[:2])), sys.flags.no_user_site)"
    assert host.check_output("%s -c %s", python(venv), code) == f"/opt/venvs/{venv} {subject.python} 1"


def test_A7_versions_are_exactly_those_of_the_lock(host: Host, subject: Subject, venv: str) -> None:
    code = (
        "import json, re; from importlib.metadata import distributions as d; "
        "print(json.dumps(sorted([re.sub('[-_.]+', '-', x.metadata['Name']).lower(), x.version] for x in d())))"
    )
    found = [tuple(pair) for pair in json.loads(host.check_output("%s -c %s", python(venv), code))]
    wanted = [(wheel.name, wheel.version) for wheel in subject.locks[venv].wheels]
    if venv in subject.runtime:
        wanted.append(("lockstep-runtime", subject.runtime[venv]))
    assert found == sorted(wanted)


def test_import(host: Host, subject: Subject, venv: str, module: str) -> None:
    """B5 and B2: as root, and as a user on a read-only file system without network.

    A module of a package that the image was built without is skipped; one that needs such a package fails, and says so.
    """
    key = f"{venv}:{module}"
    if package := subject.left_out(venv, module):
        subject.results[key] = {"result": "left-out", "detail": f"{package} is {LEFT_OUT}"}
        pytest.skip(f"{package} is {LEFT_OUT}")
    command = f"{ENTRY} timeout {TIMEOUT} {python(venv)} -c %s"
    done = host.run(command, f"import {module}")
    said = done.stderr.strip()
    if done.rc == 0:
        subject.results[key] = {"result": "pass", "detail": ""}
        return
    last = said.splitlines()[-1] if said else f"exit code {done.rc}"
    if DRIVER.search(said):
        subject.results[key] = {"result": "needs-driver", "detail": last}
        pytest.skip(f"needs an NVIDIA driver: {last}")
    if package := subject.blamed(venv, said):
        last = f"it needs {package}, which is {LEFT_OUT}: {last}"
        said = f"{said[-2000:]}\n{last}"
    subject.results[key] = {"result": "fail", "detail": last}
    pytest.fail(f"import {module}: {said[-2400:] or last}")


def test_C5_scripts_run(host: Host, subject: Subject, venv: str, script: str) -> None:
    done = host.run(f"{ENTRY} timeout {TIMEOUT} /opt/venvs/%s/bin/%s --help", venv, script)
    if done.rc and DRIVER.search(done.stderr):
        pytest.skip("needs an NVIDIA driver")
    package = subject.blamed(venv, done.stderr)
    assert done.rc == 0, done.stderr[-2000:] + (f"it needs {package}, which is {LEFT_OUT}" if package else "")


def test_C5_every_shebang_resolves(host: Host, venv: str) -> None:
    code = (
        "import os, pathlib, sys; b = pathlib.Path(sys.prefix, 'bin'); "
        "bad = [f.name for f in b.iterdir() if f.is_file() and f.read_bytes()[:2] == b'#!' and not "
        "os.access(f.read_bytes().split(b'\\n')[0][2:].split()[0], os.X_OK)]; print(bad)"
    )
    assert host.check_output("%s -c %s", python(venv), code) == "[]"
