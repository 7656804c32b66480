"""The layer plan: complete, deterministic, few layers, and still when something else moves."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import lockkit
from lockkit import lock, locked
from lockstep.arch import Arch
from lockstep.layers import ALONE, BUCKET, MOST, Layer, plan
from lockstep.lock import Lock, LockedWheel, carried, read_lock
from lockstep.matrix import load

BACKENDS = "\n".join(f"  {name}: {{line: plain, requires: [p0]}}" for name in ("a", "b", "c"))
MATRIX = lockkit.matrix(BACKENDS, images="  one: {backends: [a]}\n  all: {backends: [a, b, c]}")

SIZES = st.one_of(st.integers(1, BUCKET // 3), st.integers(ALONE, 20 * ALONE))
WHEELS = st.lists(
    st.tuples(st.integers(0, 400), SIZES, st.sets(st.sampled_from("abc"), min_size=1)),
    max_size=80,
    unique_by=lambda item: item[0],
)


def _locks(wheels: list[tuple[int, int, set[str]]]) -> dict[str, Lock]:
    return {
        name: lock(name, *(locked(f"p{number}", size=size) for number, size, users in wheels if name in users))
        for name in "abc"
    }


def _held(layers: tuple[Layer, ...]) -> list[tuple[str, LockedWheel]]:
    return sorted((venv, wheel) for layer in layers for venv in layer.venvs for wheel in layer.wheels)


@given(WHEELS)
@settings(deadline=None)
def test_every_wheel_of_every_venv_is_in_exactly_one_layer(wheels: list[tuple[int, int, set[str]]]) -> None:
    locks = _locks(wheels)
    layers = plan(MATRIX, "all", locks)
    assert _held(layers) == sorted((name, wheel) for name, item in locks.items() for wheel in item.wheels)
    each = [wheel for layer in layers for wheel in layer.wheels]
    assert len(each) == len(set(each)), "a wheel's bytes are in an image once"
    assert len({layer.name for layer in layers}) == len(layers)
    assert len(layers) <= MOST


@given(WHEELS, st.randoms(use_true_random=False))
@settings(deadline=None)
def test_the_plan_does_not_depend_on_the_order_of_its_input(
    wheels: list[tuple[int, int, set[str]]], random: random.Random
) -> None:
    shuffled = list(wheels)
    random.shuffle(shuffled)
    mixed = {name: replace(item, wheels=tuple(sorted(item.wheels))) for name, item in _locks(shuffled).items()}
    assert plan(MATRIX, "all", mixed) == plan(MATRIX, "all", _locks(wheels))


SMALL = st.lists(
    st.tuples(st.integers(0, 400), st.integers(1, BUCKET // 3)), min_size=2, max_size=60, unique_by=lambda item: item[0]
)


@given(SMALL, st.integers(0, 400), st.integers(1, BUCKET // 3))
@settings(deadline=None)
def test_adding_a_package_changes_one_bucket_but_for_a_split(
    wheels: list[tuple[int, int]], number: int, size: int
) -> None:
    """The property that keeps an image's other layers, and the digests that clusters have cached, as they were."""
    before = [item for item in wheels if item[0] != number]
    old = {layer.wheels for layer in _one(before)}
    new = {layer.wheels for layer in _one([*before, (number, size)])}
    gone, come = old - new, new - old
    assert len(gone) <= 1
    members = sorted(wheel for wheels in come for wheel in wheels)
    assert members == sorted([*(wheel for wheels in gone for wheel in wheels), locked(f"p{number}", size=size)])


@given(SMALL, st.integers(1, BUCKET // 3))
@settings(deadline=None)
def test_a_new_version_of_one_size_changes_one_layer(wheels: list[tuple[int, int]], pick: int) -> None:
    number = wheels[pick % len(wheels)][0]
    layers = _one(wheels)
    bumped = lock("a", *(locked(f"p{each}", "2.0" if each == number else "1.0", size=many) for each, many in wheels))
    after = plan(MATRIX, "one", {"a": bumped})
    assert [layer.name for layer in after] == [layer.name for layer in layers]
    assert sum(one != two for one, two in zip(layers, after, strict=True)) == 1


def _one(wheels: list[tuple[int, int]]) -> tuple[Layer, ...]:
    return plan(MATRIX, "one", {"a": lock("a", *(locked(f"p{number}", size=size) for number, size in wheels))})


def test_moving_one_backends_own_package_leaves_the_layers_of_the_others() -> None:
    def image(version: str) -> tuple[Layer, ...]:
        shared = [locked(f"shared{number}", size=BUCKET // 4) for number in range(20)]
        own = {name: [locked(f"{name}-own", version if name == "b" else "1.0", size=ALONE)] for name in "abc"}
        return plan(MATRIX, "all", {name: lock(name, *shared, *own[name]) for name in "abc"})

    moved = [(one, two) for one, two in zip(image("1.0"), image("2.0"), strict=True) if one != two]
    assert [(one.venvs, two.venvs) for one, two in moved] == [(("b",), ("b",))]


def test_what_a_person_bumps_lies_above_what_comes_along() -> None:
    layers = plan(MATRIX, "one", {"a": lock("a", locked("p0", size=ALONE), locked("z", size=ALONE), locked("small"))})
    assert [layer.wheels[0].name for layer in layers] == ["z", "p0", "small"]


COMPILE = """
compile:
  ext: {version: "1.0", why: for this test, source: {sdist_sha256: "%s"}, cuda: null, imports: [ext]}
""" % ("0" * 64)


def test_a_compiled_wheel_is_alone_and_one_per_line() -> None:
    """One source gives another wheel per torch line, so venvs of two lines never share it."""
    matrix = lockkit.matrix(
        "  a: {line: plain, requires: [y], compile: [ext]}\n  b: {line: plain, requires: [y], compile: [ext]}\n"
        "  c: {line: other, requires: [y], compile: [ext]}",
        f"  other: {{}}\n{COMPILE}",
        "  all: {backends: [a, b, c]}",
    )
    for line, venvs in (("plain", [("a", "b", "c")]), ("other", [("a", "b"), ("c",)])):
        locks = {
            name: lock(name, locked("y"), locked("ext", origin="compile", built_for=line if name == "c" else "plain"))
            for name in "abc"
        }
        layers = plan(matrix, "all", locks)
        assert [layer.venvs for layer in layers if layer.wheels[0].name == "ext"] == venvs
        assert [layer.wheels for layer in layers if len(layer.wheels) > 1] == []


def test_an_optional_wheel_is_a_layer_only_of_images_that_ask_for_it() -> None:
    matrix = lockkit.matrix(
        "  a: {line: plain, requires: [y], optional: [ext]}",
        COMPILE,
        "  bare: {backends: [a]}\n  full: {backends: [a], with: [ext]}",
    )
    locks = {"a": lock("a", locked("y"), locked("ext", origin="compile"))}
    assert [layer.name for layer in plan(matrix, "bare", locks)] == ["a-g"]
    assert [layer.name for layer in plan(matrix, "full", locks)] == ["a-ext", "a-g"]


@pytest.mark.parametrize("arch", list(Arch))
def test_the_committed_images_have_at_most_60_layers_and_hold_their_locks(arch: Arch) -> None:
    matrix = load()
    for image, about in matrix.images.items():
        locks = {name: read_lock(name, arch) for name in about.backends}
        layers = plan(matrix, image, locks)
        assert len(layers) <= MOST, image
        wanted = sorted((name, wheel) for name in locks for wheel in carried(matrix, image, locks[name]).wheels)
        assert _held(layers) == wanted
