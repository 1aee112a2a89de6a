"""Communication through torch.distributed: process groups, buckets of DDP, and results of collectives.

The reductions of DDP are made by its C++ code: their results are the gradients in the trail. Results of asynchronous
collectives (async_op) and tensors on a device are not read.
"""

from __future__ import annotations

import os
import sys
import weakref
from functools import partial

from ..core.collectives import CollectiveLog, digest_of, object_digest_of
from ..core.patching import Function, replace
from ..events.steps import UpdateDone
from . import private_api, tensors

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ..core.agent import Agent
    from ..events.steps import Events, Handler, TrainingEvent

COLLECTIVES = "torch.distributed.distributed_c10d"
PARALLEL = "torch.nn.parallel.distributed"
# The first argument of each is its result: a tensor, or a list of them.
_OPERATIONS = (
    "all_gather", "all_gather_into_tensor", "all_reduce", "all_to_all", "all_to_all_single", "broadcast", "reduce",
    "reduce_scatter", "reduce_scatter_tensor", "scatter",
)  # fmt: skip
_MESSAGES = "send", "isend"
_OBJECT_OPERATIONS = ("all_gather_object", "broadcast_object_list")
_NCCL = {"algorithm": "NCCL_ALGO", "protocol": "NCCL_PROTO", "nvls": "NCCL_NVLS_ENABLE"}
_SETTLED_AFTER = 3  # updates after which DDP has rebuilt its buckets in the order in which gradients become ready


class DistributedHooks:
    """Wraps the collectives, and records the buckets of DDP models once they are settled."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self._events: Events | None = None
        self._log = CollectiveLog(agent, "torch.distributed")
        self._models: list[tuple[str, weakref.ref[Any]]] = []
        self._updates = 0  # since the last model was wrapped by DDP
        self._has_sent = False

    def instrument(self, name: str, module: Any) -> None:
        """Wrap the functions of a module before other modules import them."""
        if name == PARALLEL:
            self._agent.note_calls(module.DistributedDataParallel, "__init__", self._add_model)
            return
        for operation in _OPERATIONS + _OBJECT_OPERATIONS:
            replace(module, operation, partial(self._make_collective, operation, module))
        for function in ("init_process_group", "new_group"):
            self._agent.note_calls(module, function, partial(self._record_group, module))
        for function in _MESSAGES:
            self._agent.note_calls(module, function, self._record_message)

    def listen(self, events: Events) -> None:
        """Hear of updates as long as the buckets of a model are not settled."""
        self._events = events
        events.add(self)

    def handlers(self) -> dict[type[TrainingEvent], Handler]:
        return {UpdateDone: self._update_done} if self._models else {}

    def forget(self) -> None:
        """Drop the records of the parent process in a forked child."""
        self._log.forget()
        self._models, self._has_sent = [], False

    def finish(self) -> None:
        self._record_buckets()
        self._log.finish()

    # Groups

    def _record_group(self, module: Any, group: Any, *_call: Any) -> None:
        if group is not None and not hasattr(group, "size"):  # this rank is not in the group
            return
        backend = str(module.get_backend(group))
        facts: dict[str, object] = {"backend": backend, "ranks": module.get_world_size(group)}
        if group is None:
            facts["rank"] = module.get_rank()
        else:
            facts.update(_members(module, group, "members"))
        if "nccl" in backend:
            facts["version"] = ".".join(map(str, sys.modules["torch"].cuda.nccl.version()))
            facts.update({fact: os.environ[name] for fact, name in _NCCL.items() if name in os.environ})
        self._agent.computed(f"collectives {self._agent.name('group')}", "collectives", facts)

    def _record_message(self, *_call: Any) -> None:
        """Record once that this rank sends tensors to single ranks, as a stage of a pipeline does."""
        if not self._has_sent:
            self._has_sent = True
            self._agent.computed("collectives messages", "collectives", {"sends": True})

    # Buckets

    def _add_model(self, _result: Any, arguments: tuple[Any, ...], _keywords: Any) -> None:
        model, name = arguments[0], self._agent.name("DDP")
        self._models.append((name, weakref.ref(model)))
        self._updates = 0
        if self._events is not None:
            self._events.arrange()
        members = _members(sys.modules[COLLECTIVES], model.process_group, "reduces_with")
        self._agent.computed(f"collectives {name} group", "collectives", members)

    def _update_done(self, _event: UpdateDone) -> None:
        self._updates += 1
        if self._updates == _SETTLED_AFTER:
            self._record_buckets()

    def _record_buckets(self) -> None:
        models, self._models = self._models, []
        for name, reference in models:
            model = reference()
            if model is not None:
                self._agent.computed(f"collectives {name}", "collectives", private_api.buckets(model))
        if self._events is not None:
            self._events.arrange()

    # Collectives

    def _make_collective(self, operation: str, module: Any, original: Function) -> Function:
        attempt, note, module_globals = self._agent.attempt, self._record_result, vars(module)

        def collective(*arguments: Any, **keywords: Any) -> Any:
            work = original(*arguments, **keywords)
            # Calls within the module pad pickled objects with uninitialized memory.
            if sys._getframe(1).f_globals is not module_globals:
                attempt(note, operation, module, work, arguments, keywords)
            return work

        return collective

    def _record_result(
        self, operation: str, module: Any, work: Any, arguments: tuple[Any, ...], keywords: dict[str, Any]
    ) -> None:
        result = arguments[0] if arguments else next(iter(keywords.values()))
        parts = result if type(result) in (list, tuple) else [result]
        ranks = module.get_world_size(keywords.get("group"))
        if operation in _OBJECT_OPERATIONS:
            self._log.note(operation, ranks, "object", (len(parts),), object_digest_of(result))
            return
        first = parts[0]
        if work is not None or not all(map(_is_here, parts)):
            self._log.note(operation, ranks, "", (), None)
            return
        data = tensors.bytes_here(first) if len(parts) == 1 else "sha256:" + _joined_digest(parts)
        shape = first.shape if len(parts) == 1 else (len(parts), *first.shape)
        self._log.note(operation, ranks, tensors.dtype_name(first), shape, data)


def _members(module: Any, group: Any, fact: str) -> dict[str, list[str]]:
    """Return the ranks of a process group as a fact; nothing where PyTorch does not tell them."""
    if not hasattr(module, "get_process_group_ranks"):
        return {}
    return {fact: [str(rank) for rank in module.get_process_group_ranks(group)]}


def _is_here(tensor: Any) -> bool:
    return tensors.lies_in_order(tensor) and tensor.numel() > 0


def _joined_digest(parts: list[Any]) -> str:
    """Return the digest of the digests of several tensors."""
    from hashlib import sha256

    return sha256("".join([digest_of(tensors.bytes_here(part), 0)[0] for part in parts]).encode()).hexdigest()
