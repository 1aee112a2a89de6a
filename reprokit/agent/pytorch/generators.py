"""PyTorch's random generators: who seeds them, and their states, as the trail asks for them at each step."""

from __future__ import annotations

import struct

from .. import trail_library as library
from ..core.patching import replace, replace_in_static_type
from ..core.signal_errors import pass_on
from ..seeds.ledger import seeding, seeding_method
from . import private_api

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ..agent import Agent

_WORD = (1 << 64) - 1


def watch_seeding(agent: Agent, name: str, module: Any) -> None:
    """Note the seeds that are set by torch.random or torch.cuda.random; a replay gives recorded ones."""
    package = "torch.cuda" if name == "torch.cuda.random" else "torch"
    for function in ("manual_seed", "manual_seed_all"):
        call = f"{package}.{function}"
        replace(module, function, lambda original, call=call: seeding(agent.seeds, call, original))  # type: ignore[misc]


def watch_generator(agent: Agent, torch: Any) -> None:
    """The same for generators of the script's own."""
    ledger, call = agent.seeds, "torch.Generator.manual_seed"
    replace_in_static_type(torch.Generator, "manual_seed", lambda method: seeding_method(ledger, call, method))


class DefaultGenerator:
    """The state of PyTorch's own generator. It is asked for only when the memory that it stands for has changed."""

    def __init__(self, torch: Any) -> None:
        import ctypes

        self._generator, self._move = torch.default_generator, ctypes.memmove
        self._now: Any = None  # the memory, where its place was found
        self._seen: Any = None  # what it held when the state was copied last
        self.size: int = self._generator.get_state().numel()
        self.salt = library.salt("uint8", (self.size,))
        self._state = ctypes.create_string_buffer(self.size)
        now = seen = seen_size = 0
        try:
            self._now = _engine(torch)(self._generator)
            self._seen = type(self._now)()
            now, seen, seen_size = ctypes.addressof(self._now), ctypes.addressof(self._seen), len(self._seen)
        except Exception as error:  # another PyTorch, which is asked each time
            pass_on(error)
        self._address = ctypes.addressof(self._state)
        # For the compiled step.
        self.known = now, seen, seen_size, self._address, self.size, self.salt, self._copy

    def state(self) -> int:
        """Return where a copy of the state lies as it is now."""
        if self._now is None or self._now.raw != self._seen.raw:
            self._copy()
        return self._address

    def _copy(self) -> None:
        if self._now is not None:
            self._move(self._seen, self._now, len(self._now))
        state = self._generator.get_state()
        self._move(self._address, state.data_ptr(), self.size)


class GeneratorDigests:
    """The states of all generators that the trail knows, as they are now."""

    def __init__(self, torch: Any, loaded: library.Library) -> None:
        self._torch, self._library = torch, loaded
        self.words, self.default = library.GeneratorAddresses(), DefaultGenerator(torch)

    def torch_digest(self) -> int:
        """Return the digest of PyTorch's own generator on this side."""
        return self._library.digest(self.default.state(), self.default.size, self.default.salt)  # type: ignore[no-any-return]

    def devices(self) -> int:
        """Return the digest of seed and offset of the generators of all GPUs, without waiting for one."""
        numbers = []
        for generator in self._torch.cuda.default_generators:
            numbers += [generator.initial_seed(), generator.get_offset() if hasattr(generator, "get_offset") else 0]
        return self._library.of_list([number & _WORD for number in numbers])

    def digests(self) -> dict[str, int]:
        """Return the digests of all of them."""
        torch, others = self.torch_digest(), self.devices() if private_api.uses_cuda(self._torch) else 0
        addresses, salt = zip(("python", "numpy"), self.words.both()), self.words.salt
        words = {name: self._library.digest(place, library.WORDS, salt) for name, place in addresses if place}
        return {"torch": library.mix(torch + others) if others else torch, **words}


def _engine(torch: Any) -> Any:
    """Gives the part of a generator's memory on which its state depends, proved by a generator of our own."""
    from ctypes import c_char, string_at

    words, before, behind = 624, 24, 32

    def find(generator: Any) -> Any:
        state = bytes(generator.get_state().tolist())
        wanted = struct.pack("<%dI" % words, *struct.unpack_from("<%dQ" % words, state, before))
        place = string_at(private_api.address(generator), 256 + 4 * words).find(wanted)
        if not before <= place <= 256:
            raise ValueError("not found")
        start = private_api.address(generator) + place - before
        return (c_char * (before + 4 * words + behind)).from_address(start)

    mine = torch.Generator()
    memory = find(mine)
    states: dict[bytes, list[int]] = {}
    for draw in (torch.randn, torch.randn, torch.randn, torch.rand, torch.randn):  # a second normal number is kept
        draw(1, generator=mine)
        state = mine.get_state().tolist()
        if states.setdefault(memory.raw, state) != state:
            raise ValueError("it does not tell")
    return find
