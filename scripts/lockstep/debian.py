"""What Lockstep asks of the host's own Debian tools: which of them are there, and mmdebstrap's way of being called."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from lockstep.console import note
from lockstep.errors import LockstepError
from lockstep.run import run


def is_debian_like() -> bool:
    """Return whether this machine's packages are apt's: Debian, Ubuntu and what derives from them."""
    return shutil.which("apt-get") is not None and shutil.which("dpkg") is not None


def require_programs(packages: dict[str, str], what_for: str) -> None:
    """Have host programs, installing the Debian packages that hold them where root may.

    packages maps a program, or the absolute path of a file, to the Debian package that holds it. What is installed is
    said on stderr; where it cannot be installed, LockstepError says what to install. what_for names the work.
    """
    missing = sorted({package for program, package in packages.items() if not _has(program)})
    if not missing:
        return
    if os.geteuid() != 0 or not is_debian_like():
        raise LockstepError(
            f"{what_for} needs {', '.join(missing)}, which this machine does not have",
            fix=f"on Debian or Ubuntu: apt-get install {' '.join(missing)}",
        )
    note(f"installing {', '.join(missing)} on this machine, for {what_for}")
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    install = ["apt-get", "install", "-qq", "--no-install-recommends", *missing]
    # The machine's lists may be old or missing; they are fetched only where the first try fails.
    if subprocess.run(install, env=environment, capture_output=True, check=False).returncode:
        run(["apt-get", "update", "-qq"], env=environment, fix="see what apt says about this machine's sources")
        run(install, env=environment, fix="see what apt says about this machine's sources")


def _has(program: str) -> bool:
    return Path(program).exists() if program.startswith("/") else shutil.which(program, path=_ROOT_PATH) is not None


# mmdebstrap and apt call programs of /usr/sbin, which a user's PATH may lack.
_ROOT_PATH = os.pathsep.join(filter(None, [os.environ.get("PATH", ""), "/usr/local/sbin", "/usr/sbin", "/sbin"]))


def require_mmdebstrap(what_for: str) -> None:
    """Have mmdebstrap and the keys of Debian's archive (which an Ubuntu host lacks); see `require_programs`."""
    require_programs(
        {
            "mmdebstrap": "mmdebstrap",
            "/usr/share/keyrings/debian-archive-keyring.gpg": "debian-archive-keyring",
        },
        what_for,
    )


def mirror_lines(suite: str) -> list[str]:
    """Return the sources.list lines of the archive that the environment names, or none: mmdebstrap has its own default.

    DEBIAN_MIRROR is the address of the main archive (a mirror, or a snapshot), DEBIAN_SECURITY_MIRROR that of the
    security archive. With only the first, security updates come as far as that mirror carries them.
    """
    main = os.environ.get("DEBIAN_MIRROR")
    security = os.environ.get("DEBIAN_SECURITY_MIRROR")
    if not main:
        return []
    lines = [f"deb {main} {suite} main", f"deb {main} {suite}-updates main"]
    if security:
        lines.append(f"deb {security} {suite}-security main")
    return lines


def tool_environment(epoch: int | None = None) -> dict[str, str]:
    """Return the environment for mmdebstrap, apt and dpkg: fixed locale, time zone and path, and proxies as they are.

    epoch, in seconds since 1970, becomes SOURCE_DATE_EPOCH. Nothing else of the caller's environment goes in, so that
    it cannot reach a maintainer script.
    """
    kept = {
        name: value
        for name, value in os.environ.items()
        if name.lower() in ("http_proxy", "https_proxy", "ftp_proxy", "no_proxy", "all_proxy", "home", "tmpdir")
    }
    fixed = {
        "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        "LC_ALL": "C.UTF-8",
        "TZ": "UTC",
        "DEBIAN_FRONTEND": "noninteractive",
    }
    if epoch is not None:
        fixed["SOURCE_DATE_EPOCH"] = str(epoch)
    return {**kept, **fixed}


def mmdebstrap(*words: str | Path, epoch: int | None = None, workdir: Path | None = None, fix: str = "") -> None:
    """Run mmdebstrap; epoch is for SOURCE_DATE_EPOCH, workdir is where it unpacks what becomes an archive.

    It fails with pages of apt's and dpkg's output: LockstepError quotes the lines of it that say why.
    """
    environment = tool_environment(epoch)
    if workdir:
        environment["TMPDIR"] = str(workdir)
    done = subprocess.run(
        ["mmdebstrap", *words], env=environment, capture_output=True, text=True, check=False, umask=0o022
    )
    if done.returncode:
        lines = [line.strip()[:300] for line in done.stderr.splitlines()]
        causes = [line.removeprefix("E: ") for line in lines if line.startswith(("E: ", "dpkg: error"))]
        # What follows from the cause, in apt's and mmdebstrap's own words.
        echoes = ("setup failed", "Some index files failed", "failed to run", "apt-get ", "Sub-process")
        causes = [line for line in causes if not line.startswith(echoes)] or lines[-3:]
        raise LockstepError(f"mmdebstrap failed: {'; '.join(dict.fromkeys(causes[:2]))}", fix=fix)
