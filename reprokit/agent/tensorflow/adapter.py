"""Watches TensorFlow, and Keras 2 and 3: hooks turn a training into events, from which listeners make the records."""

from __future__ import annotations

import atexit

from ..core import trail_library
from ..core.agent import Adapter
from ..core.digests import text_digest
from ..core.patching import replace
from ..events.steps import UpdateDone
from ..listeners.sample_ledger import SampleLedger
from . import private_api
from .events import KerasHooks, watch_generators, watch_seeding
from .trail import TensorflowTrail

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ..core.agent import Agent
    from ..events.steps import Events, Handler, TrainingEvent


class UpdateForwarder:
    """Forwards only updates to the sample ledger, which gets batches from the classes that know their samples."""

    def __init__(self, events: Events, listener: SampleLedger) -> None:
        self._events, self._listener = events, listener

    def handlers(self) -> dict[type[TrainingEvent], Handler]:
        return {UpdateDone: self._listener.handlers()[UpdateDone]}

    def failed(self, error: Exception, handler: Handler) -> None:
        self._events.remove(self)
        self._listener.failed(error, handler)


class TensorflowAdapter(Adapter):
    """Watches a training by TensorFlow or Keras."""

    def __init__(self, agent: Agent) -> None:
        super().__init__(agent)
        self._keras = KerasHooks(agent)
        self._trail: TensorflowTrail | None = None
        self._samples: SampleLedger | None = None
        atexit.register(self.finish)  # runs at exit before the agent's own handler, which was registered first

    def instrument(self, name: str, module: Any) -> None:
        if name in ("tensorflow", "keras", "tf_keras"):
            self._agent.framework(name, module)
            self._keras.watch(name, module)
        elif name.endswith(("random_seed", "utils.tf_utils", "utils.rng_utils", "random.seed_generator")):
            watch_seeding(self._agent, name, module)
        elif name.endswith("stateful_random_ops"):
            self._agent.attempt(watch_generators, self._agent, module)
        elif name.endswith("collective_all_reduce_strategy"):
            private_api.watch_workers(replace, self._record_workers)
        elif name.endswith("client.session"):
            self._keras.watch_sessions(module)
        else:
            if "optimizer" not in name:
                self._agent.attempt(self._begin_trail)
            self._keras.watch(name, module)

    def _record_workers(self, facts: dict[str, object]) -> None:
        self._agent.attempt(self._agent.computed, "collectives workers", "collectives", facts)

    def _begin_trail(self) -> None:
        library = trail_library.load(self._agent.run) if self._trail is None else None
        if library is not None:
            keras = self._keras
            self._trail = TensorflowTrail(self._agent, keras.events, keras.records, library)
            keras.events.add(self._trail)
            self._samples = SampleLedger(
                self._agent, keras.events, lambda order: order.facts(), lambda began: began.loader, lambda _: None
            )
            keras.events.add(UpdateForwarder(keras.events, self._samples))
            keras.samples.begin(self._samples)
            if trail_library.wants_batch_digests(self._agent.run):
                keras.datasets.begin(self._samples, library)

    def parts(self) -> list[Any]:
        parts = (self._trail, self._samples, self._keras.records)
        return [part for part in parts if part is not None]

    def random_states(self) -> None:
        """Write the random state of eager TensorFlow, without creating a context that the training did not use."""
        if private_api.context() is not None:
            generator = private_api.seed_generator()
            state = (private_api.eager_seed(), generator.getstate() if generator else None)
            self.write_random_state("tensorflow", text_digest(repr(state)))
