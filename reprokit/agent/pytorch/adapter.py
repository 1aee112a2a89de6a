"""Watches PyTorch: hooks turn a training into events, from which listeners make the records of a run."""

from __future__ import annotations

import atexit

from ..core import trail_library
from ..core.agent import Adapter
from ..events.steps import Events
from ..listeners.metrics import Metrics
from ..listeners.sample_ledger import SampleLedger
from . import private_api, tensors
from .batch_gradients import BatchGradients
from .batch_memory import MemoryOfValues
from .distributed import COLLECTIVES, PARALLEL, DistributedHooks
from .events import EventHooks
from .generators import watch_generator, watch_seeding
from .samplers import loader_facts
from .state import TrainingRecords

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ..core.agent import Agent
    from .trail import StepTrail


class PytorchAdapter(Adapter):
    """Watches a training by PyTorch."""

    def __init__(self, agent: Agent) -> None:
        super().__init__(agent)
        self._torch: Any = None
        self._hooks: EventHooks | None = None
        self._early: list[tuple[str, Any]] = []  # submodules imported before torch itself is complete
        self._distributed = DistributedHooks(agent)
        self._parts: list[Any] = [self._distributed]
        atexit.register(self.finish)  # runs at exit before the agent's own handler, which was registered first

    def instrument(self, name: str, module: Any) -> None:
        if name in ("torch.random", "torch.cuda.random"):  # before PyTorch imports their functions elsewhere
            watch_seeding(self._agent, name, module)
        elif name in (COLLECTIVES, PARALLEL):
            self._distributed.instrument(name, module)
        elif name == "torch":
            self._agent.framework(name, module)
            self._begin(module)
        elif self._hooks is not None:
            self._hooks.watch(name, module)
        else:
            self._early.append((name, module))

    def _begin(self, torch: Any) -> None:
        self._torch = torch
        events = Events(self._agent.failed)
        records = TrainingRecords(self._agent, events, torch)
        compiled = self._agent.attempt(private_api.compiled, torch, trail_library.path_of(self._agent.run))
        tensors.compiled = compiled
        trail = self._agent.attempt(self._begin_trail, events, compiled)
        metrics = Metrics(self._agent, events, records, tensors)
        events.add(metrics)
        self._distributed.listen(events)
        self._parts = [metrics, records, self._distributed]
        if trail is not None:
            self._agent.shared[type(trail)] = trail
            followed = MemoryOfValues, BatchGradients(compiled)
            samples = SampleLedger(
                self._agent, events, loader_facts, metrics.epoch_of, trail.digest, compiled, *followed
            )
            events.add(samples)
            self._parts = [trail, samples, *self._parts]
        self._agent.begin_events("torch", events)
        self._hooks = EventHooks(self._agent, events, torch, records.modules, records, compiled)
        self._agent.shared[EventHooks] = self._hooks
        self._hooks.wants_indices = trail is not None
        self._agent.attempt(watch_generator, self._agent, torch)
        for name, module in self._early:
            self._agent.attempt(self._hooks.watch, name, module)

    def _begin_trail(self, events: Events, compiled: Any) -> StepTrail | None:
        """Create the trail as the first listener, so that it reads a step before other listeners change anything."""
        library = trail_library.load(self._agent.run)
        if library is None:
            return None
        from .trail import StepTrail

        every = trail_library.stride_of(self._agent.run)
        trail = StepTrail(self._agent, events, library, self._torch, compiled, every)
        events.add(trail)
        if trail.stride is not None:
            events.add(trail.stride)
        return trail

    def parts(self) -> list[Any]:
        return self._parts

    def random_states(self) -> None:
        if self._torch is None:
            return
        self.write_random_state("torch", tensors.entry("", self._torch.random.get_rng_state())[3])
        if self._torch.cuda.is_initialized():
            for device in range(self._torch.cuda.device_count()):
                state = self._torch.cuda.get_rng_state(device)
                self.write_random_state(f"torch.cuda:{device}", tensors.entry("", state)[3])
