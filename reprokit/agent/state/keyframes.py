"""Keeps keyframes of a training: all of its state at some steps, at growing distances, for later questions.

A keyframe is read when an update has been made, and its bytes are copied at once; the native thread that saves tensors
digests and writes them. The states of PyTorch's generators are logged at each update; for TensorFlow see
tensorflow_keyframes.py.
"""

from __future__ import annotations

import ctypes
import os
import sys
from time import monotonic

from ..capture import torch_state
from ..capture.store import NAMES
from ..core import trail_library
from ..core.json_text import to_json
from ..core.live_objects import LiveObjects
from ..core.patching import replace_method
from ..core.signal_errors import pass_on
from ..core.state_entries import StateKind
from ..core.step_window import StepWindow, TrainingSteps
from ..events.steps import LossComputed, OptimizerMade, ScalerMade, UpdateDone
from ..listeners.metrics import Metrics
from ..pytorch import private_api, tensors
from ..pytorch.events import recording_hooks
from ..tensors.tensor_rules import Choice
from ..tensors.tensor_writer import TensorWriter
from .earlier_files import OpenFiles
from .generator_log import GeneratorLog
from .keyframe_files import DIRECTORY, DRAWS, MAX_DRAWS, SHARD, STATE, hexadecimal
from .printed import printed
from .pytorch_variables import TorchVariables
from .pytorch_view import TrainingView
from .script_scopes import RememberedInstances

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from typing import Any

    from ..core.agent import Agent
    from ..events.steps import EventListener, Events, Handler, TrainingEvent

BUFFER = 1 << 30  # bytes that may wait to be written; then the training waits
LARGE = 1 << 16  # bytes of a variable that is left out where it still is as it was at the first step
MAX_LACKS = 20
MARK = "_reprokit_keyframes"


def listener(agent: Agent, question: Mapping[str, Any], framework: str, _events: Events) -> EventListener | None:
    """Return the listener that keeps keyframes of this framework's training."""
    if framework == "torch":
        return PytorchKeyframes(agent, question["keyframes"])
    return NoKeyframes(agent, framework)


class NoKeyframes:
    """Says that there are no keyframes of a framework's steps."""

    def __init__(self, agent: Agent, framework: str) -> None:
        self._agent, self._framework = agent, framework

    def handlers(self) -> dict[type[TrainingEvent], Handler]:
        return {UpdateDone: self._updated}

    def _updated(self, _event: UpdateDone) -> None:
        words = f"no keyframes are kept of the steps of {self._framework}: only of PyTorch's and TensorFlow's"
        self._agent.warn(words, "no-keyframe")


class KeyframeSchedule:
    """When the next keyframe is due: each so many steps, or so many seconds."""

    def __init__(self, asked: Mapping[str, Any]) -> None:
        self._steps, self._seconds = asked.get("steps"), asked.get("seconds")
        self._after = int(asked.get("after") or 0)  # the keyframe from which the run goes on: there is its first one
        self._last = monotonic()

    def is_due(self, step: int) -> bool:
        """Return whether a keyframe is due at the beginning of a step."""
        if step <= self._after:
            return step == self._after
        if self._steps:
            return step % int(self._steps) == 0
        if monotonic() - self._last < float(self._seconds or 0):
            return False
        self._last = monotonic()
        return True


class LargeVariables:
    """The large tensors and arrays of the script, by digest: those that never change are not kept."""

    def __init__(self, library: trail_library.Library) -> None:
        self._library = library
        self._first: dict[object, tuple[int, int]] = {}  # digest and size at the first step, by the object's id
        self.is_first = True

    def is_unchanged(self, value: Any, size: int, key: object = None) -> bool:
        """Return whether a value is large and as it was at the first step; only note it at the first."""
        address = _address_of(value) if size >= LARGE else 0
        if not address:
            return False
        key = id(value) if key is None else key
        now = self._library.digest(address, size, 0), size
        if self.is_first:
            self._first[key] = now
        return self._first.get(key) == now

    def digest(self, key: object) -> int:
        """Return the digest that a value had at the first step."""
        return self._first[key][0]


def _address_of(value: Any) -> int:
    """Return the address of a contiguous tensor or array in memory; 0 for others."""
    if hasattr(value, "data_ptr"):
        return int(value.data_ptr()) if value.is_cpu and value.is_contiguous() else 0
    return int(value.__array_interface__["data"][0]) if value.flags.c_contiguous else 0


class ChangingVariables(TorchVariables):
    """The tensors and arrays of a script, without the large ones that never change."""

    def __init__(self, others: Iterable[Any], large: LargeVariables) -> None:
        super().__init__(others)
        self._large = large

    def is_left_out(self, value: Any) -> bool:
        return super().is_left_out(value) or self._large.is_unchanged(value, self.size(value))


class KeptKeyframe:
    """A keyframe that is on the disk: its number among all, its bytes and shards."""

    def __init__(self, number: int, size: int, shards: range) -> None:
        self.number, self.size, self.shards = number, size, shards


def too_close(number: int, last: int) -> bool:
    """Return whether a keyframe is dropped as there are others near it: the further back, the greater the distances."""
    return number % (1 << max(0, (last - number).bit_length() - 2)) != 0


class Keyframes:
    """The keyframes of this process on the disk; each framework's class reads what is in them."""

    def __init__(self, agent: Agent, asked: Mapping[str, Any], framework: str) -> None:
        self._agent, self._asked = agent, asked
        path = trail_library.path_of(agent.run)
        if path is None:
            raise RuntimeError("no keyframes are kept, as the library for it is not there")
        self._library = trail_library.Library(path)
        self._files = OpenFiles(agent.run)
        self._interval = KeyframeSchedule(asked)
        self._max_bytes = int(asked["max_bytes"])
        self._writer = TensorWriter(agent, framework, min(BUFFER, self._max_bytes), DIRECTORY)
        self._choice = Choice([])
        self._choice.is_full = True
        self.forget()
        os.register_at_fork(after_in_child=self.forget)
        agent.end_callbacks.append(self._finish)

    def _finish(self) -> None:
        """Write what waits to be written, and remove those of it that were dropped meanwhile."""
        self._writer.finish()
        self._remove_dropped()

    def forget(self) -> None:
        """Start anew, as a forked child does, which writes files of its own."""
        self._window = StepWindow({})
        self._large, self._instances = LargeVariables(self._library), RememberedInstances()
        self._tensor_steps = TrainingSteps()  # as tensors are saved by
        self._draws, self._logged = bytearray(), 0
        self._updates = self._number = self._next_shard = 0
        self._kept: list[KeptKeyframe] = []
        self._dropped: list[int] = []  # shards that are yet to be removed
        self._has_ended = False
        self._writer.forget()

    def failed(self, error: Exception, _handler: Handler) -> None:
        """Keep no further keyframes, and say why."""
        self._has_ended = True
        self._agent.warn(f"no further keyframes are kept: {type(error).__name__}: {error}", "keyframes-ended")

    def _has_room(self) -> bool:
        """Return whether the log of what is between keyframes may still grow: to half of the bytes that are allowed."""
        return self._logged + len(self._draws) < min(MAX_DRAWS, self._max_bytes // 2)

    def _require_room(self, size: int) -> None:
        """Raise RuntimeError if a keyframe of this size is not allowed."""
        if size + self._logged > self._max_bytes:
            raise RuntimeError(f"one has {size:,} bytes, and {self._max_bytes:,} are allowed ({self._asked['bound']})")

    def _put(self, part: Any) -> None:
        data, key = part.read(), (self._window.step, STATE, part.name, 0)
        data = data if isinstance(data, ctypes.Array) else bytes(data)
        address = ctypes.addressof(data) if isinstance(data, ctypes.Array) else _address_in(data)
        memory = address, part.nbytes
        self._writer.put(key, self._choice, NAMES[part.dtype], part.shape, memory, _no_numbers)

    def _complete(
        self, state: Mapping[str, Any], series: Mapping[str, int], lacks: list[str], hindrance: str, size: int
    ) -> None:
        """Write the line of a keyframe whose tensors were put."""
        path, text = self._writer.path(), to_json({**state, "files": self._files.sizes(self._library.of_bytes)})
        draws, self._draws = bytes(self._draws), bytearray()
        moment = _append(path + DRAWS, draws)
        begin, self._logged = self._logged, self._logged + len(draws)
        line = {
            "keyframe": self._window.step,
            "updates": self._updates,
            "series": dict(series),
            "lacks": lacks,
            "hindrance": hindrance,
            "ranks": self._ranks(),
            "moment": moment,
            "written": [*self._agent.journal.position(), printed(self._agent.run)],
            "draws": [begin, self._logged, hexadecimal(self._library.of_bytes(draws))],
            "state": text,
            "check": hexadecimal(self._library.of_bytes(text.encode())),
        }
        first, self._next_shard = self._next_shard, self._writer.complete(line)
        self._kept.append(KeptKeyframe(self._number, size + len(text), range(first, self._next_shard)))
        self._drop()
        self._number += 1

    def _ranks(self) -> int:
        """Return how many ranks train together."""
        return 1

    def _not_in_turn(self) -> list[str]:
        """Return why a step of saved tensors is no step of the keyframes; empty if it is one."""
        steps = self._tensor_steps
        if steps.has_ended and steps.count == self._window.step:
            return []
        return ["its optimizers do not update in turn, so that a step of its tensors is not one of its trail"]

    def _drop(self) -> None:
        """Remove keyframes that are near to others, and the oldest that there is no room for."""
        kept = [keyframe for keyframe in self._kept if not too_close(keyframe.number, self._number)]
        while len(kept) > 1 and sum(keyframe.size for keyframe in kept) + self._logged > self._max_bytes:
            del kept[0]
        self._dropped += [shard for keyframe in self._kept if keyframe not in kept for shard in keyframe.shards]
        self._kept = kept
        self._remove_dropped()

    def _remove_dropped(self) -> None:
        for shard in list(self._dropped):
            try:
                os.unlink(f"{self._writer.path()}-{shard:06d}{SHARD}")
            except FileNotFoundError:  # it is yet to be written
                continue
            self._dropped.remove(shard)


class PytorchKeyframes(Keyframes):
    """Keeps the keyframes of a PyTorch training in this process."""

    def __init__(self, agent: Agent, asked: Mapping[str, Any]) -> None:
        self._torch: Any = sys.modules["torch"]
        self._view = TrainingView(self._torch, lambda: recording_hooks(agent).modules, tensors.compiled)  # type: ignore[union-attr]
        self._view.stand_apart()
        super().__init__(agent, asked, "torch")

    def forget(self) -> None:
        super().forget()
        self._records, self._log = LiveObjects(), GeneratorLog()
        self._searches = 2  # of the heap for copies of models

    def handlers(self) -> dict[type[TrainingEvent], Handler]:
        own: dict[type[TrainingEvent], Handler] = {
            OptimizerMade: self._optimizer_made,
            LossComputed: lambda _event: self._tensor_steps.begin_backward(),
            ScalerMade: self._scaler_made,
            UpdateDone: self._updated,
        }
        return {**self._view.handlers(), **own}

    def _optimizer_made(self, event: OptimizerMade) -> None:
        self._view.objects.optimizers.add(event.target)
        if event.optimizer is not None:
            self._records.add(event.optimizer)
            self._tensor_steps.expect(event.optimizer)

    def _scaler_made(self, event: ScalerMade) -> None:
        self._view.objects.scalers.add(event.scaler)
        replace_method(type(event.scaler), "step", self._make_scaler_step, MARK)

    def _make_scaler_step(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def step(scaler: Any, *arguments: Any, **keywords: Any) -> Any:
            before = self._updates
            result = original(scaler, *arguments, **keywords)
            if self._updates == before and not self._has_ended:
                try:
                    self._log_draws(is_skipped=True)
                except Exception as error:
                    self.failed(error, self._scaler_made)
                    pass_on(error)
            return result

        return step

    def _log_draws(self, *, is_skipped: bool = False) -> None:
        self._view.random.keep()
        if self._has_room():
            self._draws += self._log.record(self._view.random.packed(), is_skipped=is_skipped)

    def _updated(self, event: UpdateDone) -> None:
        if self._has_ended:
            return
        self._updates += 1
        self._tensor_steps.updated(event.optimizer)
        self._log_draws()
        if not self._window.updated(event.optimizer, self._records):
            return
        if self._large.is_first:
            self._note_large()
        if self._interval.is_due(self._window.step):
            self._keep()

    def _note_large(self) -> None:
        """Note the large variables, as keyframes leave those out that stay as they are."""
        self._search()
        self._read_variables(self._view.entries(are_named=False))
        self._large.is_first = False

    def _search(self) -> None:
        if self._searches:
            self._searches -= 1
            self._view.search()

    def _read_variables(self, entries: Iterable[Any]) -> tuple[list[list[Any]], bool]:
        """Return the rows of the script's variables, and whether some were left out."""
        access = ChangingVariables(self._view.tensors(entries), self._large)
        reader = self._view.variable_reader(access, self._instances)
        with self._torch.no_grad():
            return reader.read(sys._getframe()), reader.is_bounded

    # A keyframe

    def _keep(self) -> None:
        self._search()
        packed = torch_state.SnapshotTensors()
        entries = [entry for entry in self._view.entries(are_named=False) if entry.kind is not StateKind.GRADIENTS]
        state: dict[str, Any] = {"entries": self._view.pack_entries(packed, entries)}
        state["random"] = torch_state.take_random(packed, self._view.states()())
        rows, is_bounded = self._read_variables(entries)
        state["variables"] = [[head, tail, packed.fill("variables", node)] for head, tail, node in rows]
        metrics = self._agent.shared.get(Metrics)
        state["losses"] = {} if metrics is None else metrics.losses()
        state["overflow"] = any(map(private_api.has_overflowed, self._view.objects.optimizers))
        size = sum(part.nbytes for part in packed.parts)
        self._require_room(size)
        for part in packed.parts:
            self._put(part)
        series = {record.name: record.steps for record in self._records}
        self._complete(state, series, self._lacks(packed.notes, is_bounded), self._hindrance(), size)

    def _lacks(self, notes: list[str], is_bounded: bool) -> list[str]:
        """Return what the keyframe lacks of the state."""
        lacks = list(notes[:MAX_LACKS])
        if is_bounded:
            lacks.append("some of the script's variables, as they are too many or too large")
        if not self._has_room():
            lacks.append("the states of the generators between steps, as their log is full")
        return lacks

    def _ranks(self) -> int:
        """Return how many ranks train together."""
        distributed = sys.modules.get("torch.distributed")
        has_ranks = distributed is not None and distributed.is_available() and distributed.is_initialized()
        return int(distributed.get_world_size()) if has_ranks else 1  # type: ignore[union-attr]

    def _hindrance(self) -> str:
        """Return why no fast-forward leads to the keyframe; empty if one may."""
        if self._ranks() > 1:
            modules = [module for root in self._view.objects.modules().outermost() for module in root.modules()]
            if any(type(module).__name__ == "FullyShardedDataParallel" for module in modules):
                return "it trains with FSDP, whose ranks would wait for each other"
            if any(type(part).__name__ == "DTensor" for module in modules for part in module.parameters(recurse=False)):
                return "its parameters are spread over ranks, which would wait for each other"
            if any(private_api.has_hook(module) for module in modules):
                return "a communication hook of DDP has state of its own"
        has_scaler = any(private_api.is_scaler_enabled(scaler) for scaler in self._view.objects.scalers)
        if has_scaler and len(list(self._view.objects.optimizers)) > 1:
            return "it has several optimizers with a gradient scaler, which decides which of them update"
        return next(iter(self._not_in_turn()), "")


def _address_in(data: Any) -> int:
    return ctypes.cast(ctypes.c_char_p(data), ctypes.c_void_p).value or 0


def _no_numbers() -> Any:
    raise ValueError("no reductions are kept")


def _append(path: str, data: bytes) -> int:
    """Append to a file; return the time of that by the clock that stamps files, in nanoseconds since 1970."""
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "ab") as file:
        file.write(data)
        file.flush()
        os.utime(file.fileno())  # also where there was nothing to write
        return os.fstat(file.fileno()).st_mtime_ns
