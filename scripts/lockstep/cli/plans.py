"""Commands that look ahead or measure: bump, why, repro, bench."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def register(app: typer.Typer) -> None:
    """Add the commands."""
    for command in (bump, why, repro, bench):
        app.command()(command)


def bump(
    to: Annotated[str, typer.Option(help="the version to move to")],
    backend: Annotated[str, typer.Option(help="the backend of versions.yaml; its own package moves")] = "",
    package: Annotated[str, typer.Option(help="another package: of the backend, or wherever it is pinned")] = "",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="write the report and change nothing else")] = False,
    abi_mb: Annotated[int, typer.Option(help="megabytes of changed wheels that may be fetched to check libraries")] = 0,
    out_path: Annotated[Path | None, typer.Option("--out", help="where the report goes, without .md and .json")] = None,
) -> None:
    """Move a version in versions.yaml, relock, and report what that breaks; exit code 1 where it cannot be locked."""
    from lockstep.bump.report import write_report
    from lockstep.bump.run import Request, written_to
    from lockstep.bump.run import bump as run_bump
    from lockstep.console import note, out

    request = Request(to, backend, package, dry_run, abi_mb * 1_000_000)
    report = run_bump(request)
    markdown, data = write_report(report, out_path or written_to(request, report))
    out.print(f"{report.package} {report.before} → {report.to}: ", end="")
    blocks = f"cannot be locked, {len(report.blocks)} reasons; nothing was changed"
    out.print("locked" if report.locked and not dry_run else "can be locked" if report.locked else blocks)
    for text in report.faults:
        out.print(f"  {text}", markup=False, soft_wrap=True)
    out.print(f"report  {_shown(markdown)}")
    out.print(f"json    {_shown(data)}")
    note(f"{report.cost.seconds:.0f} s, {report.cost.fetched_bytes / 1e6:.1f} MB read besides the resolver's")
    if not report.locked:
        raise typer.Exit(1)


def why(
    layer: Annotated[str, typer.Argument(help="a layer, as `make plan` names it; empty for all of them")] = "",
    image: Annotated[str, typer.Option(help="an image of versions.yaml")] = "vllm",
    arch: Annotated[str, typer.Option(help="x86_64 or aarch64")] = "",
    backends: Annotated[str, typer.Option(help="only these backends of the image")] = "",
    without: Annotated[str, typer.Option(help="leave out these packages that are compiled from source")] = "",
) -> None:
    """Say why a layer would be built again, compared with the last build on this machine."""
    from rich.markup import escape

    from lockstep.cli.options import chosen_image, known_arch
    from lockstep.console import out
    from lockstep.matrix import load
    from lockstep.paths import ROOT
    from lockstep.why import explain_layer, planned

    matrix, image = chosen_image(image, load(), backends, without)
    target = known_arch(arch, matrix)
    names = [layer] if layer else [item.name for item in planned(matrix, image, target, ROOT)]
    again = 0
    for name in names:
        answer = explain_layer(matrix, image, target, name)
        again += answer.rebuilt
        took = f" (its stage took {answer.seconds:.0f} s)" if answer.seconds is not None else ""
        if not answer.known:
            out.print(f"{name}: would be built: no build of {image} for {target} is recorded on this machine")
        elif not answer.reasons:
            same = (
                "its wheels are the same (the record holds no more)"
                if answer.partial
                else ("nothing that it is made from has changed")
            )
            out.print(f"{name}: would not be built again: {same}")
        else:
            out.print(f"{name}: would be built again{took}, because:")
            for reason in answer.reasons:
                out.print(f"  {escape(reason.sentence())}", soft_wrap=True)
    if not layer:
        out.print(f"{again} of {len(names)} layers would be built again")


def repro(
    image: Annotated[str, typer.Argument(help="an image of versions.yaml")],
    arch: Annotated[str, typer.Option(help="x86_64 or aarch64")] = "",
    times: Annotated[int, typer.Option(help="how many builds to compare")] = 2,
    load: Annotated[int, typer.Option(help="busy processes beside every second build; -1: one per core")] = -1,
    base: Annotated[str, typer.Option(help="bootstrap (Debian) or cuda (NVIDIA)")] = "bootstrap",
    backends: Annotated[str, typer.Option(help="only these backends of the image")] = "",
    without: Annotated[str, typer.Option(help="leave out these packages that are compiled from source")] = "",
) -> None:
    """Build from nothing several times, everything varied that may vary; exit code 1 where two digests differ."""
    from lockstep.cli.options import chosen_image, known_arch
    from lockstep.console import out, table
    from lockstep.matrix import load as load_matrix
    from lockstep.repro import prove

    matrix, image = chosen_image(image, load_matrix(), backends, without)
    target = known_arch(arch, matrix)
    proof = prove(image, target, times, load=None if load < 0 else load, base=base)
    rows = table("build", "digest", "seconds", "varied", right=("seconds",))
    for item in proof.builds:
        rows.add_row(str(item.variation.number), item.digest, f"{item.seconds:.0f}", item.variation.told())
    out.print(rows)
    for text in proof.fixed:
        out.print(f"not varied: {text}", markup=False, soft_wrap=True)
    if proof.same:
        out.print(f"{len(proof.builds)} builds of {image} for {target}, one digest")
        return
    what = proof.difference.sentence() if proof.difference else "the digests differ and nothing below them does"
    out.print(f"build {len(proof.builds)} differs from build 1: {what}", markup=False, soft_wrap=True)
    raise typer.Exit(1)


def bench(
    image: Annotated[str, typer.Argument(help="an image of versions.yaml")],
    arch: Annotated[str, typer.Option(help="x86_64 or aarch64")] = "",
    out_path: Annotated[Path | None, typer.Option("--out", help="the file; docs/bench.md by default")] = None,
    backends: Annotated[str, typer.Option(help="only these backends of the image")] = "",
    without: Annotated[str, typer.Option(help="leave out these packages that are compiled from source")] = "",
) -> None:
    """Measure an image beside its peers and write docs/bench.md; nothing fails for a bar that is missed."""
    from lockstep.bench import as_markdown, write_bench
    from lockstep.bench import bench as measure
    from lockstep.cli.options import chosen_image, known_arch
    from lockstep.console import out
    from lockstep.matrix import load
    from lockstep.paths import ROOT

    matrix, image = chosen_image(image, load(), backends, without)
    found = measure(matrix, image, known_arch(arch, matrix))
    path = write_bench(found, out_path or ROOT / "docs" / "bench.md")
    out.print(as_markdown(found), markup=False, soft_wrap=True)
    out.print(f"written to {_shown(path)}")


def _shown(path: Path) -> str:
    from lockstep.paths import ROOT

    return str(path.relative_to(ROOT)) if path.is_relative_to(ROOT) else str(path)
