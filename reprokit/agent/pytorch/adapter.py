"""Watches PyTorch: its hooks make events, of which listeners make what a run keeps."""

from __future__ import annotations

import atexit

from .. import trail_library
from ..events import Events
from ..frameworks.base import Adapter
from ..metrics import Metrics
from ..sample_ledger import SampleLedger
from . import private_api, tensors
from .distributed import COLLECTIVES, PARALLEL, DistributedHooks
from .events import EventHooks
from .generators import watch_generator, watch_seeding
from .samplers import loader_facts
from .state import Records

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ..agent import Agent
    from .trail import StepTrail


class PytorchAdapter(Adapter):
    """Watches a training by PyTorch."""

    def __init__(self, agent: Agent) -> None:
        super().__init__(agent)
        self._torch: Any = None
        self._hooks: EventHooks | None = None
        self._early: list[tuple[str, Any]] = []  # modules that PyTorch brings before it is there itself
        self._records: Records | None = None
        self._metrics: Metrics | None = None
        self._trail: StepTrail | None = None
        self._distributed = DistributedHooks(agent)
        self._samples: SampleLedger | None = None
        atexit.register(self.finish)  # earlier at exit than the agent's own, which was registered first

    def instrument(self, name: str, module: Any) -> None:
        if name in ("torch.random", "torch.cuda.random"):  # before PyTorch copies their functions
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
        events = Events()
        self._records = Records(self._agent, events, torch)
        compiled = self._agent.attempt(private_api.compiled, torch, trail_library.path_of(self._agent.run))
        tensors.compiled = compiled
        self._trail = self._agent.attempt(self._begin_trail, events, compiled)
        self._metrics = Metrics(self._agent, events, self._records, tensors)
        events.add(self._metrics)
        events.add(self._distributed)
        if self._trail is not None:
            self._samples = SampleLedger(self._agent, events, loader_facts, self._trail.digest, compiled)
            events.add(self._samples)
        self._agent.begin_events("torch", events)
        modules = self._records.modules
        self._hooks = EventHooks(self._agent, events, torch, modules, self._records, compiled)
        self._agent.pytorch = self._hooks
        self._hooks.wants_indices = self._samples is not None
        self._agent.attempt(watch_generator, self._agent, torch)
        for name, module in self._early:
            self._agent.attempt(self._hooks.watch, name, module)

    def _begin_trail(self, events: Events, compiled: Any) -> StepTrail | None:
        """First of all listeners, so that a step's facts are taken before anybody acts on them."""
        library = trail_library.load(self._agent.run)
        if library is None:
            return None
        from .trail import StepTrail

        trail = StepTrail(self._agent, events, library, self._torch, compiled)
        events.add(trail)
        return trail

    def parts(self) -> list[Any]:
        parts = (self._trail, self._samples, self._metrics, self._records, self._distributed)
        return [part for part in parts if part is not None]

    def random_states(self) -> None:
        if self._torch is None:
            return
        self._write_state("torch", self._torch.random.get_rng_state())
        if self._torch.cuda.is_initialized():
            for device in range(self._torch.cuda.device_count()):
                self._write_state(f"torch.cuda:{device}", self._torch.cuda.get_rng_state(device))

    def _write_state(self, name: str, state: Any) -> None:
        self._agent.journal.write("random_state", {"name": name, "digest": tensors.entry(name, state)[3]})
