"""The digest of a generator's state changes with each draw, and with nothing else."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from reprokit.agent.state.training_state import state_digest

python, legacy = random.Random(1), np.random.RandomState(1)
others = [np.random.Generator(kind(1)) for kind in (np.random.PCG64, np.random.Philox)]
draws = [0]


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
