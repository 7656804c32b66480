"""Build one wheel from source inside a compile stage, which has no network. Standard library only.

    python3.13 compile.py JOB.json SOURCE OUT

JOB.json is a `Job` of scripts/lockstep/compile/job.py, SOURCE the sdist or the folder of a git checkout, OUT where the
wheel, build.log and result.json go. Lines that begin with "lockstep|" are for the user; a line "lockstep!" is the one
sentence that says why it failed, followed by " -> " and what to do about it.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

import cuda_home
import wheelfile
from plan import Plan, choose, duration, explain, gib, read_limits
from watch import Watch, oom_kills

HERE = Path(__file__).resolve().parent
# Fixed, so that no path of a compiled file depends on the machine. LOCKSTEP_WORK moves it in tests.
WORK = Path(os.environ.get("LOCKSTEP_WORK", "/src"))
# A build process runs the PEP 517 hook of the source's own backend; pip would add nothing but a network.
_HOOK = """
import importlib, sys, os
sys.path[:0] = {path!r}
sys.argv[0] = "setup.py"
backend, _, attribute = {backend!r}.partition(":")
module = importlib.import_module(backend)
hooks = getattr(module, attribute) if attribute else module
print("wheel:", hooks.build_wheel(sys.argv[1]))
"""
_KILLED = re.compile(
    r"\bKilled\b|died due to signal 9|signal 9 \(Kill|Killed signal terminated program|killed by signal 9"
)
_TAIL = 60


class BuildError(Exception):
    """The build cannot go on: what is wrong, and what to do about it."""

    def __init__(self, what: str, fix: str) -> None:
        self.what, self.fix = what, fix
        super().__init__(what)


def say(text: str) -> None:
    """Print one line for the user."""
    print(f"lockstep| {text}", flush=True)


def main(arguments: list[str]) -> int:
    """Build; return the exit code: 0, or 1 after one sentence."""
    job = json.loads(Path(arguments[0]).read_text())
    try:
        build(job, Path(arguments[1]), Path(arguments[2]))
    except BuildError as error:
        print(f"lockstep! {error.what} -> {error.fix}", flush=True)
        return 1
    return 0


def build(job: dict, source: Path, out: Path) -> None:
    """Build the wheel that `job` describes from `source` into `out`."""
    tools = find_tools(job)
    if job["torch"]:
        check_torch(job, tools)
    shutil.rmtree(WORK, ignore_errors=True)
    scratch = WORK / "scratch"
    scratch.mkdir(parents=True)
    project = unpack(source, WORK / job["package"], job["epoch"]) / job["directory"]
    limits = read_limits(job["memory_limit"])
    plan = choose(job["max_jobs"], job["nvcc_threads"], len(job["cuda_arches"]), job["memory_per_thread_gb"], limits)
    say(f"{job['package']} {job['version']} for {what_for(job)}")
    say(f"plan: {explain(plan, job['nvcc_threads'] if job['cuda'] else 0)}")
    environment = environment_of(job, plan, tools, scratch)
    out.mkdir(parents=True, exist_ok=True)
    watch = Watch(job, plan, scratch / "events.jsonl", history_path(job), say)
    began, kills = time.monotonic(), oom_kills()
    code, output = run_hook(project, scratch / "dist", environment, watch, out / "build.log")
    killed = oom_kills() - kills
    if code:
        killed += sum(item["code"] in (-9, 137) for item in watch.compiled)
        raise explain_failure(code, killed, output, plan, job)
    refuse_network(scratch / "network.log", job)
    arches = watch.gpu_code()
    check_arches(job, arches)
    built = next((scratch / "dist").glob("*.whl"), None)
    if built is None:
        raise BuildError("the build ended well but left no wheel", "look at its output in build.log")
    wheel = wheelfile.rewrite(built, out, stamp_of(job), job["epoch"], str(site_packages(tools["python"])))
    check_metadata(job, wheel)
    skipped = import_check(job, wheel, tools)
    result = {
        "wheel": wheel.name,
        "seconds": round(time.monotonic() - began, 1),
        "peak_bytes": watch.peak,
        "limit_bytes": limits.memory,
        "limit_from": limits.memory_from,
        "jobs": plan.jobs,
        "threads": plan.threads,
        "gpu_code": arches,
        "needs_driver": skipped,
        "compiled": watch.compiled,
    }
    (out / "result.json").write_text(json.dumps(result, indent=1) + "\n")
    say(f"built {wheel.name} in {duration(result['seconds'])}, peak memory {gib(watch.peak)} of {gib(limits.memory)}")


def what_for(job: dict) -> str:
    """Return what a wheel is built for, as people say it."""
    parts = [f"Python {job['python']}"]
    parts += [f"torch {job['torch']}"] if job["torch"] else []
    parts += [f"CUDA {job['cuda']}, GPUs {', '.join(job['cuda_arches'])}"] if job["cuda"] else []
    return ", ".join(parts)


def find_tools(job: dict) -> dict[str, str]:
    """Return the real compilers under the names that the shim answers to."""
    found = {name: shutil.which(name) for name in ("gcc", "g++", "cc", "c++", "ninja", "ccache")}
    venv = Path(job["venv"])
    found["python"] = str(venv / "bin/python")
    ninja = venv / "bin/ninja"
    if ninja.exists():
        found["ninja"] = str(ninja)
    if job["cuda"]:
        home = Path(job["cuda_home"])
        found["nvcc"] = str(home / "bin/nvcc")
        if not home.exists() and not cuda_home.lay_out(site_packages(found["python"]), home):
            raise BuildError(f"there is no nvcc, neither in {home} nor among the wheels", "relock the build")
    return {name: path for name, path in found.items() if path}


def site_packages(python: str) -> Path:
    """Return where an interpreter keeps its compiled packages."""
    code = "import sysconfig; print(sysconfig.get_path('platlib'))"
    return Path(subprocess.run([python, "-c", code], capture_output=True, text=True, check=True).stdout.strip())


def check_torch(job: dict, tools: dict[str, str]) -> None:
    """Refuse a torch, or a CUDA, other than the line's: the wheel would be stamped with a lie."""
    code = "import torch; print(torch.__version__); print(torch.version.cuda)"
    done = subprocess.run([tools["python"], "-c", code], capture_output=True, text=True, check=False)
    if done.returncode:
        raise BuildError(
            f"torch does not import: {(done.stderr.strip().splitlines() or ['no message'])[-1]}", "relock the build"
        )
    version, cuda = done.stdout.split()
    if version.split("+")[0] != job["torch"].split("+")[0]:
        raise BuildError(
            f"the build environment has torch {version}, the line says {job['torch']}", "run `make wheels-lock`"
        )
    if job["cuda"] and cuda != job["cuda"]:
        raise BuildError(
            f"torch {version} was built with CUDA {cuda}, the entry says {job['cuda']}", "correct its key `cuda`"
        )


def unpack(source: Path, into: Path, epoch: int) -> Path:
    """Lay the source at a fixed place with fixed times; return its top folder."""
    if source.is_dir():
        shutil.copytree(source, into, symlinks=True)
    else:
        with tarfile.open(source) as archive:
            tops = {name.split("/")[0] for name in archive.getnames()}
            if len(tops) != 1:
                raise BuildError(
                    f"{source.name} holds {len(tops)} folders instead of one", "use the package's own sdist"
                )
            archive.extractall(into.parent / "unpacked", filter="data")
        (into.parent / "unpacked" / tops.pop()).rename(into)
    for path in [into, *into.rglob("*")]:
        os.utime(path, (epoch, epoch), follow_symlinks=False)
    return into


def environment_of(job: dict, plan: Plan, tools: dict[str, str], scratch: Path) -> dict[str, str]:
    """Return the whole environment of the build; nothing of the base's ENV is in it (CASES A11)."""
    shims = scratch / "bin"
    shims.mkdir()
    settings = {
        "tools": tools,
        "source": str(WORK / job["package"]),
        "scratch": str(scratch),
        "events": str(scratch / "events.jsonl"),
        "history": str(history_path(job) or ""),
        "gencode": job["gencode"],
        "sm": [arch.replace(".", "") for arch in job["cuda_arches"]],
        "threads": plan.threads,
        "jobs": plan.jobs,
        "ccache": bool(job["ccache_dir"]) and "ccache" in tools,
    }
    (scratch / "shim.json").write_text(json.dumps(settings))
    for name in tools:
        if name != "python":
            (shims / name).write_text(f'#!/bin/sh\nexec {sys.executable} -S -E "{HERE}/shim.py" "$0" "$@"\n')
            (shims / name).chmod(0o755)
    driver_stub(scratch / "stubs", tools)
    numbers = ";".join(arch.replace(".", "") for arch in job["cuda_arches"])
    environment = {
        "PATH": f"{shims}:{job['venv']}/bin:/usr/bin:/bin",
        "HOME": str(scratch),
        "TMPDIR": str(scratch),
        "LC_ALL": "C.UTF-8",
        "TZ": "UTC",
        "PYTHONPATH": str(HERE),
        "PYTHONHASHSEED": "0",
        "PYTHONDONTWRITEBYTECODE": "1",
        "SOURCE_DATE_EPOCH": str(job["epoch"]),
        "LOCKSTEP_SHIM": str(scratch / "shim.json"),
        "LOCKSTEP_NETWORK_LOG": str(scratch / "network.log"),
        # Debian's Python compiles extensions with -g: debug information would be most of the wheel.
        "CFLAGS": "-g0",
        "CXXFLAGS": "-g0",
        "CC": str(shims / "gcc"),
        "CXX": str(shims / "g++"),
        # Whatever a setup.py would rather download is built (CASES A4).
        "FLASH_ATTENTION_FORCE_BUILD": "TRUE",
        "CAUSAL_CONV1D_FORCE_BUILD": "TRUE",
        "MAMBA_FORCE_BUILD": "TRUE",
        "NVTE_PYTORCH_FORCE_BUILD": "TRUE",
        "CCACHE_DIR": job["ccache_dir"] or str(scratch / "ccache"),
        "CCACHE_NAMESPACE": job["namespace"],
        # By version, not by the date of its file, which changes whenever the toolchain's layer is made anew.
        "CCACHE_COMPILERCHECK": f"string:{job['compiler']}",
        "CCACHE_MAXSIZE": "20G",
    }
    if job["cuda"]:
        environment |= {
            "CUDA_HOME": job["cuda_home"],
            "LIBRARY_PATH": str(scratch / "stubs"),
            "PYTORCH_NVCC": str(shims / "nvcc"),
            "CUDACXX": str(shims / "nvcc"),
            "TORCH_CUDA_ARCH_LIST": ";".join(job["cuda_arches"]),
            "FLASH_ATTN_CUDA_ARCHS": numbers,
            "NVTE_CUDA_ARCHS": numbers,
            "CUDAARCHS": numbers,
        }
    return environment | job["env"] | plan.environment()


def driver_stub(folder: Path, tools: dict[str, str]) -> None:
    """Make an empty libcuda.so for `-lcuda`: the driver's library belongs to the machine that runs, not to a build.

    The linker alone finds it (LIBRARY_PATH); it lies in the build's scratch folder and nothing of it is kept.
    """
    folder.mkdir()
    if "gcc" in tools:
        words = [
            tools["gcc"],
            "-shared",
            "-Wl,-soname,libcuda.so.1",
            "-o",
            str(folder / "libcuda.so"),
            "-xc",
            "/dev/null",
        ]
        subprocess.run(words, check=True, env={"PATH": "/usr/bin:/bin"})


def history_path(job: dict) -> Path | None:
    """Return the file that remembers, beside ccache's objects, how long each file took; None without a cache."""
    if not job["ccache_dir"]:
        return None
    folder = Path(job["ccache_dir"]) / "lockstep"
    folder.mkdir(parents=True, exist_ok=True)
    return folder / f"{job['package']}-{job['namespace']}.jsonl"


def run_hook(project: Path, dist: Path, environment: dict, watch: Watch, log: Path) -> tuple[int, list[str]]:
    """Run the source's build backend; return its exit code and the last lines that it printed."""
    backend, paths = backend_of(project)
    dist.mkdir()
    hook = _HOOK.format(path=[str(project), *(str(project / path) for path in paths)], backend=backend)
    python = json.loads(Path(environment["LOCKSTEP_SHIM"]).read_text())["tools"]["python"]
    tail: list[str] = []
    with (
        subprocess.Popen(
            [python, "-c", hook, str(dist)],
            cwd=project,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        ) as process,
        log.open("w") as stream,
    ):
        signal.signal(signal.SIGTERM, lambda *_: os.killpg(process.pid, signal.SIGKILL))
        watch.start(process.pid)
        assert process.stdout is not None
        for line in process.stdout:
            stream.write(line)
            tail = [*tail[-2000:], line.rstrip()]
        code = process.wait()
        watch.stop()
    return code, tail


def backend_of(project: Path) -> tuple[str, list[str]]:
    """Return the build backend and its path from pyproject.toml (PEP 517; setuptools where it names none)."""
    import tomllib

    file = project / "pyproject.toml"
    system = tomllib.loads(file.read_text()).get("build-system", {}) if file.is_file() else {}
    return system.get("build-backend", "setuptools.build_meta:__legacy__"), system.get("backend-path", [])


def explain_failure(code: int, killed: int, output: list[str], plan: Plan, job: dict) -> BuildError:
    """Tell an out-of-memory kill from a compiler's error."""
    for line in output[-_TAIL:]:
        print(line)
    signs = [line for line in output if _KILLED.search(line)]
    if killed or signs:
        what = (
            f"the kernel killed a compiler of {job['package']} for lack of memory, "
            f"at {plan.jobs} jobs of {plan.threads} threads under {gib(plan.limits.memory)} ({plan.limits.memory_from})"
        )
        fix = (
            f"raise compile.{job['package']}.memory_per_thread_gb (now {job['memory_per_thread_gb']:g}) "
            f"or lower max_jobs (now {job['max_jobs']}) in versions.yaml, or give the build more memory; "
            "what is compiled is kept"
        )
        return BuildError(what, fix)
    # A compiler's own first error says more than the traceback of the build system that called it.
    errors = [line.strip() for line in output if re.search(r"\berror:|undefined reference", line)]
    lines = [line.strip() for line in output if line.strip()] or ["it printed nothing"]
    said = (errors or lines[-1:])[0][:300]
    return BuildError(
        f"{job['package']} {job['version']} does not build (exit code {code}): {said}", "see the output above"
    )


def refuse_network(log: Path, job: dict) -> None:
    """Refuse a build that looked for something outside: it may come out different where there is a network."""
    if log.is_file():
        places = sorted(set(log.read_text().split("\n")) - {""})
        raise BuildError(
            f"the build of {job['package']} tried to reach {', '.join(places[:3])}",
            f"set the variable that forbids it under compile.{job['package']}.env; all of its sources must be at hand",
        )


def check_arches(job: dict, found: list[str]) -> None:
    """Refuse GPU code other than what was declared."""
    if not found:
        return
    wanted = {arch.replace(".", "") for arch in job["cuda_arches"]}
    bare = {name.partition("_")[2] for name in found}
    # A declared "9.0" also stands for the feature-specific 9.0a, which build systems choose per file.
    covered = {name for name in bare if name in wanted or name.rstrip("af") in wanted}
    missing = {name for name in wanted if name not in bare and name not in {item.rstrip("af") for item in bare}}
    if bare - covered or missing:
        raise BuildError(
            f"nvcc was asked for {', '.join(found)}, versions.yaml says {', '.join(job['cuda_arches'])}",
            f"set the package's own variable under compile.{job['package']}.env, or `gencode: replace` if it has none",
        )


def stamp_of(job: dict) -> dict:
    """Return what the wheel says of itself in its .dist-info."""
    names = ("package", "version", "source", "torch", "cuda", "cuda_arches", "arch", "python", "compiler", "key")
    return {name: job[name] for name in names}


def check_metadata(job: dict, wheel: Path) -> None:
    """Refuse a wheel of another name or version than declared."""
    name, version, _ = wheelfile.metadata(wheel)
    canonical = re.sub(r"[-_.]+", "-", name).lower()
    if canonical != job["package"] or version.split("+")[0] != job["version"].split("+")[0]:
        raise BuildError(
            f"the source built {canonical} {version}, not {job['package']} {job['version']}",
            "correct version or source",
        )


def import_check(job: dict, wheel: Path, tools: dict[str, str]) -> list[str]:
    """Import the extension with the line's torch; return the modules that only lack the GPU's driver here.

    LD_BIND_NOW makes the loader look for every symbol, not only for those that the import happens to call.
    """
    wheelfile.install(wheel, site_packages(tools["python"]))
    skipped = []
    for module in job["imports"]:
        code = f"{'import torch; ' if job['torch'] else ''}import {module}"
        done = subprocess.run(
            [tools["python"], "-c", code],
            cwd="/",
            capture_output=True,
            text=True,
            check=False,
            env={"PATH": "/usr/bin:/bin", "LD_BIND_NOW": "1", "HOME": "/nonexistent", "LC_ALL": "C.UTF-8"},
        )
        last = (done.stderr.strip().splitlines() or ["it printed nothing"])[-1]
        if done.returncode and re.search(r"\blibcuda\.so\.1: cannot open shared object file", done.stderr):
            say(f"import {module}: needs the GPU's driver (libcuda.so.1), which is not in a build; not checked further")
            skipped.append(module)
        elif done.returncode:
            raise BuildError(
                f"{module} of {wheel.name} does not import with torch {job['torch']}: {last}",
                "the source does not fit this torch line: change its version, or move the backend to another line",
            )
        else:
            say(f"import {module}: ok")
    return skipped


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
