"""NumPy: its version, its seeding and its global random state at the end.

RandomState, SeedSequence and the bit generators are C types, which cannot be replaced by wrappers. Instead the agent
patches, for each, the one Python function that all its seeds pass through.
"""

from __future__ import annotations

import sys
from _thread import _local
from functools import partial

from ..core.agent import Adapter
from ..core.digests import text_digest
from ..core.patching import Function, replace, replace_in_static_type
from ..seeds.ledger import SeedLedger, seeding, seeding_method, seeds_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class NumpyAdapter(Adapter):
    """Patches numpy and numpy.random."""

    def instrument(self, name: str, module: Any) -> None:
        if name == "numpy":
            self._agent.framework(name, module)
            return
        self._agent.attempt(self._agent.generators.begin, "numpy", partial(_state, module))
        ledger = seeds_of(self._agent)
        for function in ("seed", "default_rng"):
            call = f"numpy.random.{function}"
            replace(module, function, lambda original, call=call: seeding(ledger, call, original))  # type: ignore[misc]
        # Since NumPy 1.17 a RandomState seeds its bit generator; before, it seeded itself.
        owner, method = getattr(module, "MT19937", None), "_legacy_seeding"
        if owner is None:
            owner, method = module.RandomState, "seed"
        make = partial(seeding_method, ledger, "numpy.random.RandomState")
        replace_in_static_type(owner, method, make)
        self._agent.attempt(self._instrument_sequences, sys.modules.get("numpy.random.bit_generator"))

    def _instrument_sequences(self, module: Any) -> None:
        if module is not None:
            entropy = SeedSequenceEntropy(seeds_of(self._agent))
            replace(module, "randbits", entropy.make_randbits)
            replace(module, "_coerce_to_uint32_array", entropy.make_coerce)

    def random_states(self) -> None:
        random = sys.modules.get("numpy.random")
        if random is not None:
            self.write_random_state("numpy", text_digest(repr(_plain(random.get_state()))))


class SeedSequenceEntropy(_local):
    """Tracks the arrays that a SeedSequence is made of: first its entropy is converted, then its spawn key.

    Entropy that it draws itself, for lack of a seed, is not recorded as a seed of the script.
    """

    drawn_entropy: object = None
    is_key = False  # whether a spawn key is converted next
    inside = False

    def __init__(self, ledger: SeedLedger) -> None:
        self._ledger = ledger

    def make_randbits(self, original: Function) -> Function:
        def randbits(k: int) -> int:
            self.drawn_entropy = drawn_entropy = original(k)
            return drawn_entropy  # type: ignore[no-any-return]

        return randbits

    def make_coerce(self, original: Function) -> Function:
        def _coerce_to_uint32_array(x: Any) -> Any:
            if self.inside:  # an element of a list
                return original(x)
            is_entropy, self.is_key, self.inside = not self.is_key, False, True
            try:
                if is_entropy and x is not self.drawn_entropy:
                    x = self._ledger.seed("numpy.random.SeedSequence", x, sys._getframe(1))
                array = original(x)
                self.is_key = is_entropy
                return array
            finally:
                self.inside = False

        return _coerce_to_uint32_array


def _state(module: Any) -> tuple[Any, ...]:
    name, words, *rest = module.get_state()
    return (name, words.tobytes(), *rest)


def _plain(value: Any) -> Any:
    """Return lists for arrays and Python numbers for scalars, so that NumPy's print settings do not change the text."""
    if isinstance(value, dict):
        return sorted((key, _plain(value[key])) for key in value)
    if isinstance(value, tuple):
        return [_plain(part) for part in value]
    return value.tolist() if hasattr(value, "tolist") else value
