"""The log of PyTorch's operator calls is the same, byte by byte, with the compiled module and without it."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from reprokit.agent.operators.log import CALL, CallLog
from reprokit.agent.operators.pytorch.log import PytorchCalls
from reprokit.agent.pytorch import private_api
from reprokit.core import native
from tests.capture.test_compiled import describing

__all__ = ["describing"]
pytestmark = pytest.mark.torch


def train() -> None:
    """Two steps of a small network in channels last, with a recurrent layer, dropout and a custom gradient."""
    torch.manual_seed(0)
    layers = [nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Dropout(0.3), nn.Flatten(), nn.Linear(144, 5)]
    model = nn.Sequential(*layers).to(memory_format=torch.channels_last)
    recurrent = nn.GRU(5, 6)
    parameters = [*model.parameters(), *recurrent.parameters()]
    optimizers = [torch.optim.Adam(parameters, foreach=False), torch.optim.SGD(parameters, momentum=0.9, foreach=True)]
    for step in range(4):
        inputs = torch.randn(2, 3, 8, 8).contiguous(memory_format=torch.channels_last)
        outputs, _ = recurrent(model(inputs)[None])
        loss = functional.cross_entropy(outputs[0], torch.tensor([0, step % 5]))
        optimizers[step % 2].zero_grad(set_to_none=step == 2)
        loss.backward()
        optimizers[step % 2].step()


def compute() -> None:
    """Calls with other kinds of tensors and arguments."""
    values = torch.arange(24, dtype=torch.float32).reshape(4, 6) - 0.0
    values.t().add_(1), values[1:, ::2].mul_(2), values.t() @ values, values.expand(2, 4, 6).sum((0, 2))
    torch.stack([values, values]), torch.cat((values, values.t().reshape(4, 6)), 1), values[torch.tensor([0, 2])]
    values[[0, 3]] = -0.0
    torch.zeros(3, dtype=torch.bfloat16, device="cpu").to(torch.float64, copy=True)
    torch.clamp(values, min=-1), values + True, values * 1, values * 1.0, values.new_full((2,), float("nan"))
    complex_values = torch.complex(values, values)
    complex_values.conj() * complex_values, complex_values.conj().imag + 1, complex_values.abs()
    integers = torch.arange(3, dtype=torch.int8)
    quantized = torch.quantize_per_tensor(torch.tensor([1.0, 2.0, 3.0]), 0.5, 0, torch.qint8)
    integers + 1, quantized.dequantize(), quantized.clone(), integers.clone()
    sparse = torch.eye(3).to_sparse()
    sparse * 2, sparse @ torch.ones(3, 2), torch.eye(3).to_sparse_csr() @ torch.ones(3)
    torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])
    torch.ones(2, dtype=torch.uint8).view(torch.bool).logical_not(), torch.ones(0, 3).sum(), torch.tensor(2.0) ** 3
    torch.rand(3, generator=torch.Generator().manual_seed(1)), torch.nn.init.normal_(torch.empty(4)), torch.randperm(5)
    torch.einsum("ij,kj->ik", values, values), values.to(torch.float8_e4m3fn).float(), values.std(correction=0)
    torch.nn.Parameter(values).detach().sum(), values.to(memory_format=torch.preserve_format), values.item
    torch._foreach_add([values, values], [1, 2.0]), torch.split(values, [1, 3]), torch.max(values, 1)
    (
        values.set_(torch.ones(2).untyped_storage(), 0, (2,)),
        torch.empty(3).resize_(6).fill_(1),
        torch.ones(600, 600).mul_(2),
    )


def work() -> None:
    """Compute on several threads and in nested functions."""
    train()
    compute()
    thread = threading.Thread(target=compute, name="other")
    thread.start()
    thread.join()
    exec("import torch\nfor _ in range(3):\n torch.ones(2).add_(1); torch.ones(2).add_(1)")


def log_of(directory: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[bytes, bytes, list[str]]:
    """Log the work; return the calls, the names, and the warnings."""
    (directory / "answers").mkdir(parents=True)
    (directory / "plan.json").write_text(json.dumps({"library": str(native.trail_path())}))
    warnings: list[str] = []
    agent: Any = SimpleNamespace(
        run=str(directory),
        journal=SimpleNamespace(identity="0"),
        warn=lambda text, _code: warnings.append(text),
        failed=lambda where, error: warnings.append(f"{where}: {error!r}"),
        attempt=lambda function, *arguments: function(*arguments),
        listeners=[],
    )
    log = CallLog(agent, {"steps": {"first": 0}, "operators": {}})
    calls = PytorchCalls(log, torch)
    with monkeypatch.context() as patches:
        patches.setattr(threading.Thread, "_bootstrap_inner", threading.Thread._bootstrap_inner)  # type: ignore[attr-defined]
        calls.begin()
        calls.watch(True)
        work()
        calls.watch(False)
    log._files.write()
    (path,) = (directory / "answers").glob("*.calls")
    return path.read_bytes(), path.with_suffix(".names").read_bytes(), warnings


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_the_compiled_module_changes_no_byte(describing: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    is_read: list[bool] = []

    def call_values(*arguments: Any) -> Any:
        read = describing.call_values(*arguments)
        is_read.append(read is not None)
        return read

    watched = SimpleNamespace(fold=describing.fold, stack_key=describing.stack_key, call_values=call_values)
    logs = []
    for number, module in enumerate([watched, None]):
        monkeypatch.setattr(private_api, "compiled", lambda *_, module=module: module)
        logs.append(log_of(tmp_path / str(number), monkeypatch))
    (calls, names, _), (plain_calls, plain_names, _) = logs
    assert names.splitlines() == plain_names.splitlines()
    lines = [json.loads(line) for line in names.splitlines()]
    operators = [line for line in lines if line["kind"] == "operator"]
    pairs = zip(CALL.iter_unpack(calls), CALL.iter_unpack(plain_calls), strict=True)
    assert [operators[left[0]] for left, right in pairs if left != right] == []
    assert logs[0] == logs[1]
    assert len(calls) // CALL.size > 500
    assert is_read.count(True) > 2 * is_read.count(False) > 0
    assert {"backward", "forward", "update"} <= {line.get("phase") for line in lines}
    assert {"m", "@other"} <= {line.get("name") for line in lines if line["kind"] == "thread"}
