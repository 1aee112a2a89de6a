"""Holds the random states of the start of a step.

Python and NumPy take up to 200 microseconds to say their states, which a small step has not: where the memory of their
generators is known, compiled code copies it, and it is made into what they take only when asked.
"""

from __future__ import annotations

import functools
import struct
import sys
from array import array

from ..core.signal_errors import pass_on
from ..pytorch import private_api
from ..trail_library import Words

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

    RandomReader = Callable[[], dict[str, Any]]  # gives the states that were held at one moment

_WORDS = struct.Struct("<625I")
_GAUSS = struct.Struct("<i4xd")  # of NumPy: whether there is a second normal number, and which
_VERSION = 3  # of what Python's generator gives


class RandomStates:
    """The states of Python's, NumPy's and PyTorch's global generators at one moment."""

    def __init__(self, torch: Any = None, compiled: Any = None) -> None:
        self._torch = torch
        self._compiled = compiled
        self._words = Words()
        self._gauss_offset: int | None = None  # in a RandomState of NumPy's, once it was looked for
        self._held: tuple[Any, dict[str, Any], Any] = (None, {}, None)  # compiled code's copies, states, PyTorch's

    def keep(self) -> None:
        """Hold the states as they are now."""
        compiled = self._compiled
        copies = compiled and compiled.random_states(self._words.known, self._gauss_offset or 0)
        states = self._asked() if copies is None else {}
        torch = self._torch
        if torch is not None and private_api.uses_cuda(torch):
            cuda = torch.cuda  # seeds and offsets, which the processor has
            devices = [] if cuda.is_current_stream_capturing() else cuda.default_generators
            states["torch.cuda"] = [generator.get_state() for generator in devices]
        self._held = copies, states, None if torch is None else torch.default_generator.get_state()

    def _asked(self) -> dict[str, Any]:
        """Ask Python and NumPy for their states, and learn where these lie."""
        held: dict[str, Any] = {}
        python = getattr(sys.modules.get("random"), "_inst", None)
        numpy = getattr(sys.modules.get("numpy.random.mtrand"), "_rand", None)  # None while it is being imported
        if python is not None:
            held["python"] = python.getstate()
        if numpy is not None:
            held["numpy"] = _asked(numpy)
        if self._compiled is not None:
            self._words.both()
            if self._gauss_offset is None and numpy is not None:
                self._gauss_offset = _gauss_offset(type(numpy))
        return held

    def kept(self) -> dict[str, Any]:
        """Return what `setstate`, `set_state` and `set_rng_state` take: of "python", "numpy", "torch", "torch.cuda"."""
        return self.taken()()

    def taken(self) -> RandomReader:
        """Return what gives the states that are held now, also after keep() was called again."""
        return functools.partial(_states, *self._held)


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
    """Return states with arrays for long tuples of numbers, as snapshots hold them."""
    if "python" not in states:
        return dict(states)
    version, words, following = states["python"]
    return {**states, "python": (version, array("I", words), following)}


def put_back(states: Mapping[str, Any]) -> None:
    """Put Python's and NumPy's generators to such states, as far as these have some."""
    module: Any = sys.modules.get("numpy.random")
    if "python" in states:
        version, words, following = states["python"]
        sys.modules["random"].setstate((version, tuple(map(int, words)), following))
    if "numpy" in states and module is not None:
        module.set_state(states["numpy"])


def _asked(state: Any) -> Any:
    """Ask a RandomState, without its warning where it has another generator than the usual one."""
    bits = getattr(state, "_bit_generator", state)
    is_usual = bits is state or type(bits).__name__ == "MT19937"
    return state.get_state() if is_usual else state.get_state(legacy=False)


def _gauss_offset(kind: Any) -> int:
    """Return where a RandomState holds its second normal number, proved by one of our own; 0: it is asked each time."""
    from ctypes import string_at

    try:
        mine = _own(kind)
        mine.standard_normal()
        offset = string_at(id(mine), kind.__basicsize__).find(_GAUSS.pack(1, mine.get_state()[4]))
        for _ in range(3):
            mine.standard_normal()
            if offset < 0 or _GAUSS.unpack(string_at(id(mine) + offset, _GAUSS.size)) != mine.get_state()[3:5]:
                return 0
    except Exception as error:  # another NumPy
        pass_on(error)
        return 0
    return offset


def _own(kind: Any) -> Any:
    """Return a RandomState of ours, made without a seeding call and without entropy: both are the training's."""
    module: Any = sys.modules.get("numpy.random.bit_generator")
    if module is None:  # before NumPy 1.17
        return kind(7)

    class Same(module.ISeedSequence):  # type: ignore[misc]
        def generate_state(self, words: int, dtype: Any = None) -> Any:
            return sys.modules["numpy"].ones(words, dtype or "uint32")

    return kind(sys.modules["numpy"].random.MT19937(Same()))
