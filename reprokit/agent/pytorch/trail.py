"""The trail of a training: what each optimizer step was made of, digested beside the training.

Gradients do not change from one step to the next backward, nor parameters to the next step, as a rule; until then
the worker of the library may read them where they lie. Whoever is about to change them waits for it: backward,
zero_grad, step, load_state_dict. A training that changes them in between by itself is found out in its first steps,
which are digested at once and looked at again, and by the version counters of its tensors; its steps are then
digested before it goes on.
"""

from __future__ import annotations

import os
from _thread import _local
from operator import attrgetter

from .. import trail_library as library
from ..events import (
    BatchFetched,
    LossComputed,
    ModelCalled,
    OptimizerEnded,
    OptimizerMade,
    OptimizerNamed,
    TensorsChange,
    UpdateDone,
    UpdateDue,
)
from . import generators, private_api
from .content_digests import CallArguments, FetchedTensors, ModelBuffers, PytorchContents
from .series import StepReader, TrackedTensors

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    from ..agent import Agent
    from ..events import Events, Handler, TrainingEvent
    from .devices import Devices


PROBATION = 16  # steps that are looked at again
AGAIN_EACH = 256  # and one in so many later
MAX_TABLES = 64  # of one optimizer: its tensors may change that often
MAX_TENSORS = 8  # of a batch whose tensors are known again, or losses on a device that wait for the step
LOOKED_AT = 1 << 16  # bytes of parameters that are digested before each step, too
LEFT_OUT = "gradients or parameters that are sparse, distributed or on several devices are left out"
MAX_LOSS = 1024  # elements of a loss on a GPU
_SEQUENCES = frozenset([list, tuple])
_is_here = attrgetter("is_cpu")


class StepFacts:
    """What a thread has gathered for its next step."""

    def __init__(self, loaded: library.Library) -> None:
        self.room, self.address = loaded.buffer(library.FACTS)  # struct rkt_facts, which compiled code fills too
        self.fetched: Any = None  # the tensors of the batch as they came, each with how often it was changed
        self.far_losses: list[Any] = []  # on a device
        self.pending: list[StepSeries] = []  # whose tensors are still read


class StepThread(_local):
    """A thread's; found once an event, as this takes longer than to read an attribute."""

    def __init__(self, loaded: library.Library) -> None:
        self.facts = StepFacts(loaded)


class StepSeries:
    """The steps of one optimizer with the tensors that it has."""

    def __init__(self, tensors: Any, handle: int, loaded: library.Library) -> None:
        self.tensors = tensors
        self.handle = handle
        self.steps = 0
        self.counted = 0  # changes to the parameters until the last step ended
        self.here = False  # digest before the training goes on
        self.probing = False
        self.ticket = 0
        self.is_small = sum(tensors.sizes) <= LOOKED_AT
        self.known = handle, loaded.address(loaded.step), tensors.seen_at, tensors.address  # for the compiled step
        self.whole = True  # all of the last step could be read
        self.is_told = False


class OptimizerTrail:
    """What the trail keeps of one optimizer."""

    def __init__(self, generators: dict[str, int], untouched: list[str]) -> None:
        self.series: StepSeries | None = None
        self.tables = 0  # of tensors that the series had
        self.steps = 0
        self.found = (0, 0)  # of the parameters that a step found: flags and digest
        self.buffers: Any = None  # of the models whose parameters it has
        self.generators = generators  # the digests of random states when it was made
        self.untouched = untouched  # those that nobody had seeded or drawn from


class TrailFile:
    """The trail of this process in the library, from its first step on."""

    def __init__(self, loaded: library.Library) -> None:
        self._library = loaded
        self.is_alone = len(os.sched_getaffinity(0)) == 1  # no processor is left for a thread beside
        self.handle = 0
        self.last = 0  # series that stepped
        self.is_open = True

    def series(self, agent: Agent, record: Any, kept: OptimizerTrail, tensors: TrackedTensors) -> int:
        """Return a series of steps of an optimizer."""
        if not self.handle:
            self.handle = self._library.open(agent.run, agent.journal.identity)
        known: dict[str, Any] = {"generators": kept.generators, "untouched": kept.untouched}
        described = tensors.described(record.parameter_names())
        return self._library.series(self.handle, record.name, record.kind, described, kept.steps, **known)

    def close(self) -> None:
        """Give back the room that the file has at its end."""
        if self.handle and self.is_open:
            self._library.close(self.handle, self.last)
        self.is_open = False


class StepTrail:
    """The trail of this process, as far as optimizers make it."""

    def __init__(self, agent: Agent, events: Events, loaded: library.Library, torch: Any, compiled: Any = None) -> None:
        self._agent, self._events, self._library, self._torch = agent, events, loaded, torch
        self._contents = PytorchContents(loaded, torch, compiled)
        self._random = generators.GeneratorDigests(torch, loaded)
        self._reader = StepReader(self._contents, self._random, compiled)
        agent.generators.begin("torch", self._random.torch_digest)
        os.register_at_fork(before=self._pause)
        self.forget()

    def forget(self) -> None:
        """At the beginning, and in a forked child, whose parent's file is another one."""
        self._thread = StepThread(self._library)
        self._file = TrailFile(self._library)
        self._devices: Devices | None = None
        self._has_optimizers = False
        self._reading = 0  # steps whose tensors are still read

    def handlers(self) -> dict[type[TrainingEvent], Handler]:
        return {
            BatchFetched: self._batch_fetched,
            ModelCalled: self._model_called,
            LossComputed: self._loss_computed,
            TensorsChange: self._tensors_change,
            OptimizerMade: self._optimizer_made,
            OptimizerNamed: self._optimizer_named,
            UpdateDue: self._update_due,
            UpdateDone: self._update_done,
            OptimizerEnded: self._optimizer_ended,
        }

    def failed(self, error: BaseException, _handler: Handler) -> None:
        """The trail ends, with a warning. It is not let go of: its worker may still read what it holds."""
        self._file.is_open = False
        self._events.remove(self)
        self._agent.warn(f"no further step is kept in the trail: {type(error).__name__}: {error}")

    # What comes together until the step

    def _batch_fetched(self, event: BatchFetched) -> None:
        state, batch = self._thread.facts, event.batch
        room = state.room
        is_first = not room[library.AT_FLAGS] & (library.BATCH | library.BATCH_PARTIAL)
        state.fetched = self._reader.batch(state.address, batch)
        if state.fetched is None:
            self._take_batch(state, batch)
        if is_first and room[library.AT_FLAGS] & library.BATCH:
            event.digest = room[library.AT_BATCH]

    def _take_batch(self, state: StepFacts, batch: Any) -> None:
        are_few = self._are_few(batch)
        if are_few and all(map(_is_here, batch)):
            state.fetched = [part for tensor in batch for part in (tensor, private_api.changes(tensor))]
        state.room[library.AT_BATCH], is_partial = self._digest(state.room[library.AT_BATCH], batch, are_few)
        flags = state.room[library.AT_FLAGS] | (library.BATCH_PARTIAL if is_partial else library.BATCH)
        state.room[library.AT_FLAGS] = flags & ~library.BATCH if flags & library.BATCH_PARTIAL else flags

    def _are_few(self, batch: Any) -> bool:
        return type(batch) in _SEQUENCES and len(batch) <= MAX_TENSORS and self._contents.are_tensors(batch)

    def _digest(self, digest: int, batch: Any, are_few: bool) -> tuple[int, bool]:
        """Return the digest so far with that of a batch, and whether a part of it could not be read."""
        contents, is_partial = self._contents, False
        with private_api.without_overrides(self._torch):
            for part in batch if are_few else [batch]:
                digest = contents.value(digest, part)
                is_partial, contents.missed = is_partial or contents.missed, False
        return digest, is_partial

    def digest(self, batch: Any) -> int | None:
        """Return the digest of a batch alone, that of the first since a step; None of one that cannot be read whole."""
        digest, is_partial = self._digest(0, batch, self._are_few(batch))
        return None if is_partial else digest

    def _model_called(self, event: ModelCalled) -> None:
        state = self._thread.facts
        if self._has_optimizers and (
            event.keywords
            or not event.has_gradients
            or not self._reader.input(state.address, state.fetched, event.arguments)
        ):
            self._take_inputs(state, event)

    def _take_inputs(self, state: StepFacts, event: ModelCalled) -> None:
        """Digest the arguments now, as the training may change them."""
        room, flags = state.room, library.CALLED
        fetched = None if state.fetched is None else FetchedTensors(state.fetched)
        arguments = CallArguments(room[library.AT_INPUTS], fetched, self._contents, self._library)
        if event.has_gradients:
            arguments.take(event.arguments, event.keywords)
            room[library.AT_INPUTS] = arguments.digest
            flags |= library.INPUTS if arguments.count else 0
        if arguments.is_partial or not event.has_gradients:
            flags |= library.INPUTS_PARTIAL
        if room[library.AT_FLAGS] & library.CALLED and arguments.count:
            flags |= library.INPUTS_SEVERAL
        room[library.AT_FLAGS] |= flags

    def _loss_computed(self, event: LossComputed) -> None:
        loss, state = event.loss, self._thread.facts
        if not event.is_here:
            if len(state.far_losses) < MAX_TENSORS and loss.is_cuda and loss.numel() <= MAX_LOSS:
                state.far_losses.append(loss.detach())
        elif not self._reader.loss(state.address, loss):
            state.room[library.AT_LOSS], _ = self._digest(state.room[library.AT_LOSS], loss, False)
            state.room[library.AT_FLAGS] |= library.LOSS

    # Who is about to change what is read

    def _tensors_change(self, _event: TensorsChange) -> None:
        if self._reading:
            with private_api.without_overrides(self._torch):
                self._settle_all()

    def _settle_all(self) -> None:
        """Wait until nothing that this thread's steps left behind is read any more."""
        pending = self._thread.facts.pending
        while pending:
            self._settle(pending.pop())

    def _settle(self, series: StepSeries) -> None:
        file = self._file
        if not (file.is_open and series.tensors.watched):  # let go of already
            return
        if series.ticket:  # also where it is done by now: a replay must call, and take memory, where its recording did
            self._library.wait(file.handle, series.ticket)
        probing, every = series.probing, library.CHANGED_GRADIENTS | library.CHANGED_PARAMETERS
        changed = self._library.changed(series.handle, every) if probing else 0
        seen, series.ticket = series.tensors.let_go(), 0
        self._reading -= 1
        if seen and not probing:
            self._library.unsteady(series.handle, seen * library.UNSTEADY_GRADIENTS)
        series.here = series.here or bool(changed or seen)

    # Steps

    # What runs in each step is in few functions, as each that the caches do not hold costs it a microsecond or two.

    def _optimizer_made(self, event: OptimizerMade) -> None:
        self._has_optimizers = True
        event.optimizer.trail = OptimizerTrail(self._random.digests(), self._agent.generators.untouched())

    def _optimizer_named(self, event: OptimizerNamed) -> None:
        if event.models:
            containers = [buffers for model in event.models for buffers in model.buffers()]
            event.optimizer.trail.buffers = ModelBuffers(containers, self._contents)

    def _update_due(self, event: UpdateDue) -> None:
        """Note what is said of the parameters before a step, and their digest where it is taken.

        That no change was counted is believed of large ones that were not seen to change without being counted.
        """
        if self._reading:
            self._settle_all()
        kept, parameters = event.optimizer.trail, event.optimizer.parameters()
        series, kept.found = kept.series, (0, 0)
        if series is None:
            digest = self._first_parameters(parameters)
            if digest is not None:
                kept.found = library.BEFORE, digest
            return
        tensors = series.tensors
        if tensors.device is not None or len(parameters) != len(tensors.parameters):
            return
        same = library.UNCHANGED if series.counted == self._reader.changes(parameters) else 0
        if (same and not series.here and not series.is_small) or not tensors.lie_still(parameters):
            kept.found = same, 0
        else:
            kept.found = same | library.BEFORE, self._library.parameters(series.handle, tensors.address)

    def _first_parameters(self, parameters: list[Any]) -> int | None:
        """Return the digest of what the first step finds: where a resumed training goes on is known by it alone."""
        devices = {parameter.device for parameter in parameters}
        if len(devices) != 1 or not parameters[0].is_cuda:
            return self._contents.parameters(parameters)
        if self._is_capturing() or not self._contents.lie_in_order(parameters):
            return None
        return self._library.of_list(self._digesters().now(devices.pop(), parameters))

    def _is_capturing(self) -> bool:
        """Return whether a CUDA graph is made, into which nothing of ours may get."""
        return private_api.uses_cuda(self._torch) and bool(self._torch.cuda.is_current_stream_capturing())

    def _update_done(self, event: UpdateDone) -> None:
        try:
            self._write_down(event)
        except BaseException as error:  # of a signal's handler's, perhaps, after which the script goes on
            self._pause()  # whatever the worker was told to read, and nobody knows of
            self.failed(error, self._update_done)
            raise

    def _write_down(self, event: UpdateDone) -> None:
        if self._is_capturing() or not self._file.is_open:
            return
        state, record = self._thread.facts, event.optimizer
        if state.pending:
            self._settle_all()
        kept, parameters = record.trail, record.parameters()
        series = kept.series
        if series is not None and series.tensors.watched:
            self._settle(series)  # another thread's step left it
        if series is None or not self._reader.same(parameters, series.tensors.parameters):
            if not parameters:
                return
            series = self._begin(record, kept, parameters)
        self._file.last = series.handle
        if series.tensors.device is None:
            probing = series.steps < PROBATION or not series.steps % AGAIN_EACH
            here = probing or series.here or self._file.is_alone
            series.whole = True
            ticket = self._write(state, kept, series, parameters, library.HERE if here else 0)
            if ticket or (probing and not series.here):
                series.ticket, series.probing = ticket, probing
                series.tensors.watch(parameters)
                state.pending.append(series)
                self._reading += 1
            else:
                series.tensors.held = []
        else:
            self._step_far(state, kept, series, parameters)
        state.fetched = None
        series.steps += 1
        kept.steps += 1
        if not (series.whole or series.is_told):
            series.is_told = True
            self._agent.warn(f"{record.name} is in the trail in part: {LEFT_OUT}")

    def _step_far(self, state: StepFacts, kept: OptimizerTrail, series: StepSeries, parameters: list[Any]) -> None:
        """A step on a device, whose digests come later."""
        devices, device = self._digesters(), series.tensors.device
        tensors, series.whole = series.tensors.far_tensors(parameters)
        losses, state.far_losses = state.far_losses, []
        self._write(state, kept, series, None, library.LATER)
        is_due = devices.is_due(device, series.steps)
        if losses or is_due:
            devices.begin(series.handle, kept.steps, device, tensors if is_due else [], losses)
        self._take_in(devices.arrived())

    def _digesters(self) -> Devices:
        """Return what digests on GPUs."""
        if self._devices is None:
            from .devices import Devices

            self._devices = Devices(self._torch, self._agent.warn)
        return self._devices

    def _take_in(self, arrived: Iterable[Any]) -> None:
        """Write down what has arrived from devices."""
        for late in arrived:
            loss = 0
            for tensor in late.losses:
                loss = self._contents.tensor(loss, tensor)
            self._library.given(late.handle, late.step, loss, 0 if late.digests is None else late.digests.data_ptr())

    def _begin(self, record: Any, kept: OptimizerTrail, parameters: list[Any]) -> StepSeries:
        if kept.series is not None:
            self._end(kept.series)
        tensors, handle = TrackedTensors(parameters, self._torch, self._library, self._reader), 0
        kept.tables += 1
        if kept.tables <= MAX_TABLES:
            handle = self._file.series(self._agent, record, kept, tensors)
        if not handle:
            raise RuntimeError("the trail ends here, as an optimizer's parameters became others too often")
        kept.series = StepSeries(tensors, handle, self._library)
        return kept.series

    def _write(self, state: StepFacts, kept: OptimizerTrail, series: StepSeries, parameters: Any, how: int) -> int:
        """Write down a step; its ticket. Of None as parameters no gradients are looked for."""
        flags, before = kept.found
        buffers = kept.buffers.digest() if kept.buffers is not None else None
        flags |= (0 if series.whole else library.PARTIAL) | (0 if buffers is None else library.BUFFERS)
        devices = self._random.devices() if private_api.uses_cuda(self._torch) else 0
        more = flags, how, before, buffers or 0, devices
        done = self._reader.step(self._random.words.known, series.known, parameters, state.address, *more)
        if done is None:
            return self._write_one_by_one(state, series, parameters, *more)
        ticket, series.counted, series.tensors.held = done
        return ticket

    def _write_one_by_one(
        self, state: StepFacts, series: StepSeries, parameters: Any, flags: int, how: int,
        before: int, buffers: int, devices: int,
    ) -> int:  # fmt: skip
        """Write the same where something does not lie as it lay, is no plain tensor, or nothing is compiled."""
        if parameters is not None:
            series.whole = series.tensors.point(parameters)
            series.counted = self._reader.changes(parameters)
            flags |= 0 if series.whole else library.PARTIAL
        random, words, room = self._random.default, self._random.words, state.room
        python, numpy = words.both()
        flags |= room[library.AT_FLAGS] | library.TORCH
        flags |= (library.PYTHON if python else 0) | (library.NUMPY if numpy else 0)
        digests = room[library.AT_BATCH], room[library.AT_LOSS], before, buffers, room[library.AT_INPUTS]
        states = random.state(), random.size, random.salt, devices, python, numpy, words.salt
        room[:] = [0] * library.FACTS
        facts = library.pack(flags, how, *digests, *states)
        return self._library.long_step(series.handle, facts, series.tensors.address)  # type: ignore[no-any-return]

    # The end

    def _optimizer_ended(self, event: OptimizerEnded) -> None:
        kept = event.optimizer.trail
        if kept is not None and kept.series is not None:
            self._end(kept.series)

    def _end(self, series: StepSeries) -> None:
        """Its optimizer is gone, or has other tensors now."""
        if series in self._thread.facts.pending:
            self._thread.facts.pending.remove(series)
        self._settle(series)

    def _pause(self) -> None:
        """Before a fork: the worker ends what it does, and is made again when it is needed."""
        if self._file.handle and self._file.is_open:
            self._library.pause(self._file.handle)

    def finish(self) -> None:
        """Wait for all that is read."""
        if self._file.is_open:
            self._settle_all()
            if self._devices is not None:
                self._take_in(self._devices.arrived(all_of_them=True))
            self._file.close()
