"""`make repro`: build an image from nothing several times, with all varied that may vary, and compare the digests.

Each build runs in a checkout of its own, a copy, by the same command that a user types. What is varied is decided by
the number of the build alone, so a difference can be had again.
"""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from lockstep.arch import Arch
from lockstep.console import note
from lockstep.engine import ensure_engine
from lockstep.engine_private import engine_dir, running_pid
from lockstep.errors import LockstepError
from lockstep.layerdiff import Difference, first_difference
from lockstep.paths import ROOT
from lockstep.ship.layout import Layout

_LEFT = (".git", ".venv", "build", "wheels", ".mypy_cache", ".ruff_cache", ".pytest_cache")
"""What a build does not read, or (wheels/) reads where it is; at the top of the checkout alone."""
_LOCALES = ("C.UTF-8", "POSIX", "de_DE.UTF-8", "tr_TR.UTF-8")
_ZONES = ("UTC", "Asia/Kathmandu", "America/St_Johns", "Pacific/Kiritimati")
_UMASKS = (0o022, 0o077, 0o002, 0o027)


@dataclass(frozen=True)
class Variation:
    """How one build differs from the others. cpus: processors that the build may use, 0 for all of them."""

    number: int
    hostname: str
    locale: str
    zone: str
    umask: int
    cpus: int
    load: int
    owner: int
    folder: str
    seed: int

    def told(self) -> str:
        """Return it in one line."""
        cpus = f"{self.cpus} processors" if self.cpus else "all processors"
        return (
            f"host {self.hostname}, {self.locale}, {self.zone}, umask {self.umask:03o}, {cpus}, "
            f"{self.load} busy processes, checkout {self.folder} of uid {self.owner}"
        )


@dataclass(frozen=True)
class Built:
    """One build of a proof: its digest, seconds, and where its layout lies."""

    variation: Variation
    digest: str
    seconds: float
    layout: Path


@dataclass(frozen=True)
class Proof:
    """What came out. same: every digest was that of the first build; difference: of the first build that was not.

    fixed: what this machine could not vary, and why.
    """

    builds: tuple[Built, ...]
    difference: Difference | None
    fixed: tuple[str, ...]

    @property
    def same(self) -> bool:
        """Whether all builds gave one digest."""
        return len({item.digest for item in self.builds}) == 1


def variations(times: int, load: int, cores: int, *, root: bool) -> list[Variation]:
    """Return the variations of `times` builds; two neighbours differ in everything that can be varied."""
    found = []
    for number in range(times):
        odd = number % 2
        found.append(
            Variation(
                number=number + 1,
                hostname=f"{'other' if odd else 'one'}-host-{number + 1}",
                locale=_LOCALES[number % len(_LOCALES)],
                zone=_ZONES[number % len(_ZONES)],
                umask=_UMASKS[number % len(_UMASKS)],
                cpus=max(1, cores // 2) if odd else 0,
                load=load if odd else 0,
                owner=12345 if odd and root else os.getuid(),
                folder="a/checkout/somewhere-else-altogether" if odd else "checkout",
                seed=number,
            )
        )
    return found


def prove(image: str, arch: Arch, times: int, *, load: int | None = None, base: str = "bootstrap") -> Proof:
    """Build an image `times` times without BuildKit's layer cache, compare, and stop at the first difference.

    load: busy processes beside every second build; as many as there are cores by default. LockstepError where a build
    fails.
    """
    if times < 2:
        raise LockstepError("one build proves nothing", where="TIMES", fix="say 2 or more")
    cores = os.cpu_count() or 1
    root = os.geteuid() == 0
    engine = ensure_engine()
    (ROOT / "build").mkdir(exist_ok=True)
    builds: list[Built] = []
    difference = None
    with tempfile.TemporaryDirectory(prefix="lockstep-repro-", dir=ROOT / "build") as text:
        os.chmod(text, 0o755)  # noqa: PTH101 - the checkout in it may belong to somebody else
        # One snapshot for all: an edit of the checkout while this runs must not look like a difference.
        source = Path(text) / "source"
        snapshot(source)
        for variation in variations(times, cores if load is None else load, cores, root=root):
            note(f"build {variation.number} of {times}: {variation.told()}")
            builds.append(_build(image, arch, base, variation, Path(text), source, private=engine.private))
            note(f"  {builds[-1].digest} in {builds[-1].seconds:.0f} s")
            if builds[-1].digest != builds[0].digest:
                one, two = (Layout(item.layout).image(arch) for item in (builds[0], builds[-1]))
                difference = first_difference(one, two)
                break
            if variation.number > 1:
                shutil.rmtree(builds[-1].layout)
        return Proof(tuple(builds), difference, tuple(_fixed(engine.private, root=root)))


def _fixed(private: bool, *, root: bool) -> Iterator[str]:
    yield "the clock runs on between the builds, but is not set: BuildKit's daemon reads the kernel's"
    yield "the base's root file systems are taken as made (tests/build/test_base.py varies how they are made)"
    if not private:
        yield "the builder's processors: the engine is not Lockstep's own"
    if not root:
        yield "host name and owner of the checkout: that takes root"


def _build(
    image: str, arch: Arch, base: str, variation: Variation, folder: Path, source: Path, *, private: bool
) -> Built:
    top = folder / f"build-{variation.number}"
    checkout = top / variation.folder
    env = {
        **os.environ,
        "LOCKSTEP_ROOT": str(checkout),
        "LC_ALL": variation.locale,
        "LANG": variation.locale,
        "TZ": variation.zone,
        "PYTHONHASHSEED": str(variation.seed),
        "PYTHONPATH": str(Path(__file__).resolve().parents[1]),
    }
    words = [sys.executable, "-c", "from lockstep.cli import main; main()"]
    words += ["image", image, "--arch", arch.value, "--base", base, "--no-cache"]
    words += ["--fresh-bytecode"]  # what an earlier build compiled would prove nothing
    began = time.monotonic()
    with ExitStack() as stack:
        old = os.umask(variation.umask)
        try:
            copy_checkout(checkout, variation, source)
            if private and variation.cpus:
                stack.enter_context(_fewer_cpus(variation.cpus))
            stack.enter_context(_busy(variation.load))
            said = _run(_with_hostname(words, variation.hostname), env)
        finally:
            os.umask(old)
    layout = folder / f"layout-{variation.number}"
    (checkout / "build" / "oci" / f"{image}.{arch}").rename(layout)
    shutil.rmtree(top)
    digest = Layout(layout).image(arch).descriptor.digest
    if digest not in said:
        raise LockstepError(f"the build says another digest than its layout, {digest}", where=str(layout))
    return Built(variation, digest, time.monotonic() - began, layout)


def _run(words: Sequence[str], env: dict[str, str]) -> str:
    done = subprocess.run(words, env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        said = [line for line in done.stderr.strip().splitlines() if line]
        raise LockstepError(f"the build failed: {' '.join(said[-12:])}", fix="see whether `make image` builds it")
    return done.stdout


def _with_hostname(words: list[str], hostname: str) -> list[str]:
    """Return words that run under another host name where that is allowed."""
    if os.geteuid() != 0 or shutil.which("unshare") is None:
        return words
    return ["unshare", "--uts", "sh", "-c", 'echo "$0" >/proc/sys/kernel/hostname; exec "$@"', hostname, *words]


def snapshot(target: Path) -> None:
    """Copy what a build reads of the checkout; wheels are linked, as they never change."""

    def left(folder: str, names: list[str]) -> set[str]:
        return {name for name in names if name == "__pycache__" or (Path(folder) == ROOT and name in _LEFT)}

    shutil.copytree(ROOT, target, symlinks=True, ignore=left)
    if (ROOT / "wheels").is_dir():
        shutil.copytree(ROOT / "wheels", target / "wheels", copy_function=os.link, symlinks=True)


def copy_checkout(target: Path, variation: Variation, source_root: Path = ROOT) -> None:
    """Copy what a build reads, in an order, with times, modes and an owner of this variation's own."""
    rng = random.Random(variation.seed)
    target.mkdir(parents=True)
    for folder, names, files in os.walk(source_root):
        names[:] = [
            name for name in names if name != "__pycache__" and (folder != str(source_root) or name not in _LEFT)
        ]
        here = target / Path(folder).relative_to(source_root)
        here.mkdir(exist_ok=True)
        rng.shuffle(files)
        for name in files:
            source = Path(folder) / name
            if source.is_symlink():
                (here / name).symlink_to(source.readlink())
                continue
            # Not copy2: mode and time are what git and the umask make of a fresh checkout.
            shutil.copyfile(source, here / name)
            if source.stat().st_mode & 0o100:
                (here / name).chmod(0o777 & ~variation.umask)
            moment = time.time() - rng.randrange(10_000_000)
            os.utime(here / name, (moment, moment))
    if (source_root / "wheels").is_dir():
        shutil.copytree(source_root / "wheels", target / "wheels", copy_function=os.link, symlinks=True)
    if variation.owner != os.getuid():
        for folder, names, files in os.walk(target):
            for name in (*names, *files):
                os.lchown(Path(folder) / name, variation.owner, variation.owner)


@contextmanager
def _busy(count: int) -> Iterator[None]:
    """Keep `count` processes busy beside the build."""
    made = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for process in made:
            process.kill()
            process.wait()


@contextmanager
def _fewer_cpus(count: int) -> Iterator[None]:
    """Let the private engine, and with it every build step, use `count` processors only, for a while."""
    pid = running_pid(engine_dir())
    allowed = sorted(os.sched_getaffinity(0))
    if pid is None or len(allowed) <= count:
        yield
        return
    try:
        _set_affinity(pid, set(allowed[-count:]))
        yield
    finally:
        _set_affinity(pid, set(allowed))


def _set_affinity(pid: int, cpus: set[int]) -> None:
    """Set the processors of a process, its threads, and all below it; one that ends meanwhile is none to set."""
    for one in _family(pid):
        for thread in _listed(Path(f"/proc/{one}/task")):
            try:
                os.sched_setaffinity(int(thread), cpus)
            except OSError:
                continue


def _family(pid: int) -> list[int]:
    parents: dict[int, list[int]] = {}
    for name in _listed(Path("/proc")):
        try:
            stat = Path(f"/proc/{name}/stat").read_text()
        except OSError:
            continue
        parents.setdefault(int(stat.rsplit(")", 1)[1].split()[1]), []).append(int(name))
    found = [pid]
    for one in found:
        found += parents.get(one, [])
    return found


def _listed(folder: Path) -> list[str]:
    try:
        return [name for name in os.listdir(folder) if name.isdigit()]  # noqa: PTH208 - names are enough
    except OSError:
        return []
