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
from ..core.state_entries import StateEntry, StateKind, generator_entry, put_back, values_of
from ..core.trail_library import GeneratorAddresses
from ..pytorch import generators
from ..pytorch.private_api import uses_cuda

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any

    RandomReader = Callable[[], dict[str, Any]]  # returns the states saved at one moment
    Saved = tuple[Any, dict[str, Any], Any]  # compiled code's copies, states by name, and PyTorch's

_WORDS = struct.Struct("<625I")
_GAUSS = struct.Struct("<i4xd")  # of NumPy: whether a second normal number is cached, and its value
_VERSION = 3  # of the state of Python's generator
_FOLLOWING = struct.Struct("<?d")  # of Python: whether a second normal number is cached, and its value
_TORCH = slice(24, 24 + 624 * 8)  # of PyTorch's state: words of 32 bits, each in 64
_DEVICE = 16  # bytes of the state of a GPU's generator


class RandomStates:
    """The saved states of Python's, NumPy's and PyTorch's global generators."""

    def __init__(self, torch: Any = None, compiled: Any = None) -> None:
        self._torch = torch
        self._compiled = compiled
        self._words = GeneratorAddresses()
        self._gauss_offset: int | None = None  # of _GAUSS in a RandomState of NumPy; 0: unknown; None: not searched yet
        self.saved: Saved = (None, {}, None)
        self._reader: RandomReader | None = None  # of these
        self._torch_state = None if torch is None else torch.default_generator.get_state
        memory = None if torch is None or compiled is None else generators.default_memory(torch)
        self._torch_memory = (0, 0) if memory is None else (generators.address_of(memory), len(memory))
        self._sees_all = torch is None or memory is not None  # all generators' memory, GPUs' aside

    def keep(self) -> RandomReader:
        """Save the current states; return a function that returns these, even after another keep()."""
        saved = self.current()
        if saved is not self.saved or self._reader is None:
            self.saved, self._reader = saved, functools.partial(_states, *saved)
        return self._reader

    def hold(self, saved: Saved) -> None:
        """Take states as the saved ones."""
        self.saved, self._reader = saved, None

    def current(self) -> Saved:
        """Return the current states, as they are saved: the very ones that are, if nothing was drawn since."""
        compiled, torch, saved = self._compiled, self._torch, self.saved
        place = self._words.known, self._gauss_offset or 0, self._torch_memory, saved[0]
        copies = None if compiled is None else compiled.random_states(*place)
        has_devices = torch is not None and uses_cuda(torch)
        if copies is not None and copies is saved[0] and self._sees_all and not has_devices:
            return saved
        states = self._states_by_call() if copies is None else {}
        if has_devices:
            states["torch.cuda"] = _device_states(torch)
        return copies, states, None if self._torch_state is None else self._torch_state()

    def _states_by_call(self) -> dict[str, Any]:
        """Return the states that Python and NumPy report, and find out where they lie in memory."""
        states = values_of(generator_entries())
        if self._compiled is not None:
            self._words.both()
            if self._gauss_offset is None and "numpy" in states:
                self._gauss_offset = _gauss_offset(sys.modules["numpy.random.mtrand"].RandomState)
        return states

    def kept(self) -> dict[str, Any]:
        """Return the saved states of "python", "numpy", "torch" and "torch.cuda", as their setters take them."""
        return _states(*self.saved)

    def packed(self) -> dict[str, bytes]:
        """Return the saved states as bytes, of which a few change while their generator goes through its numbers."""
        copies, states, torch = self.saved
        packed: dict[str, bytes] = {}
        if copies is not None:
            python, following, numpy, gauss, _ = copies
            packed["python"] = python + _packed_following(following)
            packed.update({} if numpy is None else {"numpy": numpy + gauss})
        if "python" in states:
            _, (*words, position), following = states["python"]
            packed["python"] = _WORDS.pack(position, *words) + _packed_following(following)
        if isinstance(states.get("numpy"), tuple):
            _, words, position, *cached = states["numpy"]
            packed["numpy"] = _WORDS.pack(*words.tolist(), position) + _GAUSS.pack(*cached)
        if torch is not None:
            packed["torch"] = _packed_torch(_bytes_of(torch))
        if states.get("torch.cuda"):
            packed["torch.cuda"] = b"".join(map(_bytes_of, states["torch.cuda"]))
        return packed


def _states(copies: Any, states: dict[str, Any], torch: Any) -> dict[str, Any]:
    states = dict(states)
    if copies is not None:
        python, following, numpy, gauss, _ = copies
        position, *words = _WORDS.unpack(python)
        states["python"] = _VERSION, (*words, position), following
        if numpy is not None:
            *words, position = _WORDS.unpack(numpy)
            array_of = sys.modules["numpy"].array
            states["numpy"] = ("MT19937", array_of(words, "uint32"), position, *_GAUSS.unpack(gauss))
    return states if torch is None else {**states, "torch": torch}


def _packed_following(following: float | None) -> bytes:
    return _FOLLOWING.pack(following is not None, following or 0.0)


def _packed_torch(state: bytes) -> bytes:
    """Return the state of a Mersenne Twister without the upper halves of its words, which are zero."""
    words = memoryview(state[_TORCH]).cast("I") if len(state) > _TORCH.stop else memoryview(b"")
    has_halves = bool(words) and not words[1::2].tobytes().strip(b"\0")
    return state[: _TORCH.start] + words[::2].tobytes() + state[_TORCH.stop :] if has_halves else state


def _unpacked_torch(packed: bytes) -> bytes:
    stop = _TORCH.start + 624 * 4
    if not stop < len(packed) < _TORCH.stop:
        return packed
    return packed[: _TORCH.start] + array("Q", array("I", packed[_TORCH.start : stop])).tobytes() + packed[stop:]


def _bytes_of(state: Any) -> bytes:
    from ctypes import string_at

    return string_at(state.data_ptr(), state.numel())


def generator_entries(torch: Any = None) -> list[StateEntry]:
    """Return the entries of the generators that all of this process draws from, as far as they are imported."""
    owners = (
        (StateKind.PYTHON, "python", getattr(sys.modules.get("random"), "_inst", None)),
        (StateKind.NUMPY, "numpy", getattr(sys.modules.get("numpy.random.mtrand"), "_rand", None)),
        (StateKind.TORCH, "torch", getattr(torch, "default_generator", None)),
    )
    entries = [generator_entry(*owner) for owner in owners if owner[2] is not None]  # None: it is being imported
    if torch is not None:
        read, restore = functools.partial(_used_devices, torch), functools.partial(_put_devices, torch)
        entries.append(StateEntry(StateKind.CUDA, "torch.cuda", read, restore))
    return entries


def _device_states(torch: Any) -> list[Any]:
    """Return the states of GPUs, seeds and offsets that lie in host memory; none while a graph is captured."""
    generators = [] if torch.cuda.is_current_stream_capturing() else torch.cuda.default_generators
    return list(map(torch.Generator.get_state, generators))


def _used_devices(torch: Any) -> list[Any] | None:
    return _device_states(torch) if uses_cuda(torch) else None


def _put_devices(torch: Any, states: Sequence[Any]) -> None:
    """Restore the states of GPUs if there are at least as many."""
    if states and torch.cuda.is_available() and torch.cuda.device_count() >= len(states):
        torch.cuda.init()
        for generator, state in zip(torch.cuda.default_generators, states):
            generator.set_state(state)


def put_back_packed(packed: Mapping[str, bytes], torch: Any) -> None:
    """Restore the states of generators from their bytes; raises ValueError if these are none."""
    try:
        states: dict[str, Any] = {}
        if "python" in packed:
            position, *words = _WORDS.unpack_from(packed["python"])
            has_following, following = _FOLLOWING.unpack_from(packed["python"], _WORDS.size)
            states["python"] = _VERSION, (*words, position), following if has_following else None
        if "numpy" in packed:
            *words, position = _WORDS.unpack_from(packed["numpy"])
            cached = _GAUSS.unpack_from(packed["numpy"], _WORDS.size)
            states["numpy"] = "MT19937", sys.modules["numpy"].array(words, "uint32"), position, *cached
    except struct.error as error:
        raise ValueError(f"no state of a generator: {error}") from None
    tensor_of = functools.partial(torch.frombuffer, dtype=torch.uint8)
    if "torch" in packed:
        states["torch"] = tensor_of(bytearray(_unpacked_torch(packed["torch"])))
    of_devices = bytearray(packed.get("torch.cuda", b""))
    states["torch.cuda"] = [tensor_of(of_devices[at : at + _DEVICE]) for at in range(0, len(of_devices), _DEVICE)]
    put_back(generator_entries(torch), states, lambda state: state)


def as_values(states: Mapping[str, Any]) -> dict[str, Any]:
    """Return states with arrays in place of long tuples of numbers, for snapshots."""
    if "python" not in states:
        return dict(states)
    version, words, following = states["python"]
    return {**states, "python": (version, array("I", words), following)}


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
