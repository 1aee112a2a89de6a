"""The random generators of PyTorch: records seeding, and digests their states for each step of the trail."""

from __future__ import annotations

import struct

from ..core import trail_library as library
from ..core.patching import replace, replace_in_static_type
from ..core.signal_errors import pass_on
from ..seeds.ledger import seeding, seeding_method, seeds_of
from . import private_api

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ..core.agent import Agent

_WORD = (1 << 64) - 1


def watch_seeding(agent: Agent, name: str, module: Any) -> None:
    """Record the seeds set by torch.random or torch.cuda.random; a replay substitutes the recorded ones."""
    package = "torch.cuda" if name == "torch.cuda.random" else "torch"
    for function in ("manual_seed", "manual_seed_all"):
        call = f"{package}.{function}"
        replace(module, function, lambda original, call=call: seeding(seeds_of(agent), call, original))  # type: ignore[misc]


def watch_generator(agent: Agent, torch: Any) -> None:
    """Record the seeds of generators that the script creates."""
    ledger, call = seeds_of(agent), "torch.Generator.manual_seed"
    replace_in_static_type(torch.Generator, "manual_seed", lambda method: seeding_method(ledger, call, method))


class DefaultGenerator:
    """The state of PyTorch's default generator, copied only if the memory of its engine has changed."""

    def __init__(self, torch: Any) -> None:
        import ctypes

        self._generator, self._move = torch.default_generator, ctypes.memmove
        self._memory = default_memory(torch)
        self._memory_copy: Any = None  # the bytes of that memory when the state was last copied
        self.size: int = self._generator.get_state().numel()
        self.salt = library.salt("uint8", (self.size,))
        self._state = ctypes.create_string_buffer(self.size)
        address = copy = size = 0
        if self._memory is not None:
            self._memory_copy = type(self._memory)()
            address, copy, size = (
                ctypes.addressof(self._memory),
                ctypes.addressof(self._memory_copy),
                len(self._memory_copy),
            )
        self._address = ctypes.addressof(self._state)
        # Arguments of the compiled step.
        self.native_state = address, copy, size, self._address, self.size, self.salt, self._copy

    def state(self) -> int:
        """Return the address of an up-to-date copy of the state."""
        if self._memory is None or self._memory.raw != self._memory_copy.raw:
            self._copy()
        return self._address

    def _copy(self) -> None:
        if self._memory is not None:
            self._move(self._memory_copy, self._memory, len(self._memory))
        state = self._generator.get_state()
        self._move(self._address, state.data_ptr(), self.size)


class GeneratorDigests:
    """Digests the current states of all generators in the trail."""

    def __init__(self, torch: Any, loaded: library.Library) -> None:
        self._torch, self._library = torch, loaded
        self.words, self.default = library.GeneratorAddresses(), DefaultGenerator(torch)

    def torch_digest(self) -> int:
        """Return the digest of PyTorch's default CPU generator."""
        return self._library.digest(self.default.state(), self.default.size, self.default.salt)  # type: ignore[no-any-return]

    def devices(self) -> int:
        """Return the digest of seed and offset of all GPU generators, without synchronizing."""
        numbers = []
        for generator in self._torch.cuda.default_generators:
            numbers += [generator.initial_seed(), generator.get_offset() if hasattr(generator, "get_offset") else 0]
        return self._library.of_list([number & _WORD for number in numbers])

    def digests(self) -> dict[str, int]:
        """Return the digests by name: torch (CPU and GPUs), python and numpy."""
        torch, device_digest = self.torch_digest(), self.devices() if private_api.uses_cuda(self._torch) else 0
        addresses, salt = zip(("python", "numpy"), self.words.both()), self.words.salt
        words = {name: self._library.digest(address, library.WORDS, salt) for name, address in addresses if address}
        return {"torch": library.mix(torch + device_digest) if device_digest else torch, **words}


def address_of(memory: Any) -> int:
    """Return the address of an array of ctypes."""
    from ctypes import addressof

    return addressof(memory)


def default_memory(torch: Any) -> Any:
    """Return the memory of the default generator's engine, an array of ctypes; None of an unknown PyTorch."""
    try:
        return _engine_memory(torch)(torch.default_generator)
    except Exception as error:
        pass_on(error)
        return None


def _engine_memory(torch: Any) -> Any:
    """Return a function that maps the engine memory of a generator; verified with a generator created here."""
    from ctypes import c_char, string_at

    words, before, behind = 624, 24, 32

    def find(generator: Any) -> Any:
        state = bytes(generator.get_state().tolist())
        packed_words = struct.pack("<%dI" % words, *struct.unpack_from("<%dQ" % words, state, before))
        position = string_at(private_api.address(generator), 256 + 4 * words).find(packed_words)
        if not before <= position <= 256:
            raise ValueError("not found")
        start = private_api.address(generator) + position - before
        return (c_char * (before + 4 * words + behind)).from_address(start)

    own_generator = torch.Generator()
    memory = find(own_generator)
    states: dict[bytes, list[int]] = {}
    for draw in (torch.randn, torch.randn, torch.randn, torch.rand, torch.randn):  # a second normal number is kept
        draw(1, generator=own_generator)
        state = own_generator.get_state().tolist()
        if states.setdefault(memory.raw, state) != state:
            raise ValueError("it does not tell")
    return find
