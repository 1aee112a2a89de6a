"""The digest of a generator's state changes with each draw, and with nothing else."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from reprokit.agent.questions.training_state import state_digest

python, legacy = random.Random(1), np.random.RandomState(1)
draws = [0]


@pytest.mark.parametrize(
    ("state", "draw"),
    [
        pytest.param(python.getstate, python.random, id="Python"),
        pytest.param(python.getstate, lambda: python.gauss(0, 1), id="Python, second normal number cached"),
        pytest.param(legacy.get_state, legacy.rand, id="NumPy"),
        pytest.param(lambda: (7, [np.array([[draws]])]), lambda: draws.append(0), id="nested arrays"),
    ],
)
def test_a_draw_changes_the_digest(state: Callable[[], Any], draw: Callable[[], object]) -> None:
    before = state_digest(state())
    assert state_digest(state()) == before
    draw()
    assert state_digest(state()) != before


@pytest.mark.torch
def test_a_draw_changes_the_digest_of_pytorch() -> None:
    import torch

    generator = torch.Generator()
    before = state_digest(generator.get_state())
    assert state_digest(generator.get_state()) == before
    torch.rand(1, generator=generator)
    assert state_digest(generator.get_state()) != before
