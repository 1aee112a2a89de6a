"""The states of generators come out of their log as they were put in, and are put back so that they draw the same."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch

from reprokit.agent.capture.random_states import RandomStates, put_back_packed
from reprokit.agent.state.generator_log import GeneratorLog, states_in

TOO_LARGE = b"\x03\0\0\0\xff\xff\xff\xff"


def test_generators_draw_from_a_log_what_they_drew() -> None:
    states, log, data = RandomStates(torch), GeneratorLog(), b""
    drawn: list[tuple[float, list[float], list[float]]] = []
    for count in (0, 1, 1, 700, 3, 0, 5000):
        random.gauss(0, 1)
        np.random.standard_normal(count)
        torch.rand(count)
        states.keep()
        data += log.record(states.packed(), is_skipped=len(drawn) == 2)
        drawn.append((random.gauss(0, 1), np.random.standard_normal(3).tolist(), torch.randn(3).tolist()))
    assert len(data) < 7 * 3 * 2600
    for (read, is_skipped), expected in zip(states_in(data), drawn, strict=True):
        assert is_skipped == (expected is drawn[2])
        put_back_packed(read, torch)
        assert (random.gauss(0, 1), np.random.standard_normal(3).tolist(), torch.randn(3).tolist()) == expected


def test_a_log_that_is_cut_or_altered_is_refused() -> None:
    states = RandomStates(torch)
    states.keep()
    data = GeneratorLog().record(states.packed())
    for damaged in (
        data[:-1],
        data[:3],
        b"\x01" + data[1:],
        b"\x07" + data[1:],
        b"\x04\x04" + data,
        b"\x03\0\0\0\xff\xff\xff\xff" + data,
    ):
        with pytest.raises(ValueError, match="the log of the generators is"):
            list(states_in(damaged))
    with pytest.raises(ValueError, match="no state of a generator"):
        put_back_packed({"python": b"short"}, torch)
