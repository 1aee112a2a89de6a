"""The trail of a training: digests of the inputs and results of each optimizer step, computed beside the training.

Usually gradients do not change until the next backward pass, nor parameters until the next step. Until then the
worker thread of the library reads them in place. Calls that change them first wait for the worker: backward,
zero_grad, step, load_state_dict. A training that changes them at other times is detected by the version counters of
its tensors, and in its first steps, which are digested at once and checked again. Its further steps are then digested
before it continues.
"""

from __future__ import annotations

import os
from _thread import _local
from operator import attrgetter

from ..core import trail_library as library
from ..events.steps import (
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
from .stride import ALWAYS, PASSED_OVER, TrailStride
from .tensors import here

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    from ..core.agent import Agent
    from ..events.steps import Events, Handler, TrainingEvent
    from .devices import DeviceDigester


PROBATION = 16  # first steps that are digested at once and checked again
RECHECK_EVERY = 256  # one in so many later steps is checked again, too
MAX_TENSORS = 8  # tensors of a batch that are recognized as inputs; losses on a device kept until the step
SMALL_PARAMETERS = 1 << 16  # bytes of parameters up to which they are also digested before each step
LEFT_OUT = "gradients or parameters that are sparse or on several devices are left out"
GRAPH = "the steps that replays of the graph take are in no trail, and what they compute is not seen"
MAX_LOSS = 1024  # elements of a loss on a GPU
_TENSORS_CHANGE, _UPDATE_DUE = frozenset([TensorsChange]), frozenset([UpdateDue])
_SEQUENCES = frozenset([list, tuple])
_is_here = attrgetter("is_cpu")


class StepFacts:
    """The facts that a thread has collected for its next step."""

    def __init__(self, loaded: library.Library) -> None:
        self.words, self.address = loaded.buffer(library.FACTS)  # struct rkt_facts, also filled by compiled code
        self.fetched_tensors: Any = None  # the tensors of the batch, each followed by its version counter
        self.device_losses: list[Any] = []  # not in CPU memory
        self.pending: list[StepSeries] = []  # those whose tensors the worker still reads


class StepThread(_local):
    """The state of each thread. Looked up once per event, as this is slower than an attribute."""

    def __init__(self, loaded: library.Library) -> None:
        self.facts = StepFacts(loaded)


class StepSeries:
    """The steps of one optimizer while it has the same tensors."""

    def __init__(self, tensors: Any, handle: int, loaded: library.Library) -> None:
        self.tensors = tensors
        self.handle = handle
        self.steps = 0
        self.is_immediate = False  # whether to digest before the training continues
        self.is_rechecked = False
        self.ticket = 0
        self.is_small = sum(tensors.sizes) <= SMALL_PARAMETERS
        # Arguments of the compiled step.
        self.native_state = handle, loaded.address(loaded.step), tensors.addresses_at, tensors.address
        self.is_complete = True  # whether all tensors of the last step could be read
        self.has_warned = False


class OptimizerTrail:
    """The state that the trail keeps for one optimizer."""

    def __init__(self, generators: dict[str, int], untouched: list[str]) -> None:
        self.series: StepSeries | None = None
        self.steps = 0
        self.before_step = (0, 0)  # flags and digest of the parameters as the step found them
        self.buffers: Any = None  # ModelBuffers of the models whose parameters it has
        self.generators = generators  # digests of the random states when the optimizer was created
        self.untouched = untouched  # generators that were neither seeded nor used by then
        self.every, self.always = 1, ALWAYS  # one in so many steps has digests, and each of so many first ones


class StepTrail:
    """Writes the trail of the optimizer steps of this process."""

    def __init__(
        self,
        agent: Agent,
        events: Events,
        loaded: library.Library,
        torch: Any,
        compiled: Any = None,
        every: int = 1,
    ) -> None:
        self._agent, self._events, self._library, self._torch = agent, events, loaded, torch
        self._uses_cuda = private_api.uses_cuda
        self._contents = PytorchContents(loaded, torch, compiled)
        self._random = generators.GeneratorDigests(torch, loaded)
        self._reader = StepReader(self._contents, self._random, compiled)
        agent.generators.begin("torch", self._random.torch_digest)
        os.register_at_fork(before=self._pause)
        self.stride: TrailStride | None = None
        self.forget()
        if every != 1:
            run, journal = agent.run, agent.journal
            self.stride = TrailStride(every, lambda: library.given_strides(run, journal.identity), compiled, self)

    def forget(self) -> None:
        """Reset all state: initially, and in a forked child, which gets a file of its own."""
        self._thread = StepThread(self._library)
        self._file = library.TrailFile(self._agent.run, lambda: self._agent.journal.identity, self._library)
        self._is_alone = len(os.sched_getaffinity(0)) == 1  # no core is free for a worker thread
        self._devices: DeviceDigester | None = None
        self._has_optimizers = False
        self._is_suspended = False
        self._pending_count = 0  # steps whose tensors the worker still reads
        self._hears_steps = True
        self._mute()
        if self.stride is not None:
            self.stride.forget()

    def handlers(self) -> dict[type[TrainingEvent], Handler]:
        optimizers: dict[type[TrainingEvent], Handler] = {
            OptimizerMade: self._optimizer_made,
            OptimizerNamed: self._optimizer_named,
            OptimizerEnded: self._optimizer_ended,
        }
        if self._is_suspended:
            return {**optimizers, UpdateDone: self._count_step}
        steps: dict[type[TrainingEvent], Handler] = {
            BatchFetched: self._batch_fetched,
            ModelCalled: self._model_called,
            LossComputed: self._loss_computed,
            TensorsChange: self._tensors_change,
            UpdateDue: self._update_due,
            UpdateDone: self._update_done,
        }
        if self.stride is not None and self.stride.measured:
            steps = {event: self.stride.cost.timed(handler) for event, handler in steps.items()}
        return {**optimizers, **steps}

    def suspend(self) -> None:
        """Only count steps from now on: what a replay leaves out has no digests. The caller arranges the events."""
        self._wait_for_all()
        self._is_suspended = True

    def resume(self) -> None:
        """Digest steps again."""
        self._is_suspended = False

    def failed(self, error: BaseException, _handler: Handler) -> None:
        """End the trail with a warning. Its tensors stay referenced, as the worker may still read them."""
        self._file.is_open = False
        self._events.remove(self)
        self._agent.warn(f"no further step is kept in the trail: {type(error).__name__}: {error}", "trail-ended")

    # Facts collected until the step

    def _batch_fetched(self, event: BatchFetched) -> None:
        facts, batch = self._thread.facts, event.batch
        words = facts.words
        is_first = not words[library.AT_FLAGS] & (library.BATCH | library.BATCH_PARTIAL)
        facts.fetched_tensors = self._reader.batch(facts.address, batch)
        if facts.fetched_tensors is None:
            self._digest_batch(facts, batch)
        if is_first and words[library.AT_FLAGS] & library.BATCH:
            event.digest = words[library.AT_BATCH]

    def _digest_batch(self, facts: StepFacts, batch: Any) -> None:
        is_simple = self._is_plain_batch(batch)
        if is_simple and all(map(_is_here, batch)):
            facts.fetched_tensors = [part for tensor in batch for part in (tensor, private_api.changes(tensor))]
        facts.words[library.AT_BATCH], is_partial = self._digest(facts.words[library.AT_BATCH], batch, is_simple)
        flags = facts.words[library.AT_FLAGS] | (library.BATCH_PARTIAL if is_partial else library.BATCH)
        facts.words[library.AT_FLAGS] = flags & ~library.BATCH if flags & library.BATCH_PARTIAL else flags

    def _is_plain_batch(self, batch: Any) -> bool:
        return type(batch) in _SEQUENCES and len(batch) <= MAX_TENSORS and self._contents.are_tensors(batch)

    def _digest(self, digest: int, batch: Any, is_simple: bool) -> tuple[int, bool]:
        """Fold a batch into a digest; return the digest, and whether a part of the batch could not be read."""
        contents, is_partial = self._contents, False
        with private_api.without_overrides(self._torch):
            for part in batch if is_simple else [batch]:
                digest = contents.value(digest, part)
                is_partial, contents.has_unreadable = is_partial or contents.has_unreadable, False
        return digest, is_partial

    def digest(self, batch: Any) -> int | None:
        """Return the digest of a single batch; None if not all of it can be read."""
        digest, is_partial = self._digest(0, batch, self._is_plain_batch(batch))
        return None if is_partial else digest

    def _model_called(self, event: ModelCalled) -> None:
        facts = self._thread.facts
        if self._has_optimizers and (
            event.keywords
            or not event.has_gradients
            or not self._reader.input(facts.address, facts.fetched_tensors, event.arguments)
        ):
            self._digest_inputs(facts, event)

    def _digest_inputs(self, facts: StepFacts, event: ModelCalled) -> None:
        """Digest the arguments of a model call now, as the training may change them later."""
        words, flags = facts.words, library.CALLED
        fetched = None if facts.fetched_tensors is None else FetchedTensors(facts.fetched_tensors)
        arguments = CallArguments(words[library.AT_INPUTS], fetched, self._contents, self._library)
        if event.has_gradients:
            arguments.take(event.arguments, event.keywords)
            words[library.AT_INPUTS] = arguments.digest
            flags |= library.INPUTS if arguments.count else 0
        if arguments.is_partial or not event.has_gradients:
            flags |= library.INPUTS_PARTIAL
        if words[library.AT_FLAGS] & library.CALLED and arguments.count:
            flags |= library.INPUTS_SEVERAL
        words[library.AT_FLAGS] |= flags

    def _loss_computed(self, event: LossComputed) -> None:
        loss, facts = event.loss, self._thread.facts
        if not event.is_here:
            if len(facts.device_losses) < MAX_TENSORS and loss.is_cuda and loss.numel() <= MAX_LOSS:
                facts.device_losses.append(loss.detach())
        elif not self._reader.loss(facts.address, loss):
            facts.words[library.AT_LOSS], _ = self._digest(facts.words[library.AT_LOSS], loss, False)
            facts.words[library.AT_FLAGS] |= library.LOSS

    # Calls that are about to change tensors which the worker reads

    def _tensors_change(self, _event: TensorsChange) -> None:
        if self._pending_count:
            with private_api.without_overrides(self._torch):
                self._wait_for_all()

    def _count_pending(self, change: int) -> None:
        """Count the steps whose tensors the worker reads; calls that change them matter only then."""
        self._pending_count += change
        if self._pending_count in (0, change):
            self._mute()

    def _mute(self) -> None:
        passed_over = frozenset() if self._hears_steps else PASSED_OVER
        # While tensors are read, the next update changes them, too.
        muted = passed_over - _UPDATE_DUE if self._pending_count else passed_over | _TENSORS_CHANGE
        self._events.mute(self, muted)

    def rearrange(self) -> None:
        """Time the handlers, or no longer."""
        self._events.arrange()

    def stride_chosen(self, record: Any) -> None:
        """Begin a series that says which steps it has, as the one until now has each."""
        trail = record.trail
        before = trail.series
        if before is not None and self._file.is_open:
            series = self._begin_series(record, trail, record.parameters())
            series.steps, series.is_immediate = before.steps, before.is_immediate  # its tensors are known

    def stride_changed(self, hears_steps: bool) -> None:
        """Hear of the steps that come, or pass them over; what was collected before is of no step that is written."""
        if hears_steps is not self._hears_steps:
            self._hears_steps = hears_steps
            if hears_steps and not self._pending_count:
                self._thread = StepThread(self._library)
            self._mute()

    def _wait_for_all(self) -> None:
        """Wait until the worker has read the tensors of all steps of this thread."""
        pending = self._thread.facts.pending
        while pending:
            self._wait_for(pending.pop())

    def _wait_for(self, series: StepSeries) -> None:
        file = self._file
        if not (file.is_open and series.tensors.watched):  # released already
            return
        if series.ticket:  # even if done already: a replay must call, and allocate memory, where its recording did
            self._library.wait(file.handle, series.ticket)
        was_rechecked, all_parts = series.is_rechecked, library.CHANGED_GRADIENTS | library.CHANGED_PARAMETERS
        changed_bytes = self._library.changed(series.handle, all_parts) if was_rechecked else 0
        changed_versions, series.ticket = series.tensors.release(), 0
        self._count_pending(-1)
        if changed_versions and not was_rechecked:
            self._library.unsteady(series.handle, changed_versions * library.UNSTEADY_GRADIENTS)
        series.is_immediate = series.is_immediate or bool(changed_bytes or changed_versions)

    # Steps

    # The code of each step is in few functions, as each one outside the caches costs a microsecond or two.

    def _optimizer_made(self, event: OptimizerMade) -> None:
        self._has_optimizers = True
        event.optimizer.trail = OptimizerTrail(self._random.digests(), self._agent.generators.untouched())

    def _optimizer_named(self, event: OptimizerNamed) -> None:
        if event.models:
            containers = [buffers for model in event.models for buffers in model.buffers()]
            event.optimizer.trail.buffers = ModelBuffers(containers, self._contents)

    def _update_due(self, event: UpdateDue) -> None:
        """Record whether the parameters changed since the last step, and their digest if it is computed.

        For large parameters the version counters alone are trusted, unless changes without a new version were seen.
        """
        if self._pending_count:
            self._wait_for_all()
        steps, trail = event.optimizer.steps, event.optimizer.trail
        if steps >= trail.always and steps % trail.every:
            return
        parameters = event.optimizer.parameters()
        series, trail.before_step = trail.series, (0, 0)
        if series is None:
            digest = self._first_parameters(parameters)
            if digest is not None:
                trail.before_step = library.BEFORE, digest
            return
        tensors = series.tensors
        if tensors.device is not None or len(parameters) != len(tensors.parameters):
            return
        unchanged = library.UNCHANGED if event.optimizer.change_count == tensors.changes(parameters) else 0
        if (unchanged and not series.is_immediate and not series.is_small) or not tensors.are_unmoved(parameters):
            trail.before_step = unchanged, 0
        else:
            trail.before_step = unchanged | library.BEFORE, self._library.parameters(series.handle, tensors.address)

    def _first_parameters(self, parameters: list[Any]) -> int | None:
        """Return the digest of the parameters before the first step, which tells where a resumed training continues."""
        parameters = here(parameters)
        devices = {parameter.device for parameter in parameters}
        if len(devices) != 1 or not parameters[0].is_cuda:
            return self._contents.parameters(parameters)
        if self._is_capturing() or not self._contents.are_dense(parameters):
            return None
        return self._library.of_list(self._device_digests().now(devices.pop(), parameters))

    def _is_capturing(self) -> bool:
        """Return whether a CUDA graph is being captured, into which no operation of the agent may get."""
        return self._uses_cuda(self._torch) and bool(self._torch.cuda.is_current_stream_capturing())

    def _update_done(self, event: UpdateDone) -> None:
        try:
            facts, record = self._thread.facts, event.optimizer
            if self._uses_cuda(self._torch) and self._is_capturing():
                self._agent.warn(f"{record.name} is updated in a CUDA graph: {GRAPH}", "trail-in-part")
            elif record.steps > record.trail.always and (record.steps - 1) % record.trail.every:
                self._pass_over(facts, record)  # another optimizer's next step is looked at
            elif self._file.is_open:
                self._record_step(facts, record)
        except BaseException as error:  # perhaps raised by a signal handler, after which the script continues
            self._pause()  # the worker may have been given tensors that nothing refers to now
            self.failed(error, self._update_done)
            raise

    def _pass_over(self, facts: StepFacts, record: Any) -> None:
        """Drop what was collected for a step."""
        facts.words[:] = [0] * library.FACTS
        facts.fetched_tensors, facts.device_losses = None, []
        record.change_count = self._reader.changes(record.parameters())

    def _write_passed_over(self, trail: OptimizerTrail, series: StepSeries, steps: int) -> None:
        """Write that steps were passed over, up to this number of them."""
        if steps > trail.steps:
            self._library.pass_steps(series.handle, steps - trail.steps)
            trail.steps = steps

    def _record_step(self, facts: StepFacts, record: Any) -> None:
        if facts.pending:
            self._wait_for_all()
        trail, parameters = record.trail, record.parameters()
        series = trail.series
        if series is not None and series.tensors.watched:
            self._wait_for(series)  # the last step was by another thread
        if series is not None and self.stride is not None and record.steps - 1 > trail.steps:
            self._library.pass_steps(series.handle, record.steps - 1 - trail.steps)
            trail.steps = record.steps - 1
        if series is None or not self._reader.same(parameters, series.tensors.parameters):
            if not parameters:
                return
            series = self._begin_series(record, trail, parameters)
        self._file.last = series.handle
        if series.tensors.device is None:
            is_rechecked = series.steps < PROBATION or not series.steps % RECHECK_EVERY
            is_immediate = is_rechecked or series.is_immediate or self._is_alone or self._is_measured()
            series.is_complete = True
            ticket = self._write(facts, record, series, parameters, library.HERE if is_immediate else 0)
            if ticket or (is_rechecked and not series.is_immediate):
                series.ticket, series.is_rechecked = ticket, is_rechecked
                series.tensors.watch(parameters)
                facts.pending.append(series)
                self._count_pending(1)
            else:
                series.tensors.referenced = []
        else:
            self._step_on_device(facts, record, series, parameters)
        facts.fetched_tensors = None
        series.steps += 1
        trail.steps += 1
        if not (series.is_complete or series.has_warned):
            series.has_warned = True
            self._agent.warn(f"{record.name} is in the trail in part: {LEFT_OUT}", "trail-in-part")

    def _is_measured(self) -> bool:
        """Return whether all the work of a step is to be done in its thread, whose time is measured."""
        return self.stride is not None and bool(self.stride.measured)

    def _count_step(self, event: UpdateDone) -> None:
        """Write a step without digests."""
        record, trail, parameters = event.optimizer, event.optimizer.trail, event.optimizer.parameters()
        if not (self._file.is_open and parameters):
            return
        if trail.series is not None and self.stride is not None:
            self._write_passed_over(trail, trail.series, record.steps - 1)
        if trail.series is None or not self._reader.same(parameters, trail.series.tensors.parameters):
            self._begin_series(record, trail, parameters)
        series = trail.series
        self._file.last = series.handle
        self._library.long_step(series.handle, library.pack(0, library.LATER, *[0] * 12), series.tensors.address)
        series.steps += 1
        trail.steps += 1

    def _step_on_device(self, facts: StepFacts, record: Any, series: StepSeries, parameters: list[Any]) -> None:
        """Write a step on a device; its digests arrive later."""
        devices, device = self._device_digests(), series.tensors.device
        tensors, series.is_complete = series.tensors.device_tensors(parameters)
        losses, facts.device_losses = facts.device_losses, []
        self._write(facts, record, series, None, library.LATER)
        is_due = devices.is_due(device, series.steps)
        if losses or is_due:
            devices.begin(series.handle, record.trail.steps, device, tensors if is_due else [], losses)
        self._write_arrived(devices.arrived())

    def _device_digests(self) -> DeviceDigester:
        """Return the digester of GPU tensors, created on first use."""
        if self._devices is None:
            from .devices import DeviceDigester

            self._devices = DeviceDigester(self._torch, self._agent.warn)
        return self._devices

    def _write_arrived(self, arrived: Iterable[Any]) -> None:
        """Write the digests that have arrived from devices."""
        for step in arrived:
            loss = 0
            for tensor in step.losses:
                loss = self._contents.tensor(loss, tensor)
            self._library.given(step.handle, step.step, loss, 0 if step.digests is None else step.digests.data_ptr())

    def _begin_series(self, record: Any, trail: OptimizerTrail, parameters: list[Any]) -> StepSeries:
        if trail.series is not None:
            self._end_series(trail.series)
        tensors = TrackedTensors(parameters, self._torch, self._library, self._reader)
        random_states: dict[str, Any] = {"generators": trail.generators, "untouched": trail.untouched}
        if trail.every > 1:
            random_states.update(every=trail.every, always=trail.always)
        described = tensors.descriptions(record.parameter_names())
        handle = self._file.series(record.name, record.kind, described, trail.steps, **random_states)
        trail.series = StepSeries(tensors, handle, self._library)
        return trail.series

    def _write(self, facts: StepFacts, record: Any, series: StepSeries, parameters: Any, mode: int) -> int:
        """Write a step; return the ticket of the worker. With parameters None no gradients are read."""
        trail: OptimizerTrail = record.trail
        flags, before = trail.before_step
        buffers = trail.buffers.digest() if trail.buffers is not None else None
        flags |= (0 if series.is_complete else library.PARTIAL) | (0 if buffers is None else library.BUFFERS)
        devices = self._random.devices() if self._uses_cuda(self._torch) else 0
        arguments = flags, mode, before, buffers or 0, devices
        result = self._reader.step(self._random.words.known, series.native_state, parameters, facts.address, *arguments)
        if result is None:
            return self._write_step_in_python(facts, record, series, parameters, *arguments)
        ticket, record.change_count, series.tensors.referenced = result
        return ticket

    def _write_step_in_python(
        self, facts: StepFacts, record: Any, series: StepSeries, parameters: Any, flags: int, mode: int,
        before: int, buffers: int, devices: int,
    ) -> int:  # fmt: skip
        """Write a step without compiled code, or if a tensor has moved or is no plain tensor."""
        if parameters is not None:
            series.is_complete = series.tensors.update_pointers(parameters)
            record.change_count = series.tensors.changes(parameters)
            flags |= 0 if series.is_complete else library.PARTIAL
        random, random_words, words = self._random.default, self._random.words, facts.words
        python, numpy = random_words.both()
        flags |= words[library.AT_FLAGS] | library.TORCH
        flags |= (library.PYTHON if python else 0) | (library.NUMPY if numpy else 0)
        digests = words[library.AT_BATCH], words[library.AT_LOSS], before, buffers, words[library.AT_INPUTS]
        states = random.state(), random.size, random.salt, devices, python, numpy, random_words.salt
        words[:] = [0] * library.FACTS
        packed = library.pack(flags, mode, *digests, *states)
        return self._library.long_step(series.handle, packed, series.tensors.address)  # type: ignore[no-any-return]

    # The end

    def _optimizer_ended(self, event: OptimizerEnded) -> None:
        trail = event.optimizer.trail
        if trail is not None and trail.series is not None:
            self._end_series(trail.series)
            self._write_last(event.optimizer)

    def _write_last(self, record: Any) -> None:
        """Write the parameters after an optimizer's last step, if that was passed over and they are as it left them."""
        trail, parameters = record.trail, record.parameters()
        series = trail.series
        if self.stride is None or series is None or not self._file.is_open or record.steps <= trail.steps:
            return
        tensors = series.tensors
        is_readable = tensors.device is None and self._reader.same(parameters, tensors.parameters)
        if not is_readable or record.change_count != tensors.changes(parameters):
            self._write_passed_over(trail, series, record.steps)
            return
        self._write_passed_over(trail, series, record.steps - 1)
        is_complete = tensors.update_pointers(parameters, with_gradients=False)
        flags = library.PASSED | (0 if is_complete else library.PARTIAL)
        facts = [flags, library.HERE, *[0] * (library.FACTS - 2)]
        self._library.long_step(series.handle, library.pack(*facts), tensors.address)
        tensors.referenced = []
        trail.steps += 1

    def _end_series(self, series: StepSeries) -> None:
        """End a series, as its optimizer is gone or has other tensors."""
        if series in self._thread.facts.pending:
            self._thread.facts.pending.remove(series)
        self._wait_for(series)

    def _pause(self) -> None:
        """Stop the worker before a fork; it is started again on demand."""
        if self._file.handle and self._file.is_open:
            self._library.pause(self._file.handle)

    def finish(self) -> None:
        """Wait for the worker and for all devices, then close the file."""
        if self._file.is_open:
            self._wait_for_all()
            for record in () if self.stride is None else list(self.stride.records):
                if record.trail is not None:
                    self._agent.attempt(self._write_last, record)
            if self._devices is not None:
                self._write_arrived(self._devices.arrived(all_of_them=True))
            self._file.close()
