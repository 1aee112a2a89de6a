"""Holds the random states of the start of a step: a copy of memory, made into what generators take only when asked.

Python, NumPy and PyTorch take 60 microseconds to say their states, which a small step has not. Where it is not known
where a generator's state lies, as it is no Mersenne Twister or another version's, it is asked all the same.
"""

from __future__ import annotations

import functools
import struct
import sys

from ..pytorch import private_api
from ..trail_library import WORDS, Words

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from ..trail_library import Library

    RandomReader = Callable[[], dict[str, Any]]  # gives the states that were held at one moment

_WORDS = struct.Struct("<625I")
_GAUSS = struct.Struct("<i4xd")  # of NumPy: whether there is a second normal number, and which
_VERSION = 3  # of what Python's generator gives


class _MemoryCopy:
    """Copies stretches of memory, one behind the other."""

    def __init__(self, library: Library | None, stretches: dict[str, tuple[int, int]]) -> None:
        self.places: dict[str, tuple[int, int]] = {}  # where in the room, and size
        self.room: Any = bytearray()
        self.arguments = 0, 0, 0  # of the library's function
        at = 0
        for name, (_, size) in stretches.items():
            self.places[name] = at, size
            at += size
        if stretches and library is not None:
            self._stretches, where = library.buffer(2 * len(stretches))  # which the library finds by their address
            self._stretches[:] = [word for stretch in stretches.values() for word in stretch]
            self.room, to = library.buffer(-(-at // 8))
            self.arguments = where, len(stretches), to


class RandomStates:
    """The states of Python's, NumPy's and PyTorch's global generators at one moment."""

    def __init__(self, library: Library | None, torch: Any = None, compiled: Any = None) -> None:
        self._library = library
        self._compiled: Any = None if compiled is None else compiled.keep_generators
        self._torch = torch
        self._words = Words()
        self._fields = _Fields()
        self._torch_place = 0 if library is None or torch is None else _place_in_torch(torch)
        self._seen: tuple[Any, Any, Any] = (None, None, None)  # generators of Python and NumPy
        self._memory = _MemoryCopy(None, {})
        self._wanted: tuple[Any, ...] | None = None  # for the compiled part: see its keep_generators()
        self._asked: dict[str, Callable[[], Any]] = {}
        self._known: dict[str, Any] = {}  # what was asked when it was kept
        self._next: Any = None  # the second normal number that Python's generator has ready

    def keep(self) -> None:
        """Hold the states as they are now."""
        following = NotImplemented if self._wanted is None else self._compiled(self._wanted)
        if following is NotImplemented:
            self._keep_by_library()
        else:
            self._next = following
        if self._torch is not None and private_api.uses_cuda(self._torch):
            self._known["torch.cuda"] = self._devices()

    def _keep_by_library(self) -> None:
        """The same where the compiled part is not there, or knows another generator."""
        module, numpy = sys.modules.get("random"), sys.modules.get("numpy.random.mtrand")
        python = None if module is None else module._inst
        state = None if numpy is None else getattr(numpy, "_rand", None)  # None while it is being imported
        bits = None if state is None else getattr(state, "_bit_generator", state)
        seen = self._seen
        if python is not seen[0] or state is not seen[1] or bits is not seen[2]:
            self._look(python, state, bits)
        if self._library is not None and self._memory.places:
            self._library.keep(*self._memory.arguments)
        if python is not None:
            self._next = python.gauss_next
        if self._asked:
            self._known = {name: ask() for name, ask in self._asked.items()}

    def kept(self) -> dict[str, Any]:
        """What `setstate`, `set_state` and `set_rng_state` take: of "python", "numpy", "torch", "torch.cuda"."""
        return self.taken()()

    def taken(self) -> RandomReader:
        """What gives the states that are held now, also after keep() was called again."""
        return functools.partial(
            self._states, dict(self._known), self._memory.places, bytes(self._memory.room), self._next
        )

    def _states(
        self, known: dict[str, Any], copied: dict[str, tuple[int, int]], room: bytes, following: Any
    ) -> dict[str, Any]:
        parts = {name: room[at : at + size] for name, (at, size) in copied.items()}
        states = dict(known)
        if "python" in parts:
            position, *words = _WORDS.unpack(parts["python"])
            states["python"] = (_VERSION, (*words, position), following)
        if "numpy" in parts:
            *words, position = _WORDS.unpack(parts["numpy"])
            key = sys.modules["numpy"].array(words, "uint32")
            states["numpy"] = ("MT19937", key, position, *_GAUSS.unpack(parts["gauss"]))
        if "torch" in parts:
            states["torch"] = self._torch.tensor(list(torch_state(parts["torch"])), dtype=self._torch.uint8)
        return states

    def _for_compiled(self, room: tuple[int, int, int]) -> tuple[Any, ...] | None:
        """By what it sees whether these generators are still meant: to ask for them takes longer than to copy them."""
        python, state, bits = self._seen
        pointer = 0 if state is bits else self._fields.generator(state)
        if state is not bits and not pointer:
            return None
        modules = [sys.modules.get(name) for name in ("random", "numpy.random.mtrand")]
        of_python, of_numpy = [None if module is None else vars(module) for module in modules]
        own = getattr(python, "__dict__", None)
        return (sys.modules, of_python, python, own, of_numpy, state, bits, pointer, *room)

    def _devices(self) -> list[Any]:
        """Seeds and offsets of GPUs, which the processor has."""
        cuda = self._torch.cuda
        return [] if cuda.is_current_stream_capturing() else [one.get_state() for one in cuda.default_generators]

    # Where the states lie

    def _look(self, python: Any, state: Any, bits: Any) -> None:
        """From now on these generators are meant."""
        self._seen, self._known, self._asked = (python, state, bits), {}, {}
        places: dict[str, tuple[int, int]] = {}
        words = (0, 0) if self._library is None else self._words.both()
        gauss = self._fields.gauss(state) if words[1] else 0
        if words[0]:
            places["python"] = words[0], WORDS
        elif python is not None:
            self._asked["python"] = python.getstate
        if gauss:
            places.update(numpy=(words[1], WORDS), gauss=(gauss, _GAUSS.size))
        elif state is not None:
            self._asked["numpy"] = _question(state, bits)
        if self._torch_place:
            places["torch"] = self._torch_place, _MEMORY.size
        elif self._torch is not None:
            self._asked["torch"] = self._torch.get_rng_state
        self._memory, self._wanted = _MemoryCopy(self._library, places), None
        if self._compiled is not None and places and not self._asked:
            self._wanted = self._for_compiled(self._memory.arguments)


class _Fields:
    """Where a RandomState of NumPy's holds its second normal number and its generator, proved by some of our own."""

    def __init__(self) -> None:
        self._offsets: tuple[int, int] | None = None

    def gauss(self, state: Any) -> int:
        """The address of the number; 0 where it is not known."""
        return self._address(state, 0)

    def generator(self, state: Any) -> int:
        """The address of the pointer to the generator; 0 where it is not known."""
        return self._address(state, 1)

    def _address(self, state: Any, field: int) -> int:
        if self._offsets is None:
            try:
                self._offsets = _gauss_offset(type(state)), _generator_offset(type(state))
            except Exception:  # another NumPy, which is asked each time
                self._offsets = 0, 0
        offset = self._offsets[field]
        return id(state) + offset if offset else 0


def _gauss_offset(kind: Any) -> int:
    mine = _own(kind)
    mine.standard_normal()
    offset = _memory(mine).find(_GAUSS.pack(1, mine.get_state()[4]))
    for _ in range(3):
        mine.standard_normal()
        if offset < 0 or _GAUSS.unpack(_memory(mine)[offset : offset + _GAUSS.size]) != mine.get_state()[3:5]:
            return 0
    return offset


def _generator_offset(kind: Any) -> int:
    mine, other = _own(kind), _own(kind)
    if not hasattr(mine, "_bit_generator"):  # before NumPy 1.17
        return 0
    offset = _memory(mine).find(struct.pack("P", id(mine._bit_generator)))
    pointer = struct.pack("P", id(other._bit_generator))
    return offset if offset > 0 and _memory(other).startswith(pointer, offset) else 0


def _memory(state: Any) -> bytes:
    from ctypes import string_at

    return string_at(id(state), type(state).__basicsize__)


def _own(kind: Any) -> Any:
    """A RandomState of ours, made without a seeding call and without entropy: both are the training's."""
    module: Any = sys.modules.get("numpy.random.bit_generator")
    if module is None:  # before NumPy 1.17
        return kind(7)

    class Same(module.ISeedSequence):  # type: ignore[misc]
        def generate_state(self, words: int, dtype: Any = None) -> Any:
            return sys.modules["numpy"].ones(words, dtype or "uint32")

    return kind(sys.modules["numpy"].random.MT19937(Same()))


def _question(state: Any, bits: Any) -> Callable[[], Any]:
    """Asks a RandomState, without its warning where it has another generator than the usual one."""
    if bits is state or type(bits).__name__ == "MT19937":
        return state.get_state  # type: ignore[no-any-return]
    return lambda: state.get_state(legacy=False)


# What PyTorch's get_state() gives (ATen's CPUGeneratorImplState), and what stands in a generator's memory, from so far
# in front of its words on: seed, numbers left, whether seeded, next place; behind them a float and a double to come.
_FRONT, _COUNT = 20, 624
_STATE = struct.Struct("<QiiQ624Qdddi4xf?3x")
_MEMORY = struct.Struct("<Qi?3xI624I4xf?3xd?7x")


def torch_state(memory: bytes) -> bytes:
    """The state that this memory of a generator stands for."""
    seed, left, seeded, position, *rest = _MEMORY.unpack(memory)
    single, has_single, double, has_double = rest[_COUNT:]
    normal = (0.0, double if has_double else 0.0, 0.0, has_double)
    singles = (single if has_single else 0.0, has_single)
    return _STATE.pack(seed, left, seeded, position, *rest[:_COUNT], *normal, *singles)


def _place_in_torch(torch: Any) -> int:
    """Where PyTorch's generator has its state, if its memory tells that after draws of all kinds; else 0."""
    from ctypes import string_at

    try:
        mine, single, double = torch.Generator(), torch.float32, torch.float64
        draws = (torch.rand, 1, single), (torch.randn, 1, single), (torch.randn, 16, single), (torch.randn, 1, double)
        for draw, count, dtype in draws * 2:
            draw(count, generator=mine, dtype=dtype)
            if torch_state(string_at(_words_of(mine), _MEMORY.size)) != bytes(mine.get_state().tolist()):
                return 0
        return _words_of(torch.default_generator)
    except Exception:  # another PyTorch, which is asked each time
        return 0


def _words_of(generator: Any) -> int:
    from ctypes import string_at

    words = _STATE.unpack(bytes(generator.get_state().tolist()))[4 : 4 + _COUNT]
    found = string_at(private_api.address(generator), 256 + 4 * _COUNT).find(struct.pack("<%dI" % _COUNT, *words))
    if not _FRONT <= found <= 256:
        raise ValueError("not found")
    return private_api.address(generator) + found - _FRONT
