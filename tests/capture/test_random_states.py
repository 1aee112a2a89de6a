"""The random states of a step's start: kept from memory or asked, they bring the same numbers again."""

from __future__ import annotations

import random
import struct
from typing import Any

import pytest

from reprokit.agent.capture import random_states
from reprokit.agent.capture.random_states import RandomStates
from reprokit.agent.core import native_module
from reprokit.agent.core import trail_library as trail
from reprokit.core.native import trail_path

pytestmark = pytest.mark.torch
COMPILED = native_module.load(str(trail_path()))


@pytest.fixture(params=["by compiled code", "by Python"])
def compiled(request: pytest.FixtureRequest) -> Any:
    """What copies the states."""
    assert COMPILED is not None
    return COMPILED if request.param == "by compiled code" else None


def draw() -> list[Any]:
    """Numbers of all kinds that leave something behind."""
    import numpy
    import torch

    numbers = [random.random(), random.gauss(0, 1), numpy.random.rand(), numpy.random.standard_normal()]
    return [*numbers, torch.rand(3).tolist(), torch.randn(1).tolist(), torch.randn(1, dtype=torch.float64).tolist()]


@pytest.mark.parametrize("places_are_known", [True, False])
def test_states_that_were_kept_bring_the_same_numbers_again(
    monkeypatch: pytest.MonkeyPatch, places_are_known: bool, compiled: Any
) -> None:
    import numpy
    import torch

    if not places_are_known:
        monkeypatch.setattr(trail.GeneratorAddresses, "both", lambda words: (0, 0))
    states = RandomStates(torch, compiled)
    for step in range(8):
        draw()
        if step == 5:
            numpy.random.seed(3)
            random.seed(3)
            torch.manual_seed(3)
        states.keep()
        expected = [draw() for _ in range(step)]
        kept = states.kept()
        assert set(kept) == {"python", "numpy", "torch"}
        random.setstate(kept["python"])
        numpy.random.set_state(kept["numpy"])
        torch.set_rng_state(kept["torch"])
        assert [draw() for _ in range(step)] == expected


def test_copies_are_made_of_memory_where_generators_are_the_usual_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    states = RandomStates(None, COMPILED)
    states.keep()
    monkeypatch.setattr(random_states, "generator_entries", None)
    monkeypatch.setattr(random._inst, "getstate", None)
    states.keep()
    assert set(states.kept()) == {"python", "numpy"}


def test_states_with_the_next_word_at_the_same_place_are_kept_anew(compiled: Any) -> None:
    import numpy
    import torch

    states, words, places = RandomStates(torch, compiled), 624, set()
    random.seed(1)
    numpy.random.seed(1)
    torch.manual_seed(1)
    for _ in range(3):
        random.getrandbits(32 * words)
        numpy.random.bytes(4 * words)
        torch.randint(0, 9, (words,))
        states.keep()
        kept: Any = states.kept()
        state: Any = numpy.random.get_state()
        places.add((kept["python"][1][-1], kept["numpy"][2]))
        assert kept["python"] == random.getstate()
        assert kept["numpy"][1].tolist() == state[1].tolist()
        assert kept["torch"].tolist() == torch.get_rng_state().tolist()
    assert len(places) == 1


def test_another_generator_of_numpys_is_asked_instead(monkeypatch: pytest.MonkeyPatch, compiled: Any) -> None:
    import numpy

    states = RandomStates(None, compiled)
    states.keep()
    other = numpy.random.RandomState(numpy.random.PCG64(1))
    monkeypatch.setattr(numpy.random.mtrand, "_rand", other)
    states.keep()
    expected = other.random_sample(3).tolist()
    kept = states.kept()
    assert kept["numpy"]["bit_generator"] == "PCG64"
    other.set_state(kept["numpy"])
    assert other.random_sample(3).tolist() == expected
    assert struct.calcsize("<625I") == trail.WORDS
    random.setstate(kept["python"])


def test_states_are_those_of_the_generator_that_is_there(monkeypatch: pytest.MonkeyPatch, compiled: Any) -> None:
    import numpy
    import torch

    states = RandomStates(torch, compiled)
    states.keep()
    random.gauss(0, 1)
    states.keep()
    assert states.kept()["python"] == random.getstate()
    monkeypatch.setattr(random, "_inst", random.Random(3))
    monkeypatch.setattr(numpy.random.mtrand, "_rand", numpy.random.RandomState(4))
    state: Any = numpy.random.mtrand._rand.get_state()
    expected = random._inst.getstate(), state[1].tolist()
    states.keep()
    kept: Any = states.kept()
    assert (kept["python"], kept["numpy"][1].tolist()) == expected


def test_a_generator_that_numpy_was_given_is_noticed(compiled: Any) -> None:
    import torch
    from numpy import random as numpys

    numpy_random: Any = numpys
    before = numpy_random.get_bit_generator()
    states = RandomStates(torch, compiled)
    states.keep()
    try:
        numpy_random.set_bit_generator(numpy_random.MT19937(5))
        states.keep()
        assert states.kept()["numpy"][1].tolist() == numpy_random.get_state()[1].tolist()
        numpy_random.set_bit_generator(numpy_random.PCG64(5))
        states.keep()
        assert states.kept()["numpy"] == numpy_random.get_state(legacy=False)
    finally:
        numpy_random.set_bit_generator(before)


def test_what_is_kept_of_them_is_a_copy(compiled: Any) -> None:
    import torch

    states = RandomStates(torch, compiled)
    states.keep()
    before = random.getstate(), torch.get_rng_state().tolist()
    random.random()
    torch.rand(700)
    kept = states.kept()
    assert (kept["python"], kept["torch"].tolist()) == before
