"""A training's state: digests of generators change with each draw only, and each entry is put back."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from reprokit.agent.capture.torch_state import put_random
from reprokit.agent.core.state_entries import StateEntry, StateKind, generator_state, put_generator
from reprokit.agent.pytorch.state import Modules
from reprokit.agent.pytorch.training_state import TrainingObjects
from reprokit.agent.state.answers import state_digest
from reprokit.agent.state.pytorch_view import TrainingView

python, legacy = random.Random(1), np.random.RandomState(1)
others = [np.random.Generator(kind(1)) for kind in (np.random.PCG64, np.random.Philox)]
draws = [0]
GENERATORS = {StateKind.PYTHON, StateKind.NUMPY, StateKind.TORCH, StateKind.CUDA, StateKind.LOADER}


@pytest.mark.parametrize(
    ("state", "draw"),
    [
        pytest.param(python.getstate, python.random, id="Python"),
        pytest.param(python.getstate, lambda: python.gauss(0, 1), id="Python, second normal number cached"),
        pytest.param(legacy.get_state, legacy.rand, id="NumPy"),
        *(
            pytest.param(lambda bits=bits.bit_generator: bits.state, bits.random, id=type(bits.bit_generator).__name__)
            for bits in others
        ),
        pytest.param(lambda: (7, [np.array([[draws]])]), lambda: draws.append(0), id="nested arrays"),
    ],
)
def test_a_draw_changes_the_digest(state: Callable[[], Any], draw: Callable[[], object]) -> None:
    before = state_digest(state())
    assert state_digest(state()) == before
    draw()
    assert state_digest(state()) != before


def test_equal_states_have_the_digest_however_they_were_made() -> None:
    name = "".join(["MT", "19937"])  # not interned, and with a second reference
    alike = [("MT19937", np.arange(3), (1, 2**40, -1), 0.5, None), (name, np.arange(3), (1, 2**40, -1), 0.5, None)]
    assert state_digest(alike[0]) == state_digest(alike[1])


@pytest.mark.torch
def test_a_draw_changes_the_digest_of_pytorch() -> None:
    import torch

    generator = torch.Generator()
    before = state_digest(generator.get_state())
    assert state_digest(generator.get_state()) == before
    torch.rand(1, generator=generator)
    assert state_digest(generator.get_state()) != before


def text_of(value: Any) -> str:
    """All that a value holds, as a text."""
    import torch

    if isinstance(value, torch.Tensor):
        return repr(value.tolist())
    if isinstance(value, dict):
        return repr({key: text_of(part) for key, part in value.items()})
    return repr(value)


@pytest.mark.torch
def test_each_entry_of_a_state_is_read_and_put_back() -> None:
    import torch

    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2), torch.nn.Dropout(0.5))
    modules = Modules()
    modules.search(torch.nn.Module)
    objects, alone = TrainingObjects(lambda: modules), torch.nn.Parameter(torch.ones(2))
    optimizer = torch.optim.Adam([{"params": model.parameters()}, {"params": [alone], "lr": 0.1}])
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
    objects.optimizers.add(optimizer)
    objects.schedules.add(schedule)

    def step() -> None:
        model(torch.rand(4, 2)).sum().mul(alone.sum()).backward()
        optimizer.step()
        schedule.step()

    def entries() -> list[StateEntry]:
        return list(objects.entries(objects.names(), {}))

    step()
    kept = {(entry.kind, entry.name): copy.deepcopy(entry.read()) for entry in entries()}
    assert {kind for kind, _ in kept} == {*StateKind} - GENERATORS - {
        StateKind.OTHERS, StateKind.METRICS, StateKind.SCALER, StateKind.SEEDS, StateKind.TENSORFLOW,
        StateKind.VARIABLES, StateKind.DATA,
    }  # fmt: skip
    assert (StateKind.OPTIMIZER, "optimizer#0.param_groups.1.params.0") in kept
    model[2].p, alone.requires_grad = 0.25, False
    step()
    changed = {entry.kind for entry in entries() if text_of(entry.read()) != text_of(kept[entry.kind, entry.name])}
    assert changed == {kind for kind, _ in kept}
    for entry in entries():
        entry.put_back(kept[entry.kind, entry.name])
    assert {(entry.kind, entry.name): text_of(entry.read()) for entry in entries()} == {
        place: text_of(value) for place, value in kept.items()
    }


@pytest.mark.torch
def test_each_generator_is_an_entry_that_is_read_and_put_back() -> None:
    import torch

    view = TrainingView(torch, Modules)
    reader: Any = SimpleNamespace(value=lambda node: node)
    own = torch.Generator().manual_seed(1)
    view.loader_began(SimpleNamespace(loader=SimpleNamespace(generator=own)))  # type: ignore[arg-type]

    def draws() -> list[float]:
        return [random.random(), float(np.random.rand()), torch.rand(1).item(), torch.rand(1, generator=own).item()]

    entries, moment = view.generators(), view.states()
    assert {entry.kind for entry in entries} == GENERATORS
    now = {entry.name: entry.read() for entry in entries}
    before = draws()
    assert {*moment()} >= {*now} - {"torch.cuda"}
    for states in (moment(), now):
        put_random(entries, states, reader)
        assert draws() == before
    put_random([entry for entry in entries if entry.name == "numpy"], now, reader)
    assert [after == first for after, first in zip(draws(), before, strict=True)] == [False, True, False, False]


@pytest.mark.parametrize(
    "generator",
    [
        random.Random(3),
        np.random.RandomState(3),
        type("RandomState", (np.random.RandomState,), {"__module__": "mtrand"})(3),
        np.random.RandomState(np.random.PCG64(3)),
        *(np.random.Generator(kind(3)) for kind in (np.random.PCG64, np.random.MT19937, np.random.SFC64)),
    ],
    ids=["Python", "legacy", "before NumPy 1.17", "legacy PCG64", "PCG64", "MT19937", "SFC64"],
)
def test_generators_of_scripts_are_read_and_put_back_by_the_same_functions(generator: Any) -> None:
    state = generator_state(generator)
    before = [float(generator.random()) for _ in range(3)]
    put_generator(generator, state)
    assert [float(generator.random()) for _ in range(3)] == before


def test_other_objects_are_no_generators() -> None:
    assert [generator_state(each) for each in (random, np.random, random.SystemRandom(), 1)] == [None] * 4
