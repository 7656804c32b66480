"""`make image`, from the matrix to a named image: render if stale, check, prepare the bases, build, name, report."""

from __future__ import annotations

from lockstep import runtime_wheel
from lockstep.arch import Arch
from lockstep.build import Built, Options, build, check_output, prepare_bases, reference, require_room
from lockstep.console import megabytes, note, out, table
from lockstep.engine import ensure_engine
from lockstep.engine_images import register_layout
from lockstep.layers import plan
from lockstep.lock import read_lock
from lockstep.matrix import Matrix
from lockstep.narrow import Narrowing, narrow
from lockstep.outside import require_wheels
from lockstep.paths import ROOT
from lockstep.render import NARROWED, render, render_narrowed, write
from lockstep.ship.digests import record_digest

_SLOWEST = 8


def make_image(
    matrix: Matrix, image: str, arch: Arch, options: Options, part: Narrowing | None = None, *, wheels: bool = False
) -> Built:
    """Build an image and name it in the engine; return what was built.

    part: what is kept of it (lockstep.narrow), the whole by default. matrix is versions.yaml's own, since what is
    committed is rendered from it too. wheels: compile what the store of wheels lacks.
    """
    files = render(matrix)
    matrix, image = narrow(matrix, image, part or Narrowing())
    bake_file = "bake.hcl"
    if image not in {path.parent.name for path in files}:
        bake_file = f"{NARROWED}/{image}/bake.hcl"
        files |= render_narrowed(matrix, image)
    for path in write(files):
        note(f"rendered {path.relative_to(ROOT)}")
    locks = {name: read_lock(name, arch) for name in matrix.images[image].backends}
    layers = plan(matrix, image, locks)
    check_output("type=oci", [arch.platform], f"{image}-{arch}")
    require_wheels(matrix, layers, arch, build=wheels)
    require_room(layers, image, arch)
    runtime_wheel.build()
    engine = ensure_engine()
    prepare_bases(matrix, arch, options.base)
    note(f"building {image} for {arch} on {options.base}: {len(layers)} layers of wheels")
    built = build(matrix, image, arch, layers, engine, options, bake_file)
    record_digest(image, arch, built.digest, built.layout)
    register_layout(engine, built.layout, reference(image, arch))
    return built


def report(built: Built) -> None:
    """Print the digest, the size and where the time went."""
    result = table("step", "seconds", "from cache", right=("seconds",))
    fresh = sorted((step for step in built.steps if not step.cached), key=lambda step: -step.seconds)
    for step in fresh[:_SLOWEST]:
        result.add_row(step.name, f"{step.seconds:.1f}", "")
    layers = [step for step in built.steps if step.layer]
    cached = sum(step.cached for step in layers)
    # BuildKit does not even name the steps of a layer whose result it already has as a whole.
    result.add_row(f"{cached} of {len(layers)} layers" if layers else "every layer", "", "yes")
    out.print(result)
    out.print(f"image   {reference(built.image, built.arch)}")
    out.print(f"digest  {built.digest}")
    out.print(f"size    {megabytes(built.size)} MB of layers in {built.layout.relative_to(ROOT)}")
    out.print(f"time    {built.seconds:.1f} s")
