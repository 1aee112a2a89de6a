"""The compiled step of the trail: it says what the step in Python says, or leaves it to that one."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from reprokit.agent.core import native_module
from reprokit.agent.core import trail_library as library
from reprokit.agent.core.agent import Agent
from reprokit.agent.core.journal import Journal
from reprokit.agent.events.steps import BatchFetched, Events, LossComputed, TensorsChange, UpdateDone, UpdateDue
from reprokit.core.native import trail_path
from reprokit.run_files.trails import Trail, TrailStep
from tests.capture.test_compiled import describing

__all__ = ["describing"]
pytestmark = pytest.mark.torch


class Steps:
    """A training whose steps are told to the trail by hand."""

    def __init__(self, directory: Path, module: Any) -> None:
        import torch

        from reprokit.agent.pytorch.state import TrainingRecords
        from reprokit.agent.pytorch.trail import StepTrail

        directory.mkdir()
        torch.manual_seed(3)
        random.seed(3)
        self.directory, events = directory, Events()
        agent = Agent(str(directory), Journal(str(directory), "0"))
        loaded = library.Library(str(trail_path()))
        self.trail = StepTrail(agent, events, loaded, torch, module)
        events.add(self.trail)
        self.model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.BatchNorm1d(3), torch.nn.Linear(3, 2))
        self.records = TrainingRecords(agent, events, torch)
        self.records.modules.registered(self.model, "", None)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.records.add(self.optimizer)
        self.taken: list[bool] = []
        if module is not None:
            self.trail._reader.step = self._noting(self.trail._reader.step)

    def _noting(self, step: Callable[..., Any]) -> Callable[..., Any]:
        def noted(*arguments: Any) -> Any:
            done = step(*arguments)
            self.taken.append(done is not None)
            return done

        return noted

    def step(self, batch: list[Any], change: Callable[[Any], object] = lambda model: None) -> None:
        """One step on a batch; the change comes before the update."""
        import torch

        handlers = self.trail.handlers()
        handlers[BatchFetched](BatchFetched(batch, None))
        self.optimizer.zero_grad()
        loss = self.model(torch.ones(5, 4)).sum()
        handlers[LossComputed](LossComputed(loss, True))
        loss.backward()
        change(self.model)
        handlers[TensorsChange](TensorsChange())
        handlers[UpdateDue](UpdateDue(self.records.of(self.optimizer)))
        with torch.no_grad():
            for parameter in self.model.parameters():
                parameter.mul_(0.5)
        handlers[UpdateDone](UpdateDone(self.records.stepped(self.optimizer)))

    def written(self) -> list[TrailStep]:
        """The steps in the trail."""
        self.trail.finish()
        (path,) = (self.directory / "trail").iterdir()
        (series,) = Trail(path, os.open(path, os.O_RDONLY)).series
        return list(series.steps())


def without_gradient(model: Any) -> None:
    model[0].bias.grad = None


def transposed_gradient(model: Any) -> None:
    model[2].weight.grad = model[2].weight.grad.t().contiguous().t()


def sparse_gradient(model: Any) -> None:
    model[2].weight.grad = model[2].weight.grad.to_sparse()


def moved(model: Any) -> None:
    model[2].weight.data = model[2].weight.data.clone()


def drawn(_model: Any) -> None:
    import torch

    torch.rand(1)
    random.random()


def another_generator(_model: Any) -> None:
    random._inst = random.Random(5)


def train(directory: Path, module: Any) -> Steps:
    """Steps of all kinds."""
    import torch

    steps = Steps(directory, module)
    x, y = torch.arange(20.0).view(5, 4), torch.arange(5)
    flag = torch.tensor([1 + 2j]).conj().imag
    assert flag.is_neg()
    quantized = torch.quantize_per_tensor(x, 0.1, 0, torch.qint8)
    for change in (lambda model: None, lambda model: None, drawn, without_gradient, transposed_gradient):
        steps.step([x, y], change)
    for change in (sparse_gradient, moved, lambda model: None, another_generator, lambda model: None):
        steps.step([x, y], change)
    for batch in ([x.t()], [flag], [x.to(torch.complex64)], [quantized], [x.to_sparse()], [x[1:], x[:0], y[0]]):
        steps.step(batch)
    return steps


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor")
def test_a_step_is_what_it_is_where_nothing_is_compiled(describing: Any, tmp_path: Path) -> None:
    generator = random._inst
    try:
        by_python = train(tmp_path / "python", None)
        random._inst = generator
        in_one_call = train(tmp_path / "compiled", describing)
    finally:
        random._inst = generator
    assert in_one_call.written() == by_python.written()
    changes = [False, True, True, True, False, False, False, True, False, True]
    assert in_one_call.taken == [*changes, *[True] * 6]


def test_a_step_whose_tensors_lie_on_a_device_has_its_batch_at_once(describing: Any, tmp_path: Path) -> None:
    import torch

    steps = Steps(tmp_path / "run", describing)
    steps.step([torch.ones(3)])
    (record,) = steps.records.optimizers.values()
    state, reader = steps.trail._thread.facts, steps.trail._reader
    assert reader.batch(state.address, [torch.ones(3)]) is not None
    known = steps.trail._random.words.known, record.trail.series.native_state, None, state.address
    done = reader.step(*known, 0, library.LATER, *[0] * 3)
    assert not any(state.words)
    assert done == (0, 0, [])
    first, second = steps.written()
    assert (second.batch, second.gradients, second.loss) == (first.batch, None, None)


def test_changes_are_counted_together() -> None:
    import torch

    module = native_module.load(str(trail_path()))
    tensors = [torch.ones(2), torch.ones(3)]
    tensors[0].add_(1)
    tensors[1].add_(1).add_(1)
    assert module.changes(tensors) == sum(tensor._version for tensor in tensors) == 3
    with pytest.raises(AttributeError):
        module.changes([5])
    with pytest.raises(TypeError):
        module.trail_step((), ())
    with pytest.raises(TypeError):
        module.trail_batch((), 0, [])
    with pytest.raises(TypeError):
        module.trail_loss((), 0, None)
    with pytest.raises(TypeError):
        module.trail_input(0, None, [])
    assert module.same(tensors, list(tensors))
    assert not module.same(tensors, tensors[:1])
    assert not module.same(tensors, tensors[::-1])


def test_the_number_of_a_loss_is_what_the_loss_says(describing: Any) -> None:
    import torch

    from reprokit.agent.pytorch import tensors

    describing.use_exchange(torch.Tensor)
    values = torch.tensor([0.1, float("nan"), -5e-324, float("inf")], dtype=torch.float64)
    losses = [part.to(dtype) for part in values for dtype in (torch.float32, torch.float64)]
    losses += [torch.ones(1, 1), torch.ones(3, requires_grad=True).sum(), values[1:2]]
    assert [repr(describing.number(one)) for one in losses] == [repr(tensors.number(one)) for one in losses]
    others = [
        torch.ones(2),
        torch.ones(()).half(),
        torch.tensor(1),
        torch.ones(1).to_sparse(),
        torch.ones((), device="meta"),
    ]
    others += [torch.tensor(1 + 2j).conj().imag, torch.nn.Parameter(torch.ones(())), torch.tensor(1j), 5, None]
    assert [describing.number(one) for one in others] == [None] * len(others)
    seen: list[Any] = []

    def told(x: Any) -> Any:
        seen.append(describing.number(x))
        return x

    torch.func.vmap(told)(torch.ones(3))
    assert seen == [None]
