"""Commands that bring an image to where it is used: push, merge, sqsh, flatten, slurm."""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from lockstep.ship.source import Source

_Backends = Annotated[str, typer.Option(help="only these backends of the image")]
_Without = Annotated[str, typer.Option(help="without these packages that are compiled from source")]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    for command in (push, merge, sqsh, flatten, layer_report, slurm, sbom, verify, cache_prune):
        app.command()(command)


def push(
    image: Annotated[str, typer.Argument(help="an image of versions.yaml that has been built")],
    tag: Annotated[str, typer.Option(help="the tag to move once everything is there; none: push by digest only")] = "",
    ref: Annotated[str, typer.Option(help="HOST/PATH to push to; default $REGISTRY/IMAGE")] = "",
    arch: Annotated[list[str] | None, typer.Option(help="only this architecture; may be given more than once")] = None,
    attest: Annotated[bool, typer.Option(help="attach SBOM and provenance")] = True,
    sign_key: Annotated[str, typer.Option(help="PEM private key to sign with; its password is in SIGN_PASSWORD")] = "",
    backends: _Backends = "",
    without: _Without = "",
) -> None:
    """Push what was built: each architecture by digest, then one index, then the tag, last."""
    from lockstep.cli.options import chosen_image, known_arch
    from lockstep.console import note, out
    from lockstep.matrix import load
    from lockstep.ship import attest as attesting
    from lockstep.ship import push as pushing
    from lockstep.ship import refs, sign
    from lockstep.ship.describe import documents
    from lockstep.ship.named import require_own_name

    matrix, image = chosen_image(image, load(), backends, without)
    arches = [known_arch(each, matrix) for each in arch or matrix.arches]
    target = refs.parse(ref or pushing.default_target(image))
    target = target.with_tag(tag) if tag else target
    images = pushing.built_images(image, arches)
    require_own_name(matrix, images, target)
    # Before anything is sent: this refuses a checkout whose locks are not those of the image.
    papers = [documents(matrix, image, each, held, target) for each, held in zip(arches, images, strict=True) if attest]
    pushing.push_by_digest(images, target)
    for number, held in enumerate(images):
        if attest:
            note(f"attaching SBOM and provenance to {held.descriptor.digest}")
            attesting.attach(target, held.descriptor, papers[number])
        if sign_key:
            sign.sign(target, [held.descriptor.digest], Path(sign_key))
        out.print(str(target.with_digest(held.descriptor.digest)), soft_wrap=True)

    def before_tag(index: pushing.Index) -> None:
        if sign_key:
            sign.sign(target, [index.digest], Path(sign_key))

    if target.tag:
        made = pushing.push_index(images, target, before_tag)
        out.print(str(target.with_digest(made.digest)), soft_wrap=True)


def merge(
    ref: Annotated[str, typer.Argument(help="HOST/PATH:TAG whose tag is moved")],
    digests: Annotated[list[str], typer.Argument(help="the digest of each architecture's image, already pushed")],
) -> None:
    """Make one index of images that are in the registry, and move the tag to it: CI with a runner per architecture."""
    from lockstep.console import out
    from lockstep.errors import LockstepError
    from lockstep.matrix import load
    from lockstep.ship import push as pushing
    from lockstep.ship import refs
    from lockstep.ship.named import require_own_name

    matrix, target = load(), refs.parse(ref)
    if not target.tag:
        raise LockstepError("no tag is named", where=ref, fix="give HOST/PATH:TAG")
    wanted = [each.rpartition("@")[2] for each in digests]
    index = pushing.merge(target, wanted, lambda images: require_own_name(matrix, images, target))
    out.print(str(target.with_digest(index.digest)), soft_wrap=True)


def sqsh(
    image: Annotated[str, typer.Argument(help="an image of versions.yaml; with --from only the name of the file")],
    arch: Annotated[str, typer.Option(help="x86_64 or aarch64")] = "",
    source: Annotated[
        str, typer.Option("--from", help="a reference, a layout folder, a tarball, or docker-daemon:NAME")
    ] = "",
    output: Annotated[str, typer.Option("--out", help="the file; default build/IMAGE.ARCH.sqsh")] = "",
    ref: Annotated[str, typer.Option(help="the reference to name in /etc/rc where --from is none")] = "",
    comp: Annotated[str, typer.Option(help="compressor: zstd, gzip, lz4, lzo or xz")] = "zstd",
    level: Annotated[int, typer.Option(help="compression level; 0: zstd 9, others their own default")] = 0,
    processors: Annotated[int, typer.Option(help="processors for mksquashfs; 0: all")] = 0,
    backends: _Backends = "",
    without: _Without = "",
) -> None:
    """Make the .sqsh that `enroot import` would make, byte for byte the same each time."""
    from lockstep.console import out
    from lockstep.matrix import load
    from lockstep.ship import sqsh as squashing

    chosen = level or (squashing.DEFAULT_LEVEL if comp == "zstd" else None)
    target, where, opened = _source(_named(image, backends, without), arch, source, output, ref, ".sqsh")
    options = squashing.Options(load().epoch, comp, chosen, processors)
    squashing.preflight(comp)
    with opened as held:
        squashing.make(held, target, options)
    out.print(where, soft_wrap=True)


def flatten(
    image: Annotated[str, typer.Argument(help="an image of versions.yaml; with --from only the name of the file")],
    arch: Annotated[str, typer.Option(help="x86_64 or aarch64")] = "",
    source: Annotated[str, typer.Option("--from", help="as for sqsh")] = "",
    output: Annotated[str, typer.Option("--out", help="the file; default build/IMAGE.ARCH.tar")] = "",
    backends: _Backends = "",
    without: _Without = "",
) -> None:
    """Write the image's merged tree as one tar, for runtimes that trip over whiteouts or links across layers."""
    from lockstep.console import out
    from lockstep.ship import sqsh as squashing

    target, where, opened = _source(_named(image, backends, without), arch, source, output, "", ".tar")
    with opened as held:
        squashing.to_tar(held, target)
    out.print(where, soft_wrap=True)


def layer_report(
    image: Annotated[str, typer.Argument(help="an image of versions.yaml; with --from any name")],
    arch: Annotated[str, typer.Option(help="x86_64 or aarch64")] = "",
    source: Annotated[str, typer.Option("--from", help="as for sqsh")] = "",
    backends: _Backends = "",
    without: _Without = "",
) -> None:
    """Report what trips other runtimes: links across layers, folders turned into links, whiteouts. Exit 1 if any."""
    from lockstep.console import out, table
    from lockstep.ship.scan import scan

    _target, _where, opened = _source(_named(image, backends, without), arch, source, "", "", "")
    with opened as held:
        found = scan(held.layers)
    rows = table("kind", "layer", "path", "detail")
    for each in found:
        rows.add_row(each.kind, str(each.layer), each.path, each.detail)
    if found:
        out.print(rows)
        out.print("`make flatten` writes the image without them")
        raise typer.Exit(1)
    out.print("nothing that other runtimes trip over")


def slurm(
    image: Annotated[str, typer.Argument(help="an image of versions.yaml")],
    ref: Annotated[str, typer.Option(help="the reference as pushed; default $REGISTRY/IMAGE:TAG")] = "",
    tag: Annotated[str, typer.Option(help="the tag where no reference is given")] = "latest",
    job: Annotated[str, typer.Option(help="where the example job is written; default build/IMAGE.sbatch")] = "",
    backends: _Backends = "",
    without: _Without = "",
) -> None:
    """Print the enroot, srun and sbatch lines for a reference, and write a job that probes the image on each node."""
    from lockstep.cli.options import chosen_image
    from lockstep.console import out
    from lockstep.matrix import load
    from lockstep.paths import BUILD
    from lockstep.ship import push as pushing
    from lockstep.ship import refs
    from lockstep.ship import slurm as lines

    matrix, image = chosen_image(image, load(), backends, without)
    parsed = refs.parse(ref or pushing.default_target(image, tag))
    path = Path(job) if job else BUILD / f"{image}.sbatch"
    lines.write_job(path, image, matrix, parsed)
    out.print(lines.describe(parsed, image, shown(path)), markup=False, soft_wrap=True)


def sbom(
    image: Annotated[str, typer.Argument(help="an image of versions.yaml that has been built")],
    arch: Annotated[str, typer.Option(help="x86_64 or aarch64")] = "",
    output: Annotated[str, typer.Option("--out", help="the file; default build/IMAGE.ARCH.cdx.json")] = "",
    backends: _Backends = "",
    without: _Without = "",
) -> None:
    """Write the CycloneDX SBOM of a built image."""
    from lockstep.cli.options import chosen_image, known_arch
    from lockstep.console import out
    from lockstep.files import write_text
    from lockstep.matrix import load
    from lockstep.paths import BUILD
    from lockstep.ship import push as pushing
    from lockstep.ship.describe import bill

    matrix, image = chosen_image(image, load(), backends, without)
    wanted = known_arch(arch, matrix)
    path = Path(output) if output else BUILD / f"{image}.{wanted}.cdx.json"
    write_text(path, bill(matrix, image, wanted, pushing.built_images(image, [wanted])[0]).decode())
    out.print(shown(path), soft_wrap=True)


def verify(
    ref: Annotated[str, typer.Argument(help="HOST/PATH:TAG or HOST/PATH@DIGEST")],
    key: Annotated[str, typer.Option(help="PEM public key that must have signed it")] = "",
    arch: Annotated[list[str] | None, typer.Option(help="only this architecture; may be given more than once")] = None,
    rebuild: Annotated[bool, typer.Option(help="build it again from its provenance and compare digests")] = False,
) -> None:
    """Check a pushed image: digests, signature, SBOM against the layers, and with --rebuild that it builds the same."""
    from lockstep.arch import Arch
    from lockstep.cli.options import one_of
    from lockstep.console import out, table
    from lockstep.paths import BUILD
    from lockstep.ship import refs
    from lockstep.ship import verify as verifying
    from lockstep.ship.rebuild import rebuild as build_again

    names = tuple(each.value for each in Arch)
    checks = verifying.verify(
        refs.parse(ref),
        key=Path(key) if key else None,
        scratch=BUILD,
        arches=[Arch(one_of("architecture", each, names)) for each in arch or []],
        rebuild=build_again if rebuild else None,
    )
    rows = table("check", "state", "detail")
    for each in checks:
        rows.add_row(each.what, each.state, each.detail)
    out.print(rows, markup=False)
    if any(each.state == "FAIL" for each in checks):
        raise typer.Exit(1)


def cache_prune(
    caches: Annotated[list[str], typer.Argument(help="HOST/PATH for all tags, HOST/PATH:TAG, or a folder")],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="remove nothing")] = False,
) -> None:
    """Remove BuildKit caches whose blobs are gone from a registry, and what is left over in a local cache's folder."""
    from lockstep import cache_refs
    from lockstep.console import megabytes, out, table

    rows = table("cache", "state", "detail")
    for cache in caches:
        if Path(cache).is_dir():
            freed = cache_refs.prune_local(f"type=local,dest={cache}", dry_run=dry_run)
            rows.add_row(cache, "folder", f"{megabytes(freed)} MB {'would be' if dry_run else 'were'} removed")
            continue
        for verdict in cache_refs.prune_registry(cache, dry_run=dry_run):
            done = "" if verdict.state == "live" else "; not removed" if dry_run else "; removed"
            rows.add_row(verdict.entry, verdict.state, verdict.why + done)
    out.print(rows)


def shown(path: Path) -> str:
    """Return a path as the user would type it: relative where it lies below the working folder."""
    absolute = path.absolute()
    return str(absolute.relative_to(Path.cwd())) if absolute.is_relative_to(Path.cwd()) else str(absolute)


def _named(image: str, backends: str, without: str) -> str:
    """Return the name of an image, of its part where BACKENDS= or WITHOUT= name one. Other names stay as they are."""
    if not backends and not without:
        return image
    from lockstep.cli.options import chosen_image
    from lockstep.matrix import load

    return chosen_image(image, load(), backends, without)[1]


def _source(
    image: str, arch: str, source: str, output: str, ref: str, suffix: str
) -> tuple[Path, str, AbstractContextManager[Source]]:
    """Return the output file, how to show it, and the source to open."""
    from lockstep.arch import Arch, host_arch
    from lockstep.cli.options import one_of
    from lockstep.paths import BUILD
    from lockstep.ship import digests
    from lockstep.ship.source import open_source

    wanted = Arch(one_of("architecture", arch or host_arch().value, tuple(each.value for each in Arch)))
    target = Path(output) if output else BUILD / f"{image}.{wanted}{suffix}"
    text = source or str(digests.layout_of(digests.built(image, wanted)))
    return target, shown(target), open_source(text, wanted, target.absolute().parent, ref)
