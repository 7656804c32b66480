"""A part of an image (BACKENDS=, WITHOUT=) gets no tag under which somebody would take it for the whole."""

from __future__ import annotations

from collections.abc import Sequence

from lockstep.errors import LockstepError
from lockstep.matrix import Matrix, Narrowed
from lockstep.narrow import split_name
from lockstep.ship.layout import OciImage
from lockstep.ship.refs import Ref

_TITLE = "org.opencontainers.image.title"


def require_own_name(matrix: Matrix, images: Sequence[OciImage], target: Ref) -> None:
    """Raise LockstepError where `target` has a tag and names the whole of what `images` are only a part of.

    An image says itself what it is, by its title, whatever the command called it. The reference names a part where its
    last word is the part's name, or its tag ends in what the name adds to that of the whole. By digest anything may be
    pushed. The architectures under one tag must be parts alike.
    """
    if not target.tag:
        return
    titles = {title_of(each): _whole(matrix, title_of(each)) for each in images}
    parts = {title: whole for title, whole in titles.items() if whole}
    if parts and len(titles) > 1:
        raise LockstepError(
            "the images are not the same part of one image: "
            + ", ".join(sorted(title or "no title" for title in titles)),
            where=str(target),
            fix="build each architecture with the same BACKENDS= and WITHOUT=",
        )
    for title, whole in parts.items():
        added = title.removeprefix(f"{whole}-")
        if target.path.rpartition("/")[2] != title and not f"-{target.tag}".endswith((f"-{added}", f".{added}")):
            raise LockstepError(
                f"{title} is only a part of {whole}, and {target} does not say so",
                where=str(target),
                fix=f"push to HOST/…/{title} (the default), or give a tag that ends in {added}",
            )


def title_of(image: OciImage) -> str:
    """Return the title that an image gives itself, "" where it has none."""
    return str(((image.config.get("config") or {}).get("Labels") or {}).get(_TITLE, ""))


def _whole(matrix: Matrix, title: str) -> str:
    """Return the image that `title` is a part of, "" of a whole one and of images that are none of ours."""
    if title in matrix.images:
        image = matrix.images[title]
        return image.of if isinstance(image, Narrowed) else ""
    whole, part = split_name(matrix, title)
    if part:
        return whole
    # versions.yaml may have lost a package or an image since: the name still says that something is missing.
    return title.partition("-without-")[0] if "-without-" in title else ""
