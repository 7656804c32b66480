"""Install the wheels of one layer into the venvs that use them, and leave nothing else behind.

Runs inside a build stage, on the build platform, whatever the target's architecture: a venv is files. Reads one block
per venv from standard input, `[name]` followed by hashed requirement lines, and writes the layer's tree to --out.
Lines of another kind (STORED) are stored.py's.

    install.py --python-platform x86_64-manylinux_2_39 --out /out < requirements

Nothing but the standard library: the stage holds Python and uv, no more.
"""

from __future__ import annotations

import argparse
import filecmp
import importlib.util
import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import bytecode
import licenses

VENVS = Path("/opt/venvs")
SECRETS = Path("/run/secrets")
# Where a container starts; users and clusters mount over it, so it must exist in a read-only image.
WORKSPACE = "workspace"
STORED = ("store:", "mirror:", "missing:")
# Written by `python -m venv` or by this program to make uv see a venv; the skeleton layer of the image has its own.
SKELETON = ("bin/python", "bin/python3", "pyvenv.cfg")
# Installers leave these; each differs between two builds of the same wheels (CASES D6).
RESIDUE = ("INSTALLER", "REQUESTED", "uv_cache.json", "uv_build.json", "direct_url.json")


def fail(message: str) -> None:
    """End with one sentence on stderr and exit code 1."""
    sys.exit(f"error: {message}")


def read_blocks(text: str) -> dict[str, list[str]]:
    """Return the requirement lines under each venv's name."""
    blocks: dict[str, list[str]] = {}
    lines: list[str] | None = None
    for line in text.splitlines():
        if line.startswith("["):
            lines = blocks.setdefault(line.strip("[] "), [])
        elif line.strip():
            if lines is None:
                fail(f'the line "{line}" stands before the first [venv]')
            else:
                lines.append(line)
    return blocks


def make_skeleton(venv: Path, python: str) -> None:
    """Make the least that is a venv: a link to the interpreter of the image, and pyvenv.cfg (PEP 405).

    The link's target is the same on every architecture, so the venv is too.
    """
    (venv / "bin").mkdir(parents=True, exist_ok=True)
    (venv / "lib" / f"python{python}" / "site-packages").mkdir(parents=True, exist_ok=True)
    (venv / "bin" / "python").symlink_to(f"/usr/bin/python{python}")
    (venv / "bin" / "python3").symlink_to("python")
    (venv / "pyvenv.cfg").write_text(
        f"home = /usr/bin\ninclude-system-site-packages = false\nversion = {python}\n"
        f"executable = /usr/bin/python{python}\n"
    )


def environment() -> dict[str, str]:
    """Return uv's environment: the index and the certificate authority come as secrets and leave no trace."""
    env = dict(os.environ)
    env.update(
        UV_CACHE_DIR="/var/cache/uv",  # must be the cache mount, or the cache lands in the layer (CASES F2)
        UV_LINK_MODE="copy",
        UV_NO_INSTALLER_METADATA="1",
        UV_NO_CONFIG="1",
        UV_PYTHON_DOWNLOADS="never",
        UV_CONCURRENT_INSTALLS=str(os.cpu_count() or 1),
        UV_HTTP_TIMEOUT="300",
    )
    if (SECRETS / "index").is_file():
        env["UV_DEFAULT_INDEX"] = (SECRETS / "index").read_text().strip()
    if (SECRETS / "ca").is_file():
        env["SSL_CERT_FILE"] = str(SECRETS / "ca")
    if (SECRETS / "netrc").is_file():
        env["NETRC"] = str(SECRETS / "netrc")
    return env


def install(venv: Path, requirements: list[str], platform: str, find_links: str) -> None:
    """Install exactly the requirements into one venv, each checked against its hash."""
    words = ["/opt/uv/bin/uv", "pip", "install", "--quiet", "--python", str(venv / "bin" / "python")]
    words += ["--no-deps", "--require-hashes", "--only-binary", ":all:", "--python-platform", platform]
    words += ["--find-links", find_links] if find_links else []
    done = subprocess.run(
        [*words, "-r", "/dev/stdin"], input="\n".join(requirements), env=environment(), text=True, check=False
    )
    if done.returncode:
        fail(f"uv could not install the wheels of this layer into {venv}; the lines above say why")


def scrub(venv: Path, python: str) -> None:
    """Remove the skeleton and the installer's residue, RECORD lines included."""
    for name in SKELETON:
        (venv / name).unlink(missing_ok=True)
    for folder in (venv / "lib" / f"python{python}" / "site-packages").glob("*.dist-info"):
        gone = [name for name in RESIDUE if (folder / name).exists()]
        for name in gone:
            (folder / name).unlink()
        record = folder / "RECORD"
        if record.is_file():
            names = {f"{folder.name}/{name}" for name in RESIDUE}
            lines = record.read_text(encoding="utf-8").splitlines(keepends=True)
            kept = sorted(line for line in lines if line.split(",", 1)[0] not in names)
            record.write_text("".join(kept), encoding="utf-8")
    for folder in (venv / "bin", venv / "lib" / f"python{python}" / "site-packages"):
        if folder.is_dir() and not any(folder.iterdir()):
            folder.rmdir()


def link_equal(venvs: list[Path]) -> int:
    """Make each file that is the same in several venvs one file with several names; return the bytes saved.

    Only equal paths are compared, so unrelated files that happen to be equal stay apart. Hard links survive inside
    one layer, which is why a wheel's layer carries the copies of all its venvs.
    """
    saved = 0
    first, *rest = venvs
    for folder, _, names in os.walk(first):
        for name in names:
            source = Path(folder) / name
            if source.is_symlink():
                continue
            for venv in rest:
                copy = venv / source.relative_to(first)
                if not copy.is_symlink() and copy.is_file() and filecmp.cmp(source, copy, shallow=False):
                    saved += source.stat().st_size
                    copy.unlink()
                    os.link(source, copy)
    return saved


def link_bytecode(first: Path, venv: Path) -> None:
    """Give each source file that is one with the first venv's a link to that one's bytecode.

    The file name inside it is the first venv's; the interpreter puts its own in its place when it imports
    (importlib._bootstrap_external, _compile_bytecode), so tracebacks are right.
    """
    for source in venv.rglob("*.py"):
        origin = first / source.relative_to(venv)
        if not source.is_symlink() and origin.exists() and origin.samefile(source):
            made = Path(importlib.util.cache_from_source(str(origin)))
            if made.exists():
                target = Path(importlib.util.cache_from_source(str(source)))
                target.parent.mkdir(exist_ok=True)
                os.link(made, target)


def settle(root: Path, epoch: int) -> None:
    """Give every entry root's ownership, a mode that any user can read, and the image's time.

    Doing it here means that the exporter has no file time left to rewrite: its second pass over all bytes took as
    long as compressing them.
    """
    for folder, names, files in os.walk(root, topdown=False):
        for name in (*names, *files):
            path = os.path.join(folder, name)  # noqa: PTH118 - os.path is several times faster over 100,000 files
            mode = os.lstat(path).st_mode
            if not stat.S_ISLNK(mode):
                executable = stat.S_ISDIR(mode) or mode & 0o100
                os.chmod(path, 0o755 if executable else 0o644)  # noqa: PTH101
            os.utime(path, (epoch, epoch), follow_symlinks=False)
    os.chmod(root, 0o755)  # noqa: PTH101
    os.utime(root, (epoch, epoch))


def main() -> None:
    """Install, compile, link, settle, and move the tree to --out."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--python", default="3.13")
    parser.add_argument("--python-platform", required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--find-links", default="")
    parser.add_argument(
        "--skeleton", action="store_true", help="write the venvs' own files and /workspace instead of wheels"
    )
    parser.add_argument("--patches", type=Path, help="folder of patches for the wheels of this layer")
    parser.add_argument("--name", help="the layer's name, under which its licences are listed")
    arguments = parser.parse_args()
    blocks = read_blocks(sys.stdin.read())
    epoch = int(os.environ["SOURCE_DATE_EPOCH"])
    venvs = [VENVS / name for name in sorted(blocks)]
    made = [VENVS]
    ours = arguments.out / "opt" / "lockstep"
    for venv in venvs:
        make_skeleton(venv, arguments.python)
    if arguments.skeleton:
        (arguments.out / WORKSPACE).mkdir(parents=True)
    else:
        made += fill(venvs, blocks, arguments, ours)
    opt = arguments.out / "opt"
    opt.mkdir(parents=True, exist_ok=True)
    for tree in made:
        shutil.move(str(tree), str(opt / tree.name))
    if arguments.name:
        # Per layer, so that a bump changes the licences' list in the layer that it changes anyway.
        licenses.main([str(arguments.out), str(ours / "licenses"), arguments.name])
    settle(arguments.out, epoch)


def fill(venvs: list[Path], blocks: dict[str, list[str]], arguments: argparse.Namespace, ours: Path) -> list[Path]:
    """Install each venv's block, link what is equal, compile; return the trees that came to be beside the venvs."""
    made = []
    for venv in venvs:
        others = [line for line in blocks[venv.name] if line.startswith(STORED)]
        if lines := [line for line in blocks[venv.name] if line not in others]:
            install(venv, lines, arguments.python_platform, arguments.find_links)
        if others:
            import stored

            if stored.install(venv, others, arguments.python_platform, environment()):
                made.append(stored.KEPT)
        scrub(venv, arguments.python)
        if arguments.patches:
            patch(venv, arguments.patches, ours / "patches")
    if len(venvs) > 1:
        link_equal(venvs)
    for venv in venvs:
        if venv is not venvs[0]:
            link_bytecode(venvs[0], venv)
        bytecode.compile_tree(venv)
    return made


def patch(venv: Path, patches: Path, reports: Path) -> None:
    """Apply the patches for the packages of this layer; the program says what it did and stops the build on a miss."""
    program = Path(__file__).with_name("apply_patches.py")
    reports.mkdir(parents=True, exist_ok=True)
    words = [sys.executable, str(program), "--venv", str(venv), "--patches", str(patches), "--report-dir", str(reports)]
    if subprocess.run(words, check=False).returncode:
        fail(f"a patch in {patches} does not fit what is installed in {venv}; the lines above say which")


if __name__ == "__main__":
    main()
