"""The program in the image that installs codec and audio packages beside it."""

from __future__ import annotations

import hashlib
import platform
import sys
import zipfile
from pathlib import Path
from types import ModuleType

import pytest

from lockstep.add_ons import LOCK
from lockstep.matrix import load

ARCH = platform.machine()


@pytest.fixture(scope="module")
def program() -> ModuleType:
    """The program, imported under a name of its own."""
    # Not by the import system, which would leave bytecode in a folder that goes into images.
    source = LOCK.with_name("add-ons")
    module = ModuleType("add_ons_program")
    sys.modules[module.__name__] = module  # dataclasses look their module up
    vars(module)["__file__"] = str(source)
    exec(compile(source.read_text(), str(source), "exec"), vars(module))
    return module


@pytest.fixture
def image(tmp_path: Path) -> Path:
    """A folder with venvs of torch 2.13 and 2.11, two wheels and a lock of them."""
    for name, version in (("new", "2.13.0+cu130"), ("old", "2.11.0")):
        info = tmp_path / "venvs" / name / "lib" / "python3.13" / "site-packages" / f"torch-{version}.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: torch\nVersion: {version}\n")
    (tmp_path / "wheels").mkdir()
    lines = ["# a lock"]
    for name, torch in (("codec", "2.13"), ("audio", "2.11,2.13")):
        wheel = tmp_path / "wheels" / f"{name}-1.0-py3-none-any.whl"
        with zipfile.ZipFile(wheel, "w") as archive:
            archive.writestr(f"{name}/__init__.py", "")
        digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
        about = f"{ARCH} torch={torch} {wheel.name} {wheel.stat().st_size}  # a test"
        lines.append(f"{name}==1.0 --hash=sha256:{digest}  # {about}")
    (tmp_path / "lock").write_text("\n".join([*lines, ""]))
    return tmp_path


def _run(program: ModuleType, image: Path, *words: str | Path) -> int:
    code: int = program.main([str(word) for word in words], image / "venvs", image / "lock")
    return code


def test_wheels_out_of_a_folder_are_checked_and_unpacked(program: ModuleType, image: Path) -> None:
    assert _run(program, image, "--venv", "new", "--from", image / "wheels", "--into", image / "out") == 0
    assert (image / "out" / "codec" / "__init__.py").is_file()
    assert (image / "out" / "audio" / "__init__.py").is_file()


def test_what_is_for_another_torch_is_refused_before_anything_is_installed(
    program: ModuleType, image: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("--venv", "old", "--from", image / "wheels", "--into", image / "out", "codec")
    assert _run(program, image, *words) == 1
    assert capsys.readouterr().err == "error: codec is for torch 2.13, and this venv has 2.11.0\n"
    assert not (image / "out").exists()
    assert _run(program, image, "--venv", "old", "--from", image / "wheels", "--into", image / "out") == 0
    assert not (image / "out" / "codec").exists()


def test_a_changed_wheel_is_refused(program: ModuleType, image: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (image / "wheels" / "audio-1.0-py3-none-any.whl").write_bytes(b"other")
    assert _run(program, image, "--venv", "new", "--from", image / "wheels", "--into", image / "out") == 1
    assert "its sha256 differs" in capsys.readouterr().err
    assert not list((image / "out").iterdir())


def test_without_network_it_says_what_it_would_need(
    program: ModuleType, image: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # An installer that fails as pip does without network.
    fails = [sys.executable, "-c", "import sys; sys.exit('ERROR: No matching distribution found')"]
    monkeypatch.setattr(program, "installer", lambda _venv: fails)
    assert _run(program, image, "--venv", "new", "--into", image / "out") == 1
    said = capsys.readouterr().err
    assert "(ERROR: No matching distribution found); without network, these wheels are needed" in said
    assert "codec-1.0-py3-none-any.whl" in said
    assert "pip download --no-deps" in said
    assert "/opt/lockstep/add-ons --from FOLDER --into DIR" in said


def test_with_neither_uv_nor_pip_it_says_so(
    program: ModuleType, image: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(program, "installer", lambda _venv: None)
    assert _run(program, image, "--venv", "new", "--into", image / "out") == 1
    assert "there is neither uv nor pip here" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "several venvs have a torch: name one of new, old with --venv"),
        (("--venv", "none"), "there is no venv 'none' with torch"),
        (("--venv", "new", "video"), "there is no add-on video: it is one of audio, codec"),
    ],
)
def test_a_wrong_name_gets_the_right_ones(
    program: ModuleType, image: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], said: str
) -> None:
    assert _run(program, image, "--list", *words) == 1
    assert said in capsys.readouterr().err


def test_the_images_own_venvs_are_not_touched(
    program: ModuleType, image: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    into = image / "venvs" / "new" / "lib"
    assert _run(program, image, "--venv", "new", "--from", image / "wheels", "--into", into) == 1
    assert "lies in the image's own venvs" in capsys.readouterr().err


def test_the_committed_lock_is_of_the_matrix_and_can_be_read(program: ModuleType) -> None:
    matrix = load()
    found = program.read_lock(LOCK)
    wanted = {(item.requirement, tuple(item.lines), arch) for item in matrix.add_ons for arch in matrix.arches}
    assert {(f"{item.name}=={item.version}", item.torch, item.arch) for item in found} == wanted
    for torch in ("2.13.0", "2.11.0"):
        names = [item.name for item in program.fitting(found, torch, "aarch64", [])]
        assert sorted(names) == ["av", "torchaudio", "torchcodec"]
