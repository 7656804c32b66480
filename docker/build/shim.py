"""What `nvcc`, `gcc`, `g++`, `cc`, `c++`, `ninja` and `ccache` are inside a compile stage.

One place between any build system and the compilers: it goes through ccache, holds the GPU architectures and nvcc's
threads to what the matrix says, adds the flags that make the objects the same each time, and records what was
compiled, how long it took and how much memory it needed. LOCKSTEP_SHIM names a JSON file with the settings.
"""

from __future__ import annotations

import json
import os
import re
import resource
import subprocess
import sys
import time
from pathlib import Path

_SOURCES = (".cu", ".c", ".cc", ".cpp", ".cxx", ".C")
# nvcc's names of the option that chooses GPU architectures, each with its value joined by `=` or as the next word.
_GENCODE = ("-gencode", "--generate-code", "-arch", "--gpu-architecture", "-code", "--gpu-code")
_THREADS = ("--threads", "-t")
_STEP = re.compile(r"^\[(\d+)/(\d+)\] (.*)$")


def main() -> int:
    """Run the tool whose name is the first argument."""
    settings = json.loads(Path(os.environ["LOCKSTEP_SHIM"]).read_text())
    name, arguments = Path(sys.argv[1]).name, sys.argv[2:]
    if name == "ninja":
        return ninja(settings, arguments)
    if name == "ccache" and arguments and not arguments[0].startswith("-"):
        # torch puts ccache before the C++ compiler by itself; the compiler's own name leads back here.
        return subprocess.call(arguments)
    real = settings["tools"][name]
    sources = [word for word in arguments if word.endswith(_SOURCES) and not word.startswith("-")]
    # nvcc calls the host compiler for its parts: those are not files of the build.
    if "LOCKSTEP_INSIDE" in os.environ or len(sources) != 1 or not {"-c", "--compile", "-dc"} & set(arguments):
        return subprocess.call([real, *(nvcc_words(settings, arguments)[0] if name == "nvcc" else arguments)])
    return compile_one(settings, name, real, arguments, sources[0])


def compile_one(settings: dict, name: str, real: str, arguments: list[str], source: str) -> int:
    """Compile one file through ccache and record it."""
    arches: list[str] = []
    seed = f"-frandom-seed={os.path.relpath(source, settings['source'])}"
    prefix = f"-ffile-prefix-map={settings['source']}=."
    if name == "nvcc":
        arguments, arches = nvcc_words(settings, arguments)
        # Otherwise the names of nvcc's temporary files, which hold its process id, end up in the object.
        arguments = [*arguments, "--objdir-as-tempdir", "-Xcompiler", seed, "-Xcompiler", prefix]
    else:
        arguments = [*arguments, seed, prefix]
    statistics = Path(settings["scratch"]) / f"ccache-{os.getpid()}.txt"
    environment = dict(os.environ, LOCKSTEP_INSIDE="1", CCACHE_STATSLOG=str(statistics))
    words = [settings["tools"]["ccache"], real, *arguments] if settings["ccache"] else [real, *arguments]
    began = time.monotonic()
    code = subprocess.call(words, env=environment)
    seconds = time.monotonic() - began
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    record(
        settings,
        event="compiled",
        tool=name,
        source=os.path.relpath(source, settings["source"]),
        code=code,
        seconds=round(seconds, 2),
        cpu_seconds=round(used.ru_utime + used.ru_stime, 2),
        peak_bytes=used.ru_maxrss * 1024,
        arches=arches,
        cache=cache_result(statistics),
    )
    return code if code >= 0 else 128 - code  # as a shell says it: 137 for signal 9


def nvcc_words(settings: dict, arguments: list[str]) -> tuple[list[str], list[str]]:
    """Return nvcc's arguments as they should be, and the GPU code that they ask for (sm_90, …)."""
    kept: list[str] = []
    asked: list[str] = []
    words = iter(arguments)
    for word in words:
        option, _, value = word.partition("=")
        if option in _GENCODE:
            value = value or next(words, "")
            asked += re.findall(r"sm_\d+[af]?", value) or re.findall(r"compute_\d+[af]?", value)
            if settings["gencode"] != "replace":
                kept += [option, value]
        elif option in _THREADS:
            value = value or next(words, "1")
            limit = settings["threads"]
            # 0 means "as many as there are cores".
            kept += ["--threads", str(min(int(value), limit) if int(value) > 0 else limit)]
        elif option in ("-ccbin", "--compiler-bindir"):
            value = value or next(words, "")
            kept += [option, settings["tools"].get(Path(value).name, value)]
        else:
            kept.append(word)
    if settings["gencode"] == "replace" and asked:
        asked = [f"sm_{number}" for number in settings["sm"]]
        kept += [word for number in settings["sm"] for word in ("-gencode", f"arch=compute_{number},code=sm_{number}")]
    return kept, sorted(set(asked))


def ninja(settings: dict, arguments: list[str]) -> int:
    """Tell the driver what is about to be built, then build it with at most the planned jobs."""
    real = settings["tools"]["ninja"]
    if not any(word in ("-t", "--version", "-h", "--help", "-n") for word in arguments):
        dry = subprocess.run([real, *arguments, "-n", "-v"], capture_output=True, text=True, check=False)
        steps = [match[3] for line in dry.stdout.splitlines() if (match := _STEP.match(line))]
        sources = [word.strip("'\"") for step in steps for word in step.split() if word.strip("'\"").endswith(_SOURCES)]
        files = sorted({os.path.relpath(word, settings["source"]) for word in sources})
        record(settings, event="files", files=files)
        arguments = limited(arguments, settings["jobs"])
    return subprocess.call([real, *arguments])


def limited(arguments: list[str], jobs: int) -> list[str]:
    """Return ninja's arguments with -j at most `jobs`."""
    kept: list[str] = []
    words = iter(arguments)
    for word in words:
        if word == "-j":
            next(words, "")
        elif not re.fullmatch(r"-j\d+", word):
            kept.append(word)
    return ["-j", str(jobs), *kept]


def cache_result(statistics: Path) -> str:
    """Return what ccache did with one file: hit, miss, or the name of its reason not to cache."""
    try:
        counters = [line for line in statistics.read_text().splitlines() if not line.startswith("#")]
    except OSError:
        return "off"
    statistics.unlink()
    if {"direct_cache_hit", "preprocessed_cache_hit"} & set(counters):
        return "hit"
    return "miss" if "cache_miss" in counters else ",".join(counters) or "none"


def record(settings: dict, **fields: object) -> None:
    """Append one event; a single short write to a file opened for appending is not torn."""
    line = json.dumps(fields) + "\n"
    for path in (settings["events"], settings["history"]):
        if path and (path == settings["events"] or fields["event"] == "compiled"):
            with Path(path).open("a", encoding="utf-8") as log:
                log.write(line)


if __name__ == "__main__":
    sys.exit(main())
