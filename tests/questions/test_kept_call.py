"""What locate keeps of a call gives the call's own results when it is executed again."""

from __future__ import annotations

import hashlib
import json
import runpy
import shutil
from pathlib import Path
from typing import Any

import pytest

from reprokit.agent.capture.store import index_of, write_tensors
from reprokit.questions.locate import KEPT_CALL

pytestmark = pytest.mark.torch


def calls() -> dict[str, tuple[Any, tuple[Any, ...], dict[str, Any]]]:
    """Calls with layouts, types and arguments of many kinds."""
    import torch

    aten = torch.ops.aten
    image = torch.randn(2, 3, 8, 8).to(memory_format=torch.channels_last)
    sizes = [4], [1, 1], [0, 0], [1, 1], False, [0, 0], 1, [True, True, True]
    gradient, weight, rows = torch.randn(2, 4, 6, 6), torch.randn(4, 3, 3, 3), torch.tensor([0, 1, 0])
    cast = {"dtype": torch.bfloat16, "device": torch.device("cpu"), "memory_format": torch.channels_last}
    filled = {"dtype": torch.complex128, "layout": torch.strided}
    expanded = rows[:, None].expand(-1, 4)
    return {
        "convolution": (aten.convolution_backward.default, (gradient, image, weight, *sizes), {}),
        "types": (aten._to_copy.default, (image,), cast),
        "expanded": (aten.scatter_add.default, (torch.zeros(5, 4), 0, expanded, torch.randn(3, 4)), {}),
        "infinite": (aten.clamp.default, (torch.randn(3), float("-inf"), 0.5), {}),
        "complex": (aten.full.default, ([2, 2], 1 + 2j), filled),
        "list": (aten.cat.default, ([torch.randn(2), torch.empty(0), torch.randn(1)],), {}),
        "transposed": (aten.sum.dim_IntList, (torch.randn(3, 4).t(), [0]), {"dtype": torch.float64}),
    }


@pytest.mark.parametrize("name", ["convolution", "types", "expanded", "infinite", "complex", "list", "transposed"])
def test_a_kept_call_gives_its_results_again(tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    import torch

    from reprokit.agent.operators.pytorch import log as pytorch_calls
    from reprokit.agent.pytorch.operators import PytorchOperator

    function, arguments, keywords = calls()[name]
    operator = PytorchOperator(torch, function)
    inputs, _ = pytorch_calls._flat(torch.Tensor, [*arguments, *keywords.values()])
    parts = pytorch_calls._parts("inputs", [tensor.clone() for tensor in inputs])
    with open(tmp_path / "inputs.safetensors", "wb", buffering=0) as file:
        write_tensors(file, index_of(parts), parts)
    call = pytorch_calls._call(torch, operator, inputs, arguments, keywords)
    (tmp_path / "call.json").write_text(json.dumps(call))
    shutil.copy(KEPT_CALL, tmp_path / "call.py")
    runpy.run_path(str(tmp_path / "call.py"))
    result = function(*arguments, **keywords)
    outputs = result if isinstance(result, tuple) else (result,)
    raw = [bytes(output.contiguous().reshape(-1).view(torch.uint8).tolist()) for output in outputs]
    printed = capsys.readouterr().out.splitlines()
    assert [line.split()[-1] for line in printed] == [hashlib.sha256(data).hexdigest() for data in raw]
