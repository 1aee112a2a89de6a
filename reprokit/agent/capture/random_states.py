"""Saves the random states at the start of a step.

Python and NumPy take up to 200 microseconds to return their states, too much for a small step. If the memory of their
generators is known, compiled code copies it, and it is converted only when the states are needed.
"""

from __future__ import annotations

import functools
import struct
import sys
from array import array

from ..core.signal_errors import pass_on
from ..core.trail_library import GeneratorAddresses
from ..pytorch import private_api

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

    RandomReader = Callable[[], dict[str, Any]]  # returns the states saved at one moment

_WORDS = struct.Struct("<625I")
_GAUSS = struct.Struct("<i4xd")  # of NumPy: whether a second normal number is cached, and its value
_VERSION = 3  # of the state of Python's generator


class RandomStates:
    """The saved states of Python's, NumPy's and PyTorch's global generators."""

    def __init__(self, torch: Any = None, compiled: Any = None) -> None:
        self._torch = torch
        self._compiled = compiled
        self._words = GeneratorAddresses()
        self._gauss_offset: int | None = None  # of _GAUSS in a RandomState of NumPy; 0: unknown; None: not searched yet
        self._saved: tuple[Any, dict[str, Any], Any] = (None, {}, None)  # compiled code's copies, states, PyTorch's

    def keep(self) -> None:
        """Save the current states."""
        compiled = self._compiled
        copies = compiled and compiled.random_states(self._words.known, self._gauss_offset or 0)
        states = self._states_by_call() if copies is None else {}
        torch = self._torch
        if torch is not None and private_api.uses_cuda(torch):
            cuda = torch.cuda  # seeds and offsets, which lie in host memory
            devices = [] if cuda.is_current_stream_capturing() else cuda.default_generators
            states["torch.cuda"] = [generator.get_state() for generator in devices]
        self._saved = copies, states, None if torch is None else torch.default_generator.get_state()

    def _states_by_call(self) -> dict[str, Any]:
        """Return the states that Python and NumPy report, and find out where they lie in memory."""
        states: dict[str, Any] = {}
        python = getattr(sys.modules.get("random"), "_inst", None)
        numpy = getattr(sys.modules.get("numpy.random.mtrand"), "_rand", None)  # None while it is being imported
        if python is not None:
            states["python"] = python.getstate()
        if numpy is not None:
            states["numpy"] = _generator_state(numpy)
        if self._compiled is not None:
            self._words.both()
            if self._gauss_offset is None and numpy is not None:
                self._gauss_offset = _gauss_offset(type(numpy))
        return states

    def kept(self) -> dict[str, Any]:
        """Return the saved states of "python", "numpy", "torch" and "torch.cuda", as their setters take them."""
        return self.taken()()

    def taken(self) -> RandomReader:
        """Return a function that returns the states saved now, even after another keep()."""
        return functools.partial(_states, *self._saved)


def _states(copies: Any, states: dict[str, Any], torch: Any) -> dict[str, Any]:
    states = dict(states)
    if copies is not None:
        python, following, numpy, gauss = copies
        position, *words = _WORDS.unpack(python)
        states["python"] = _VERSION, (*words, position), following
        if numpy is not None:
            *words, position = _WORDS.unpack(numpy)
            array_of = sys.modules["numpy"].array
            states["numpy"] = ("MT19937", array_of(words, "uint32"), position, *_GAUSS.unpack(gauss))
    return states if torch is None else {**states, "torch": torch}


def as_values(states: Mapping[str, Any]) -> dict[str, Any]:
    """Return states with arrays in place of long tuples of numbers, for snapshots."""
    if "python" not in states:
        return dict(states)
    version, words, following = states["python"]
    return {**states, "python": (version, array("I", words), following)}


def put_back(states: Mapping[str, Any]) -> None:
    """Restore the states of Python's and NumPy's generators, as far as ``states`` has them."""
    module: Any = sys.modules.get("numpy.random")
    if "python" in states:
        version, words, following = states["python"]
        sys.modules["random"].setstate((version, tuple(map(int, words)), following))
    if "numpy" in states and module is not None:
        module.set_state(states["numpy"])


def _generator_state(state: Any) -> Any:
    """Return the state of a RandomState, without its warning about unusual bit generators."""
    bits = getattr(state, "_bit_generator", state)
    is_usual = bits is state or type(bits).__name__ == "MT19937"
    return state.get_state() if is_usual else state.get_state(legacy=False)


def _gauss_offset(kind: Any) -> int:
    """Return the offset of _GAUSS in a RandomState, verified with a private one; 0 if it is not found."""
    from ctypes import string_at

    try:
        generator = _private_generator(kind)
        generator.standard_normal()
        offset = string_at(id(generator), kind.__basicsize__).find(_GAUSS.pack(1, generator.get_state()[4]))
        for _ in range(3):
            generator.standard_normal()
            if (
                offset < 0
                or _GAUSS.unpack(string_at(id(generator) + offset, _GAUSS.size)) != generator.get_state()[3:5]
            ):
                return 0
    except Exception as error:  # an unknown version of NumPy
        pass_on(error)
        return 0
    return offset


def _private_generator(kind: Any) -> Any:
    """Return a private RandomState, made without a seeding call and without entropy, which a recording would see."""
    module: Any = sys.modules.get("numpy.random.bit_generator")
    if module is None:  # before NumPy 1.17
        return kind(7)

    class ConstantSeed(module.ISeedSequence):  # type: ignore[misc]
        def generate_state(self, words: int, dtype: Any = None) -> Any:
            return sys.modules["numpy"].ones(words, dtype or "uint32")

    return kind(sys.modules["numpy"].random.MT19937(ConstantSeed()))
