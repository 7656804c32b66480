"""What the image probes say of an image that was built without a compiled package (WITHOUT=)."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from image import test_venvs as probes
from image.subject import Config, Subject
from lockstep.arch import Arch
from lockstep.matrix import load
from lockstep.narrow import Narrowing, narrow

MATRIX, NAME = narrow(load(), "megatron", Narrowing.parse(without="flash-attn"))


@dataclass
class Done:
    rc: int
    stderr: str = ""


@dataclass
class Host:
    """Stands for testinfra's host: every command ends like this."""

    done: Done | None = None

    def run(self, _command: str, *_words: str) -> Done:
        assert self.done is not None, "nothing is to be run"
        return self.done


def subject(image: str = NAME) -> Subject:
    backends = {"megatron": MATRIX.backends["megatron"]}
    return Subject(image, Arch.X86_64, "root", backends, {}, "3.13", 1, {}, Config({}, {}, []), MATRIX)


def test_the_import_of_what_is_left_out_is_skipped_and_recorded() -> None:
    about = subject()
    with pytest.raises(pytest.skip.Exception, match="flash-attn is left out by WITHOUT="):
        probes.test_import(Host(), about, "megatron", "flash_attn")
    assert about.results == {
        "megatron:flash_attn": {"result": "left-out", "detail": "flash-attn is left out by WITHOUT="}
    }


def test_what_needs_it_fails_and_says_so() -> None:
    about = subject()
    host = Host(Done(1, "Traceback …\nModuleNotFoundError: No module named 'flash_attn'"))
    with pytest.raises(pytest.fail.Exception, match="it needs flash-attn, which is left out by WITHOUT="):
        probes.test_import(host, about, "megatron", "megatron.bridge")
    (result,) = about.results.values()
    assert result["result"] == "fail"
    assert result["detail"].endswith("No module named 'flash_attn'")


def test_other_imports_are_run_as_ever() -> None:
    about = subject()
    probes.test_import(Host(Done(0)), about, "megatron", "torch")
    with pytest.raises(pytest.fail.Exception, match=r"^import fla: ImportError: broken$"):
        probes.test_import(Host(Done(1, "ImportError: broken")), about, "megatron", "fla")
    assert {key: item["result"] for key, item in about.results.items()} == {
        "megatron:torch": "pass",
        "megatron:fla": "fail",
    }


def test_in_the_whole_image_its_import_is_run() -> None:
    about = subject("megatron")
    host = Host(Done(1, "ModuleNotFoundError: No module named 'flash_attn'"))
    with pytest.raises(pytest.fail.Exception, match="No module named"):
        probes.test_import(host, about, "megatron", "flash_attn")
    assert "WITHOUT" not in about.results["megatron:flash_attn"]["detail"]
