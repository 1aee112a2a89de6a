"""TensorFlow: its version, its seeding, optimizers and sessions of TensorFlow 1, its random state at the end."""

from __future__ import annotations

import atexit
import functools

from ..digests import text_digest
from ..patching import replace
from ..seeds import seeding
from ..tensorflow import private_api
from ..tensorflow.state import AdapterRecords

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType
    from typing import Any

    from ..agent import Agent

_SEEDING = {"set_seed": "tensorflow.random.set_seed", "set_random_seed": "tensorflow.set_random_seed"}


class TensorflowAdapter:
    """Watches what of TensorFlow is not Keras."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self._records = AdapterRecords(agent)
        atexit.register(self.finish)  # earlier at exit than the agent's own, which was registered first

    def forget(self) -> None:
        self._records.forget()

    def finish(self) -> None:
        self._records.finish()

    def instrument(self, name: str, module: Any) -> None:
        if name == "tensorflow":
            self._agent.framework(name, module)
        elif name.endswith("random_seed"):
            for function in _SEEDING:
                self._instrument_seeding(module, function)
        elif name.endswith("stateful_random_ops"):
            self._agent.attempt(self._instrument_generator, module)
        elif name.endswith("session"):
            replace(module.BaseSession, "close", self._make_close)
        else:
            replace(module.Optimizer, "apply_gradients", self._records.make_apply)

    def _instrument_seeding(self, module: ModuleType, function: str) -> None:
        replace(module, function, lambda original: seeding(self._agent.seeds, _SEEDING[function], original))

    def _instrument_generator(self, module: Any) -> None:
        method = vars(module.Generator).get("from_seed")  # TensorFlow 1 has none
        if isinstance(method, classmethod):
            ledger, original = self._agent.seeds, method.__func__

            @functools.wraps(original)
            def from_seed(cls: Any, *arguments: Any, **keywords: Any) -> Any:
                call = "tensorflow.random.Generator.from_seed"
                seed = seeding(ledger, call, functools.partial(original, cls), depth=2)
                return seed(*arguments, **keywords)

            module.Generator.from_seed = classmethod(from_seed)

    def _make_close(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def close(session: Any) -> None:
            if not private_api.is_closed(session):
                self._agent.attempt(self._records.session_closes, session)
            original(session)

        return close

    def random_states(self) -> None:
        """The state of eager TensorFlow's seeds; nothing is made that the training did not use."""
        if private_api.context() is not None:
            generator = private_api.seed_generator()
            state = (private_api.eager_seed(), generator.getstate() if generator else None)
            line = {"name": "tensorflow", "digest": text_digest(repr(state))}
            self._agent.journal.write("random_state", line)
