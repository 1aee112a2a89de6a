"""The compiled part of a capture: in any interpreter the library's answers, and none where it cannot tell."""

from __future__ import annotations

import json
import math
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from reprokit.agent.capture.torch_checks import FiniteTests
from reprokit.agent.capture.torch_copies import BufferCopies
from reprokit.agent.core import native_module
from reprokit.agent.core import trail_library as trail
from reprokit.core.native import trail_path
from tests.interpreters import VERSIONS, interpreter
from tests.support import training_text

IN_ANY_INTERPRETER = training_text("compiled_part.py")


@pytest.fixture(scope="module")
def module() -> Any:
    """The compiled part in this interpreter."""
    found = native_module.load(str(trail_path()))
    assert found is not None
    return found


@pytest.fixture(params=[False, True], ids=["asked", "exchanged"])
def describing(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    """One of its own, which asks tensors for what they are, or has them described by DLPack's exchange."""
    import torch

    name = "reprokit_step.abi3.so"
    shutil.copy(trail_path().with_name(name), tmp_path / name)
    found = native_module.load(str(tmp_path / "libreprokit_trail.so"))
    assert found is not None
    if request.param:
        assert found.use_exchange(torch.Tensor)
    return found


@pytest.mark.parametrize("version", VERSIONS)
def test_it_works_in_every_interpreter(version: str) -> None:
    python = interpreter(version)
    if python is None:
        pytest.skip(f"CPython {version} is not installed")
    paths = str(trail_path().parent.parent.parent), str(trail_path())
    done = subprocess.run([python, "-c", IN_ANY_INTERPRETER, *paths], capture_output=True, text=True, check=False)
    assert done.stderr == ""
    *answers, failures = json.loads(done.stdout)
    assert answers == [True, True, False, None, True, True, False]
    assert failures == ["TypeError", "TypeError", "TypeError", "AttributeError", "ValueError"]


def test_there_is_none_without_the_file_or_for_another_kind_of_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    assert native_module.load(None) is None
    assert native_module.load("/nowhere/libreprokit_trail.so") is None
    monkeypatch.setattr(sys, "abiflags", "t")
    assert native_module.load(str(trail_path())) is None


# ---- With PyTorch ----------------------------------------------------------------------------------------------------


def cases() -> list[list[Any]]:
    """Lists of tensors of all kinds."""
    import torch

    def with_number(tensor: Any, number: float) -> Any:
        tensor.view(-1)[-1] = number
        return tensor

    own = type("Own", (torch.Tensor,), {})

    floats = [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64]
    made: list[list[Any]] = [[torch.ones(7, dtype=dtype)] for dtype in floats]
    made += [[with_number(torch.ones(7, dtype=dtype), math.inf)] for dtype in floats]
    large = torch.ones(trail.SMALL)
    made += [[], [torch.ones(3), with_number(torch.ones(70), math.nan)], [large]]
    made += [[with_number(large.clone(), math.nan)], [torch.ones(2, 3).t()], [torch.ones(0)]]
    made += [[with_number(torch.ones(2, 3, 4, 4), math.nan).contiguous(memory_format=torch.channels_last)]]
    made += [[torch.ones(3).as_subclass(own)], [with_number(torch.ones(1), math.nan).expand(9)]]
    return made


@pytest.mark.torch
def test_tensors_of_all_kinds_are_judged_alike(describing: Any) -> None:
    import torch

    without, used = FiniteTests(torch), FiniteTests(torch, describing)
    answers = []
    for tensors in cases():
        assert without.at_once(tensors) is None
        answers.append(used.at_once(tensors))
        assert used.are_finite(tensors) == without.are_finite(tensors) == answers[-1] or answers[-1] is None, tensors
    assert set(answers) == {True, False, None}


@pytest.mark.torch
def test_what_it_cannot_read_it_leaves_to_others(describing: Any) -> None:
    import torch

    formats = {torch.float32: 3}
    assert describing.finite(torch.Tensor, formats, [torch.eye(3).to_sparse()]) is None
    with pytest.raises(RuntimeError):
        describing.finite(torch.Tensor, formats, [torch.eye(3).to_mkldnn()])
    assert FiniteTests(torch, describing).are_finite([torch.eye(3).to_sparse()])

    class Failing:
        @property
        def is_cpu(self) -> None:
            raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        describing.finite(Failing, formats, [Failing()])


# ---- Buffers ---------------------------------------------------------------------------------------------------------


@pytest.mark.torch
def test_buffers_that_are_assigned_or_freed_are_kept_too() -> None:
    import torch

    model = torch.nn.Module()
    model.register_buffer("assigned", torch.tensor([1.0]))
    model.register_buffer("freed", torch.tensor([5.0]))
    model.register_buffer("none", None)
    buffers = BufferCopies(torch)
    for number in range(1, 5):
        buffers.keep(lambda: [model])
        model.assigned = model.assigned + 1
        model.none = torch.ones(1)
        assert buffers.kept()[id(model.assigned)].tolist() == [number]
        buffers.restore()
        assert (model.assigned.tolist(), model.none) == ([number], None)
        model.assigned = model.assigned + 1
        model.freed.untyped_storage().resize_(0 if number == 2 else 4)
    model.freed.fill_(6)
    buffers.keep(lambda: [model])
    model.freed.fill_(7)
    buffers.restore()
    assert model.freed.tolist() == [6]
