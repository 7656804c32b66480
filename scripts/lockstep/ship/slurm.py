"""The lines that run an image on a Slurm cluster with enroot and pyxis, and a job that probes it on every node."""

from __future__ import annotations

import shlex
from pathlib import Path

from lockstep.errors import LockstepError
from lockstep.files import write_text
from lockstep.matrix import Matrix
from lockstep.narrow import left_out_module
from lockstep.ship.refs import Ref

_HEAD = "# Written by `make slurm`; change the #SBATCH lines to your site's."


def import_lines(ref: Ref) -> list[str]:
    """Return the `enroot import` lines: one that every enroot reads, and Docker's spelling where it differs."""
    lines = [f"enroot import -o {shlex.quote(ref.sqsh_name)} {shlex.quote(ref.enroot)}"]
    if ref.enroot_short != ref.enroot:
        note = "enroot 4.0 and newer" if ref.enroot_needs_4 else "every version"
        lines.append(f"enroot import -o {shlex.quote(ref.sqsh_name)} {shlex.quote(ref.enroot_short)}  # {note}")
    return lines


def srun_line(container: str, command: str = "nvidia-smi") -> str:
    """Return an srun line for a reference in pyxis's spelling or a path to a .sqsh."""
    return f"srun --container-image={shlex.quote(container)} {command}"


def describe(ref: Ref, image: str, job: str) -> str:
    """Return all lines for `ref`, with a comment before each group."""
    squashed = f"/shared/images/{ref.sqsh_name}"
    return "\n".join(
        [
            f"# {ref}",
            "",
            "# once: fetch and pack (on a node, into a file system that all nodes see)",
            *import_lines(ref),
            "",
            "# or pack it here, without enroot, and copy the file",
            f"make sqsh IMAGE={image} FROM={shlex.quote(str(ref))} OUT={shlex.quote(ref.sqsh_name)}",
            "",
            "# run from the file (every node mounts it, nothing is fetched)",
            srun_line(squashed),
            "",
            "# run from the registry (each node fetches; enroot keeps layers in its cache)",
            srun_line(ref.pyxis),
            "",
            "# probe it on every node of an allocation",
            f"sbatch --nodes=2 {shlex.quote(job)}",
            f"sbatch --nodes=2 {shlex.quote(job)} {shlex.quote(squashed)}",
        ]
    )


def job_text(image: str, matrix: Matrix, ref: Ref) -> str:
    """Return an sbatch file that imports, on each node, every module that the image's backends promise to import.

    Its first argument may name another reference or a .sqsh. Modules run in processes of their own, so that one that
    kills its process is named and does not hide the others. The job fails if any of them does. Modules of packages that
    the image was built without are left out.
    """
    probes = [
        f"probe {shlex.quote(backend)} {shlex.quote(module)}"
        for backend in matrix.images[image].backends
        for module in matrix.backends[backend].imports
        if not left_out_module(matrix, image, backend, module)
    ]
    if not probes:
        raise LockstepError(
            "none of its backends says what to import", where=f"versions.yaml images.{image}", fix="add imports:"
        )
    return "\n".join(
        [
            "#!/bin/bash",
            _HEAD,
            f"#SBATCH --job-name=probe-{image}",
            "#SBATCH --nodes=1",
            "#SBATCH --ntasks-per-node=1",
            "#SBATCH --time=00:20:00",
            "#SBATCH --output=probe-%j.out",
            "# Add --gpus-per-node=1 (or your site's --gres) for the modules that load the CUDA driver.",
            "set -euo pipefail",
            "",
            f"container=${{1:-{ref.pyxis}}}",
            "",
            "# --container-image takes REGISTRY#PATH:TAG or the path of a .sqsh; -l says which node wrote a line.",
            "srun -l --ntasks-per-node=1 --container-image=\"$container\" /bin/bash -s <<'PROBE'",
            "set -u",
            "failed=0",
            "probe() {",
            '    if words=$("/opt/venvs/$1/bin/python" -c "import $2" 2>&1)',
            "    then",
            '        echo "ok   $1 $2"',
            "    else",
            "        echo \"FAIL $1 $2: ${words##*$'\\n'}\"",
            "        failed=1",
            "    fi",
            "}",
            "uname -m",
            *probes,
            'exit "$failed"',
            "PROBE",
            "",
        ]
    )


def write_job(path: Path, image: str, matrix: Matrix, ref: Ref) -> None:
    """Write the job file; it may be run by bash too, so it is made executable."""
    write_text(path, job_text(image, matrix, ref))
    path.chmod(0o755)
