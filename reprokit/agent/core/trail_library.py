"""The trail of this process: for each optimizer step the digests of its inputs and results (docs/format.md).

A C library digests tensors in place, in a thread of its own beside the training, and writes the file. This module,
shared by all frameworks, loads that library and locates random states in memory.
"""

from __future__ import annotations

import functools
import hashlib
import json
import struct
import sys

from .launch_plan import read_plan

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any

ABI = 11  # RKT_ABI of native/trail/trail.h
BATCH, LOSS, GRADIENTS, PARAMETERS, TORCH, PYTHON, NUMPY = (1 << bit for bit in range(7))
BEFORE, PARTIAL, UNSTEADY_GRADIENTS, UNSTEADY_PARAMETERS, BUFFERS, UNCHANGED = 128, 256, 512, 1024, 2048, 4096
INPUTS, INPUTS_PARTIAL, INPUTS_SEVERAL, PASSED, NOT_FINITE, RUINED = 8192, 16384, 32768, 65536, 131072, 262144
BATCH_PARTIAL, CALLED = 1 << 32, 1 << 33  # flags of a step that is not written so far
HERE, LATER = 1, 2
CHANGED_GRADIENTS, CHANGED_PARAMETERS = 1, 2
SMALL = 1 << 20  # RKT_SMALL: bytes that are digested immediately
MAX_TABLES = 64  # series of one optimizer: its list of tensors may change that often
MAX_NAME = 1000  # characters of a parameter's name that are kept
WORDS = 2500  # bytes of the state of a Mersenne Twister
FACTS = 14  # words of struct rkt_facts; the places of some of them:
AT_FLAGS, AT_BATCH, AT_LOSS, AT_INPUTS = 0, 2, 3, 6
pack = struct.Struct("<%dQ" % FACTS).pack
STEP = 0x9E3779B97F4A7C15  # of native/trail/digest.h, as are the next four
MULTIPLIERS = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
WORD_MULTIPLIERS = 0x85EBCA6B, 0xC2B2AE35
_MASK = (1 << 64) - 1

# By dtype, how the library finds numbers that are not finite (enum rkt_format); numbers of other dtypes are finite.
FORMATS = {
    "float16": 1,
    "bfloat16": 2,
    "float32": 3,
    "complex64": 3,
    "float64": 4,
    "complex128": 4,
    "float8_e4m3fn": 5,
    "float8_e5m2": 6,
    "float8_e4m3fnuz": 7,
    "float8_e5m2fnuz": 7,
    "float8_e4m3b11fnuz": 7,
    "float8_e8m0fnu": 8,
}


@functools.lru_cache(maxsize=10_000)
def salt(dtype: str, shape: tuple[int, ...]) -> int:
    """Return the number that represents dtype and shape in a digest."""
    head = "reprokit-tensor-1\0{}\0{}\0".format(dtype, ",".join([str(size) for size in shape]))
    return int.from_bytes(hashlib.sha256(head.encode()).digest()[:8], "little")


def mix(value: int) -> int:
    """Return the 64-bit bijective mix of a value on which the digests are based."""
    value &= _MASK
    value = ((value ^ value >> 30) * MULTIPLIERS[0]) & _MASK
    value = ((value ^ value >> 27) * MULTIPLIERS[1]) & _MASK
    return value ^ value >> 31


_TEXT = salt("text", ())
_WORDS_SALT = salt("uint32", (625,))


def function(library: Any, name: str, result: Any, *arguments: Any) -> Callable[..., Any]:
    """Return a function of the library, loaded by ctypes."""
    native = library["reprokit_trail_" + name]
    native.restype, native.argtypes = result, arguments
    return native  # type: ignore[no-any-return]


class Library:
    """The library's functions. Short ones keep the GIL, as that costs less than releasing it."""

    def __init__(self, path: str) -> None:
        import ctypes

        uint64, pointer, uint32, text = ctypes.c_uint64, ctypes.c_void_p, ctypes.c_uint32, ctypes.c_char_p
        with_gil, without_gil = ctypes.PyDLL(path), ctypes.CDLL(path)
        if with_gil.reprokit_trail_abi() != ABI:
            raise RuntimeError(f"{path} does not fit this agent")
        self._ctypes, self.path = ctypes, path
        self.digest = function(with_gil, "digest", uint64, uint64, uint64, uint64)
        self.fold = function(with_gil, "fold", uint64, uint64, uint64, uint64, uint64)
        self._digest_bytes = function(with_gil, "digest", uint64, ctypes.c_char_p, uint64, uint64)
        self._list = function(with_gil, "list", uint64, ctypes.c_char_p, uint64)
        self._open = function(with_gil, "open", pointer, ctypes.c_char_p, ctypes.c_char_p, ctypes.POINTER(ctypes.c_int))
        self._series = function(with_gil, "series", pointer, pointer, text, uint64, uint32, *[text] * 3, uint32, uint64)
        self.step = function(with_gil, "step", uint64, pointer, uint64, uint64)
        self.long_step = function(without_gil, "step", uint64, pointer, text, uint64)
        self.pass_steps = function(with_gil, "pass", None, pointer, uint64)
        self.parameters = function(without_gil, "parameters", uint64, pointer, uint64)
        self.given = function(with_gil, "given", None, pointer, uint64, uint64, uint64)
        self.model = function(with_gil, "model", None, pointer, uint64, uint64)
        # without the GIL: a framework's function may wait for threads that need it
        self.leaves = function(without_gil, "leaves", uint64, uint64, pointer, pointer, ctypes.c_char_p, uint64)
        self.changed = function(without_gil, "changed", uint32, pointer, uint32)
        self.unsteady = function(with_gil, "unsteady", None, pointer, uint32)
        self.wait = function(without_gil, "wait", None, pointer, uint64)
        self.pause = function(with_gil, "pause", None, pointer)
        self.close = function(with_gil, "close", None, pointer, pointer)
        self._not_finite = function(without_gil, "not_finite", uint64, uint64, uint64, uint64, ctypes.POINTER(uint64))

    def text(self, text: str) -> int:
        """Return the digest of a text."""
        return self.of_bytes(text.encode("utf-8", "backslashreplace"))

    def of_bytes(self, data: bytes) -> int:
        """Return the digest of bytes, as of a text."""
        return self._digest_bytes(data, len(data), _TEXT)  # type: ignore[no-any-return]

    def of_list(self, digests: Sequence[int]) -> int:
        """Return the digest of a list of digests."""
        return self._list(struct.pack("<%dQ" % len(digests), *digests), len(digests))  # type: ignore[no-any-return]

    def open(self, run: str, identity: str) -> int:
        """Open the trail of this process; return its handle."""
        error = self._ctypes.c_int()
        handle = self._open(run.encode(errors="surrogateescape"), identity.encode(), self._ctypes.byref(error))
        if not handle:
            raise OSError(error.value, "no trail is kept, as its file cannot be written")
        return handle  # type: ignore[no-any-return]

    def series(
        self,
        trail: int,
        name: str,
        kind: str,
        tensors: Sequence[Named],
        first: int,
        framework: str = "torch",
        **facts: object,
    ) -> int:
        """Return the handle of a series of steps, from step first on, that update these tensors; 0 if it is full."""
        listed = [[tensor[:MAX_NAME], dtype, list(shape), *part] for tensor, dtype, shape, _, *part in tensors]
        description = {"name": name, "class": kind, "tensors": listed, "framework": framework, **facts}
        text = json.dumps(description).encode()
        sizes = [tensor[3] for tensor in tensors] * 2
        salts = [salt(tensor[1], tuple(tensor[2])) for tensor in tensors] * 2
        packing = "<%dQ" % len(sizes)
        data = struct.pack(packing, *sizes), struct.pack(packing, *salts), *_placements(tensors)
        return self._series(trail, text, len(text), len(tensors), *data, first) or 0

    def not_finite(self, address: int, size: int, dtype: str) -> tuple[int, int]:
        """Return the count of numbers that are not finite, and the index of the first one."""
        first = self._ctypes.c_uint64(0)
        count = self._not_finite(address, size, FORMATS.get(dtype, 0), self._ctypes.byref(first))
        return count, first.value

    def address(self, function: Any) -> int:
        """Return the address of one of these functions."""
        return self._ctypes.cast(function, self._ctypes.c_void_p).value or 0

    def buffer(self, words: int) -> tuple[Any, int]:
        """Allocate words of 64 bits; return the buffer and its address."""
        memory = (self._ctypes.c_uint64 * words)()
        return memory, self._ctypes.addressof(memory)


if TYPE_CHECKING:
    # Name, dtype, shape and bytes of a tensor, and which part of a DTensor this is.
    Named = tuple[Any, ...]


def _placements(tensors: Sequence[Named]) -> tuple[bytes, int]:
    """Return the number of each tensor's placement, in order of appearance, and how many there are; 0 for one."""
    numbers: dict[str, int] = {}
    parts = [numbers.setdefault("".join(part), len(numbers)) for _, _, _, _, *part in tensors]
    return (struct.pack("<%dQ" % len(parts), *parts), len(numbers)) if len(numbers) > 1 else (b"", 0)


class TrailFile:
    """The trail file of this process, opened at the first step."""

    def __init__(self, run: str, identity: Callable[[], str], loaded: Library) -> None:
        self._run, self._library = run, loaded
        self._identity = identity  # returns the name of this process, which takes a while in a forked child
        self._tables: dict[str, int] = {}  # series so far by name, each with a table of tensors
        self.handle = 0
        self.last = 0  # handle of the series that stepped last
        self.is_open = True

    def series(self, name: str, kind: str, tensors: Sequence[Named], first: int, **facts: Any) -> int:
        """Begin a series of steps, as Library.series does; raises RuntimeError if there is no room for it."""
        self._tables[name] = self._tables.get(name, 0) + 1
        if not self.handle:
            self.handle = self._library.open(self._run, self._identity())
        is_allowed = self._tables[name] <= MAX_TABLES
        handle = self._library.series(self.handle, name, kind, tensors, first, **facts) if is_allowed else 0
        if not handle:
            raise RuntimeError(f"the trail ends here, as the tensors of {name} became others too often")
        return handle

    def close(self) -> None:
        """Close the file and free the space preallocated at its end."""
        if self.handle and self.is_open:
            self._library.close(self.handle, self.last)
        self.is_open = False


class GeneratorAddresses:
    """Locates the states of Python's and NumPy's global generators in memory, as copying them is slow.

    Each address is used only after the memory there was compared with the state that the generator returns.
    """

    salt = _WORDS_SALT

    def __init__(self) -> None:
        self._modules: dict[str, Any] = sys.modules
        self._python: tuple[Any, int] = (None, 0)
        self._other: tuple[Any, int] = (None, 0)
        self._numpy: tuple[Any, int] = (None, 0)
        # The generators that were located last, for the compiled step.
        self.known: tuple[Any, ...] = (self._modules, None, 0, None, 0, self.salt)

    def both(self) -> tuple[int, int]:
        """Return the addresses of the states, 625 words each, of Python's and NumPy's generator; 0 if not in use."""
        instance = getattr(self._modules.get("random"), "_inst", None)
        if instance is not self._python[0]:
            self._python = (instance, _python_address(instance))
        module = self._modules.get("numpy.random.mtrand")
        generator = None if module is None else getattr(getattr(module, "_rand", None), "_bit_generator", None)
        if generator is not self._numpy[0]:
            self._numpy = (generator, 0 if generator is None else _numpy_address(generator))
        self.known = (self._modules, *self._python, *self._numpy, self.salt)
        return self._python[1], self._numpy[1]

    def of(self, instance: Any) -> int:
        """Return the address of the state of another random.Random; 0 if it cannot be located."""
        if instance is not self._other[0]:
            self._other = (instance, _python_address(instance))
        return self._other[1]


def _read(address: int) -> Sequence[int]:
    from ctypes import string_at

    return struct.unpack("<625I", string_at(address, WORDS))


def _python_address(instance: Any) -> int:
    """Return the address of position and words inside the object; 0 on other interpreters than CPython."""
    random: Any = sys.modules["random"]
    if sys.implementation.name != "cpython" or type(instance) is not random.Random:
        return 0
    if random.Random.__mro__[1].__basicsize__ < object.__basicsize__ + WORDS:
        return 0
    address = id(instance) + object.__basicsize__
    position, *words = _read(address)
    return address if instance.getstate()[1] == (*words, position) else 0


def _numpy_address(generator: Any) -> int:
    if type(generator).__name__ != "MT19937":
        return 0
    address: int = generator.ctypes.state_address
    state = generator.state["state"]
    return address if list(_read(address)) == [*state["key"].tolist(), state["pos"]] else 0


def load(run: str) -> Library | None:
    """Return the library if the plan names one; None with --no-trail."""
    path = read_plan(run).get("trail")
    return Library(path) if path else None


def path_of(run: str) -> str | None:
    """Return the path of the library, also with --no-trail."""
    return read_plan(run).get("library")


def stride_of(run: str) -> int:
    """Return of how many steps the trail of a PyTorch training takes one; 1 for each, 0 for as many as is measured."""
    every = read_plan(run).get("trail_every") or 1
    return 0 if every == "auto" else int(every)


def given_strides(run: str, process: str) -> Mapping[str, int] | None:
    """Return the strides of a process's optimizers, by name, that a replay takes over; None for a recording."""
    plan = read_plan(run)
    return (plan.get("trail_strides") or {}).get(process, {}) if plan.get("mode") == "replay" else None


def wants_gradients_in_graphs(run: str) -> bool:
    """Return whether --trail-gradients was given."""
    return "trail_gradients" in read_plan(run)


def wants_batch_digests(run: str) -> bool:
    """Return whether --batch-digests was given."""
    return "batch_digests" in read_plan(run)


def looks_at_each_step(run: str) -> bool:
    """Return whether a question needs in each step the digests that a trail normally has in some steps only."""
    return bool((read_plan(run).get("question") or {}).get("each_step"))


def looks_at_all_weights(run: str) -> bool:
    """Return whether TensorFlow's weights are digested in each step: a keyframe's few steps are proved by them."""
    question = read_plan(run).get("question") or {}
    return any(question.get(key) for key in ("each_step", "keyframes", "from_keyframe", "tensors"))
