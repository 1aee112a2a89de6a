"""The trail of a training by PyTorch: what each optimizer step was made of, digested beside the training.

Gradients do not change from one step to the next backward, nor parameters to the next step, as a rule; until then
the worker of the library may read them where they lie. Whoever is about to change them waits for it: backward,
zero_grad, step, load_state_dict. A training that changes them in between by itself is found out in its first steps,
which are digested at once and looked at again, and by the version counters of its tensors; its steps are then
digested before it goes on.
"""

from __future__ import annotations

import os
import struct
from _thread import _local
from collections.abc import Mapping
from operator import is_

from .. import trail
from ..arrays import array_entry
from .torch_buffers import Buffers
from .torch_tensors import dtype_name, entry, is_nested, is_plain

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from ..agent import Agent
    from .torch_devices import Devices
    from .torch_records import OptimizerRecord

PROBATION = 16  # steps that are looked at again
AGAIN_EACH = 256  # and one in so many later
MAX_TABLES = 64  # of one optimizer: its tensors may change that often
MAX_SALTS = 10_000
MAX_TENSORS = trail.ITEMS // 2  # of batch or loss that wait for the step
LOOKED_AT = 1 << 16  # bytes of parameters that are digested before each step, too
MAX_LOSS = 1024  # elements of a loss on a GPU
MAX_DEPTH = 16  # of what a DataLoader gives
_GRADIENTS, _PARAMETERS = 1, 2
_WORD = (1 << 64) - 1
LEFT_OUT = "gradients or parameters that are sparse, distributed or on several devices are left out"
_PUT = [struct.Struct("<%dQ" % (trail.KNOWN + 3 * items)).pack_into for items in range(trail.ITEMS + 1)]
_SEQUENCES = frozenset([list, tuple])
_ATOMS = frozenset([str, bytes, int, float, bool, complex, type(None)])


def size_of(tensor: Any) -> int:
    """The bytes of a tensor; PyTorch before 2.0 has no nbytes."""
    return tensor.numel() * tensor.element_size()  # type: ignore[no-any-return]


def _storage(tensor: Any) -> Any:
    return tensor.untyped_storage() if hasattr(tensor, "untyped_storage") else tensor.storage()


class Random:
    """The state of PyTorch's own generator. It is asked for only when the memory that it stands for has changed."""

    def __init__(self, torch: Any) -> None:
        self._generator = torch.default_generator
        self._tensor = self._generator.get_state()
        self._now: Any = None  # the memory
        self._seen = b""
        self._address: int = self._tensor.data_ptr()
        self.size: int = self._tensor.numel()
        self.salt = trail.salt("uint8", (self.size,))
        try:
            self._now = _engine(torch)(self._generator)
        except Exception:  # another PyTorch, which is asked each time
            pass

    @property
    def is_watched(self) -> bool:
        """Whether its place in memory was found."""
        return self._now is not None

    def state(self) -> int:
        """Where a copy of the state lies as it is now."""
        if self._now is not None:
            now = self._now.raw
            if now == self._seen:
                return self._address
            self._seen = now
        self._tensor = self._generator.get_state()
        self._address = self._tensor.data_ptr()
        return self._address


def _engine(torch: Any) -> Any:
    """Gives the part of a generator's memory on which its state depends, proved by a generator of our own."""
    from ctypes import c_char, string_at

    words, before, behind = 624, 24, 32

    def find(generator: Any) -> Any:
        state = bytes(generator.get_state().tolist())
        wanted = struct.pack("<%dI" % words, *struct.unpack_from("<%dQ" % words, state, before))
        place = string_at(generator._cdata, 256 + 4 * words).find(wanted)
        if not before <= place <= 256:
            raise ValueError("not found")
        start = generator._cdata + place - before
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


class _Gathered:
    """What comes together until the step: a digest so far, and tensors that the step takes with it."""

    def __init__(self) -> None:
        self.known = False
        self.is_partial = False  # so that it is not known after all
        self.digest = 0
        self.tensors: list[Any] = []

    def fold(self, contents: Contents) -> None:
        """Digest the tensors now."""
        tensors, self.tensors = self.tensors, []
        for tensor in tensors:
            self.take(contents, tensor)

    def take(self, contents: Contents, value: Any) -> None:
        """Digest anything."""
        self.digest = contents.value(self.digest, value)
        self.is_partial, contents.missed = self.is_partial or contents.missed, False

    def clear(self) -> None:
        self.known, self.is_partial, self.digest, self.tensors = False, False, 0, []


class _State(_local):
    """Of one thread."""

    def __init__(self, library: trail.Library) -> None:
        self.facts, self.address = library.buffer(trail.FACTS)
        self.batch = _Gathered()
        self.loss = _Gathered()
        self.far_losses: list[Any] = []  # on a GPU
        self.pending: list[Series] = []  # whose tensors are still read


class Series:
    """The steps of one optimizer with the tensors that it has."""

    def __init__(
        self, parameters: list[Any], readable: list[bool], device: Any, torch: Any, library: trail.Library
    ) -> None:
        self.parameters = parameters
        self.handle = 0
        self.steps = 0
        self.counted = 0  # changes to the parameters until the last step ended
        self.device = device  # a GPU that all of them are on
        self.here = False  # digest before the training goes on
        self.probing = False
        self.ticket = 0
        self.watched: list[Any] = []  # the parameters, while they are read
        self.versions = (0, 0)
        self.sizes = [size_of(p) if known else 0 for p, known in zip(parameters, readable)]  # noqa: B905
        self.is_small = sum(self.sizes) <= LOOKED_AT
        self.step = library.step if 2 * sum(self.sizes) <= trail.SMALL else library.long_step
        self._readable = readable
        self._whole = all(readable)
        self.whole = True  # all of the last step could be read
        self.is_told = False
        self._strided = torch.strided
        self._data_ptr, self._is_contiguous = torch.Tensor.data_ptr, torch.Tensor.is_contiguous
        self._nbytes = getattr(getattr(torch.Tensor, "nbytes", None), "__get__", size_of)
        self._pointers, self.address = library.buffer(2 * len(parameters))
        self._put = struct.Struct("<%dQ" % len(parameters)).pack_into
        self._storages: list[Any] = [None] * len(parameters)  # what is read stays mapped, whoever lets go of it
        self._seen = [0] * len(parameters)
        self.held: list[Any] = []

    def lie_still(self, parameters: list[Any]) -> bool:
        """Whether the parameters lie where the last step left them, and as large as they were."""
        return (
            self._whole
            and all(map(is_, parameters, self.parameters))
            and list(map(self._data_ptr, parameters)) == self._seen
            and list(map(self._nbytes, parameters)) == self.sizes
        )

    def point(self, parameters: list[Any]) -> bool:
        """Write down where gradients and parameters lie; whether all that there are can be read."""
        data_ptr, gradients = self._data_ptr, [parameter.grad for parameter in parameters]
        try:
            addresses = list(map(data_ptr, gradients))
            if (
                self._whole
                and list(map(data_ptr, parameters)) == self._seen  # they lie where they lay
                and list(map(self._nbytes, gradients)) == self.sizes
                and all(map(self._is_contiguous, gradients))
                and 0 not in addresses
            ):
                self._put(self._pointers, 0, *addresses)
                self.held = gradients
                return True
        except (RuntimeError, TypeError):  # some are sparse, or not there
            pass
        return self._point_one_by_one(parameters)

    def _point_one_by_one(self, parameters: list[Any]) -> bool:
        held: list[Any] = []
        of_parameters = self._of_parameters(parameters, held)
        whole = self._whole
        of_gradients = []
        for parameter, size in zip(parameters, self.sizes):  # noqa: B905
            gradient = parameter.grad
            if gradient is None:
                of_gradients.append(0)
            elif gradient.layout is self._strided and gradient.is_contiguous() and size_of(gradient) == size:
                held.append(gradient)
                of_gradients.append(gradient.data_ptr())
            else:
                copy = self._copy(gradient, size)
                held.append(copy)
                of_gradients.append(0 if copy is None else copy.data_ptr())
                whole = whole and copy is not None
        self.held = held
        self._pointers[:] = of_gradients + of_parameters
        return whole

    def _of_parameters(self, parameters: list[Any], held: list[Any]) -> list[int]:
        """One that lies where it lay is what it was, as its storage is held."""
        if self._whole:
            addresses = [parameter.data_ptr() for parameter in parameters]
            if addresses == self._seen:
                return addresses
        self._seen, self._whole = [0] * len(parameters), True
        return [self._address(position, parameter, held) for position, parameter in enumerate(parameters)]

    def _address(self, position: int, parameter: Any, held: list[Any]) -> int:
        size = self.sizes[position]
        if self._readable[position] and parameter.is_contiguous() and size_of(parameter) == size and parameter.is_cpu:
            self._storages[position] = _storage(parameter)
            self._seen[position] = address = parameter.data_ptr()
            return address  # type: ignore[no-any-return]
        copy = self._copy(parameter, size) if self._readable[position] else None
        self._whole = self._whole and copy is not None
        held.append(copy)
        return 0 if copy is None else copy.data_ptr()

    def _copy(self, tensor: Any, size: int) -> Any:
        """In C order; None of what has no such bytes on this side."""
        if tensor.layout is not self._strided or size_of(tensor) != size or not tensor.is_cpu:
            return None
        return tensor.detach().contiguous()

    def far_tensors(self, parameters: list[Any]) -> tuple[list[Any], bool]:
        """Gradients and parameters on a GPU, None for what cannot be read; whether all that there are can."""
        given = [*[parameter.grad for parameter in parameters], *parameters]
        tensors = [tensor if self._is_far(tensor, size) else None for tensor, size in zip(given, self.sizes * 2)]  # noqa: B905
        return tensors, all((tensor is None) is (found is None) for tensor, found in zip(given, tensors))  # noqa: B905

    def _is_far(self, tensor: Any, size: int) -> bool:
        is_dense = tensor is not None and tensor.layout is self._strided
        return is_dense and size_of(tensor) == size and tensor.device == self.device

    def watch(self, parameters: list[Any], ticket: int, probing: bool) -> None:
        """From here to let_go() nobody should change what was pointed at."""
        self.watched, self.ticket, self.probing = parameters, ticket, probing
        self.versions = self._versions()

    def _versions(self) -> tuple[int, int]:
        """What changes in place raise."""
        held = [tensor._version for tensor in self.held if tensor is not None]
        return sum(held), sum([tensor._version for tensor in self.watched])

    def let_go(self) -> int:
        """Nothing is read any more; which parts were changed meanwhile, as far as their tensors know."""
        gradients, parameters = self._versions()
        changed = _GRADIENTS * (gradients != self.versions[0]) | _PARAMETERS * (parameters != self.versions[1])
        self.held, self.watched, self.ticket = [], [], 0
        return changed


class TorchTrail:
    """The trail of this process, as far as PyTorch makes it."""

    def __init__(self, agent: Agent, library: trail.Library, torch: Any) -> None:
        self._agent = agent
        self._library = library
        self._torch = torch
        self._contents = Contents(library, torch)
        self._words = trail.Words()
        self._random = random = Random(torch)
        agent.generators.begin("torch", lambda: library.digest(random.state(), random.size, random.salt))
        self._cuda = torch.cuda
        self._alone = len(os.sched_getaffinity(0)) == 1  # no processor is left for a thread beside
        self.forget()

    def forget(self) -> None:
        """At the beginning, and in a forked child, whose parent's file is another one."""
        self._state = _State(self._library)
        self._handle = 0
        self._done: Any = None
        self._devices: Devices | None = None
        self._last = 0
        self.reading = 0  # steps whose tensors are still read
        self._closed = False

    # What comes together until the step

    def fetched(self, batch: Any) -> None:
        """A DataLoader gave this. Tensors are digested with the step, to which they are as they came, as a rule."""
        gathered = self._state.batch
        gathered.known = True
        are_few = type(batch) in _SEQUENCES and len(batch) <= MAX_TENSORS and self._contents.are_tensors(batch)
        if are_few and not gathered.tensors:
            gathered.tensors = list(batch)
        else:
            with self._torch._C.DisableTorchFunction():
                gathered.fold(self._contents)
                gathered.take(self._contents, batch)

    def lost(self, loss: Any) -> None:
        """backward() is called of this."""
        if loss.is_cpu:
            gathered = self._state.loss
            gathered.known = True
            if gathered.tensors:
                gathered.fold(self._contents)
            gathered.tensors.append(loss)  # with its graph, as the script's own variable holds it: a copy costs more
        elif loss.is_cuda and loss.numel() <= MAX_LOSS and len(self._state.far_losses) < MAX_TENSORS:
            self._state.far_losses.append(loss.detach())

    def let_graph_go(self) -> None:
        """backward() has not freed what the last loss came from."""
        loss = self._state.loss
        loss.tensors = [tensor.detach() for tensor in loss.tensors]

    # Who is about to change what is read

    def settle(self) -> None:
        """Wait until nothing that this thread's steps left behind is read any more."""
        pending = self._state.pending
        while pending:
            self._settle(pending.pop())

    def _settle(self, series: Series) -> None:
        if self._closed or not series.watched:  # let go of already
            return
        if series.ticket > self._done.value:
            self._library.wait(self._handle, series.ticket)
        probing = series.probing
        changed = self._library.changed(series.handle, _GRADIENTS | _PARAMETERS) if probing else 0
        seen = series.let_go()
        self.reading -= 1
        if seen and not probing:
            self._library.unsteady(series.handle, seen * trail.UNSTEADY_GRADIENTS)
        series.here = series.here or bool(changed or seen)

    # Steps

    # What runs in each step is in few functions, as each that the caches do not hold costs it a microsecond or two.

    def begins(self, record: OptimizerRecord) -> None:
        """An optimizer is about to step."""
        record.found = self._found(record)

    def _found(self, record: OptimizerRecord) -> tuple[int, int]:
        """What is said of the parameters before a step, and their digest where it is taken.

        That PyTorch counted no change is believed of large ones that were not seen to change without being counted.
        """
        series, parameters = record.series, record.parameters()
        if series is None:
            digest = self._contents.parameters(parameters)
            return (0, 0) if digest is None else (trail.BEFORE, digest)
        if series.device is not None or len(parameters) != len(series.parameters):
            return 0, 0
        same = trail.UNCHANGED if series.counted == sum([parameter._version for parameter in parameters]) else 0
        if (same and not series.here and not series.is_small) or not series.lie_still(parameters):
            return same, 0
        return same | trail.BEFORE, self._library.parameters(series.handle, series.address)

    def has_buffers(self, record: OptimizerRecord, containers: list[dict[str, Any]]) -> None:
        """An optimizer's models have these."""
        record.buffers = Buffers(containers, self._contents, self._library, self._torch)

    def generators(self) -> dict[str, int]:
        """The digests of the random states as they are now."""
        random, library = self._random, self._library
        torch = library.digest(random.state(), random.size, random.salt)
        others = self._generators() if self._cuda._initialized else 0
        addresses = zip(("python", "numpy"), self._words.both())  # noqa: B905
        words = {name: library.digest(place, trail.WORDS, self._words.salt) for name, place in addresses if place}
        return {"torch": trail.mix(torch + others) if others else torch, **words}

    def stepped(self, record: OptimizerRecord) -> None:
        """An optimizer has stepped."""
        if self._closed or (self._cuda._initialized and self._cuda.is_current_stream_capturing()):
            return  # nothing of ours may get into a CUDA graph that is being recorded
        state = self._state
        if state.pending:
            self.settle()
        parameters, series = record.parameters(), record.series
        if series is not None and series.watched:
            self._settle(series)  # another thread's step left it
        if (
            series is None
            or len(parameters) != len(series.parameters)
            or not all(map(is_, parameters, series.parameters))
        ):
            if not parameters:
                return
            series = self._begin(record, parameters)
        self._last = series.handle
        if series.device is not None:
            self._step_far(record, series, parameters)
        else:
            probing = series.steps < PROBATION or not series.steps % AGAIN_EACH
            here = probing or series.here or self._alone
            series.whole = series.point(parameters)
            series.counted = sum([parameter._version for parameter in parameters])
            self._gather(state, record, series, trail.HERE if here else 0)
            ticket = series.step(series.handle, state.address, series.address)
            if ticket or (probing and not series.here):
                series.watch(parameters, ticket, probing)
                state.pending.append(series)
                self.reading += 1
            else:
                series.held = []
        state.batch.clear()
        state.loss.clear()
        series.steps += 1
        record.trailed += 1
        if not (series.whole or series.is_told):
            series.is_told = True
            self._agent.warn(f"{record.name} is in the trail in part: {LEFT_OUT}")

    def _step_far(self, record: OptimizerRecord, series: Series, parameters: list[Any]) -> None:
        """A step on a GPU, whose digests come later."""
        if self._devices is None:
            from .torch_devices import Devices

            self._devices = Devices(self._torch, self._agent.warn)
        tensors, series.whole = series.far_tensors(parameters)
        losses, self._state.far_losses = self._state.far_losses, []
        self._gather(self._state, record, series, trail.LATER)
        self._library.step(series.handle, self._state.address, series.address)
        is_due = self._devices.is_due(series.device, series.steps)
        if losses or is_due:
            self._devices.begin(series.handle, record.trailed, series.device, tensors if is_due else [], losses)
        self._take_in(all_of_them=False)

    def _take_in(self, all_of_them: bool) -> None:
        """Write down what has arrived from GPUs."""
        for late in self._devices.arrived(all_of_them) if self._devices is not None else ():
            loss = 0
            for tensor in late.losses:
                loss = self._contents.tensor(loss, tensor)
            self._library.given(late.handle, late.step, loss, 0 if late.digests is None else late.digests.data_ptr())

    def _begin(self, record: OptimizerRecord, parameters: list[Any]) -> Series:
        if record.series is not None:
            self.ended(record.series)
        if not self._handle:
            self._handle = self._library.open(self._agent.run, self._agent.journal.identity)
            self._done = self._library.done(self._handle)
        devices = {p.device for p in parameters}
        device = parameters[0].device if len(devices) == 1 and parameters[0].is_cuda else None
        strided, is_far = self._torch.strided, device is not None
        readable = [is_plain(p) and p.layout is strided and p.is_cpu is not is_far for p in parameters]
        series = Series(parameters, readable, device, self._torch, self._library)
        tensors = [
            (name, dtype_name(p), [int(size) for size in p.shape], size)
            for name, p, size in zip(record.parameter_names(), parameters, series.sizes)  # noqa: B905
        ]
        record.tables += 1
        if record.tables <= MAX_TABLES:
            known: dict[str, Any] = {"generators": record.generators, "untouched": record.untouched}
            series.handle = self._library.series(
                self._handle, record.name, record.kind, tensors, record.trailed, **known
            )
        if not series.handle:
            raise RuntimeError("the trail ends here, as an optimizer's parameters became others too often")
        record.series = series
        return series

    def _gather(self, state: _State, record: OptimizerRecord, series: Series, how: int) -> None:
        """Put together what is known beside the tensors of the series. The tensors live on in batch and loss."""
        flags, before = record.found
        buffers = record.buffers.digest() if record.buffers is not None else None
        flags |= (0 if series.whole else trail.PARTIAL) | (0 if buffers is None else trail.BUFFERS)
        batch, loss, random = state.batch, state.loss, self._random
        items = self._contents.items(batch.tensors + loss.tensors)
        if items is None:
            batch.fold(self._contents)
            loss.fold(self._contents)
            items = []
        python, numpy = self._words.both()
        flags |= trail.TORCH | trail.BATCH * (batch.known and not batch.is_partial) | trail.LOSS * loss.known
        flags |= (trail.PYTHON if python else 0) | (trail.NUMPY if numpy else 0)
        others = self._generators() if self._cuda._initialized else 0
        seen = batch.digest, loss.digest, before, buffers or 0
        facts = (flags, how, *seen, random.state(), random.size, random.salt, others)
        numbers = self._words.salt, len(batch.tensors), len(loss.tensors)
        _PUT[len(items) // 3](state.facts, 0, *facts, python, numpy, *numbers, *items)

    def _generators(self) -> int:
        """The states of the devices' generators: seed and offset, without waiting for a device."""
        numbers = []
        for generator in self._torch.cuda.default_generators:
            numbers += [generator.initial_seed(), generator.get_offset() if hasattr(generator, "get_offset") else 0]
        return self._library.of_list([number & _WORD for number in numbers])

    # The end

    def ended(self, series: Series) -> None:
        """Its optimizer is gone, or has other tensors now."""
        if series in self._state.pending:
            self._state.pending.remove(series)
        self._settle(series)

    def pause(self) -> None:
        """Before a fork: the worker ends what it does, and is made again when it is needed."""
        if self._handle:
            self._library.pause(self._handle)

    def finish(self) -> None:
        """Wait for all that is read, and give back the room that the file has at its end."""
        if self._handle:
            self.settle()
            self._take_in(all_of_them=True)
            self._closed = True
            handle, self._handle = self._handle, 0
            self._library.close(handle, self._last)


class Contents:
    """Digests of what trainings pass around: tensors, arrays, and what they come packed in."""

    def __init__(self, library: trail.Library, torch: Any) -> None:
        self._library = library
        self._fold = library.fold
        self._tensor = torch.Tensor
        self._only = frozenset([torch.Tensor])
        self._strided = torch.strided
        self.missed = False  # a tensor that does not lie on this side
        self._salts: dict[tuple[Any, Any], int] = {}
        self._known: dict[tuple[Any, Any], tuple[int, int]] = {}  # size and salt of simple tensors
        self._is_negative = getattr(torch.Tensor, "is_neg", lambda tensor: False)  # PyTorch before 1.10 has none

    def are_tensors(self, values: Any) -> bool:
        """Whether these are tensors, and of no subclass."""
        return self._only.issuperset(map(type, values))

    def is_simple(self, tensor: Any) -> bool:
        """Whether its bytes lie here and in order."""
        return (
            type(tensor) is self._tensor
            and tensor.layout is self._strided
            and tensor.is_cpu
            and tensor.is_contiguous()
            and not (tensor.is_quantized or tensor.is_complex() or self._is_negative(tensor) or is_nested(tensor))
        )

    def items(self, tensors: Sequence[Any]) -> list[int] | None:
        """Address, size and salt of tensors whose bytes lie here and in order; None where one's do not."""
        items: list[int] = []
        for tensor in tensors:
            try:
                known = self._known.get((tensor.dtype, tensor.shape))
            except RuntimeError:  # of a nested one
                return None
            if known is None:
                if not self.is_simple(tensor):
                    return None
                known = self._remember(tensor)
            if (
                tensor.layout is not self._strided
                or not (tensor.is_cpu and tensor.is_contiguous())
                or self._is_negative(tensor)
            ):
                return None
            items += (tensor.data_ptr(), *known)
        return items

    def _remember(self, tensor: Any) -> tuple[int, int]:
        if len(self._known) > MAX_SALTS:
            self._known.clear()
        known = self._known[tensor.dtype, tensor.shape] = size_of(tensor), self.salt(tensor)
        return known

    def salt(self, tensor: Any) -> int:
        """What stands for its dtype and shape."""
        key = (tensor.dtype, tensor.shape)
        salt = self._salts.get(key)
        if salt is None:
            if len(self._salts) > MAX_SALTS:
                self._salts.clear()
            salt = self._salts[key] = trail.salt(dtype_name(tensor), tensor.shape)
        return salt

    def parameters(self, parameters: Sequence[Any]) -> int | None:
        """The digest of a list of parameters, None where one of them cannot be read where it lies."""
        if not all(is_plain(p) and p.layout is self._strided and p.is_cpu and p.is_contiguous() for p in parameters):
            return None
        each = [self._library.digest(p.data_ptr(), size_of(p), self.salt(p)) for p in parameters]
        return self._library.of_list(each)

    def tensor(self, digest: int, tensor: Any) -> int:
        """The digest so far, and what this tensor adds to it."""
        if self.is_simple(tensor):
            return self._fold(digest, tensor.data_ptr(), size_of(tensor), self.salt(tensor))  # type: ignore[no-any-return]
        if is_nested(tensor):
            for part in tensor.detach().unbind():
                digest = self.tensor(digest, part)
            return digest
        if type(tensor) is not self._tensor and not is_plain(tensor):
            return self._text(digest, type(tensor).__name__)
        if not tensor.is_cpu:
            self.missed = True
            return digest
        if tensor.layout is not self._strided or tensor.is_quantized:
            return trail.mix(digest + int(entry("", tensor)[3][7:23], 16))
        tensor = tensor.detach().resolve_conj().resolve_neg().contiguous()
        return self._fold(digest, tensor.data_ptr(), size_of(tensor), self.salt(tensor))  # type: ignore[no-any-return]

    def value(self, digest: int, value: Any, depth: int = 0) -> int:
        """Likewise of anything, part by part."""
        if isinstance(value, self._tensor):
            return self.tensor(digest, value)
        if isinstance(value, (list, tuple)) and depth < MAX_DEPTH and not _are_atoms(value):
            for part in value:
                digest = self.value(digest, part, depth + 1)
            return digest
        if isinstance(value, Mapping) and depth < MAX_DEPTH:
            for key in value:
                digest = self.value(self._text(digest, repr(key)), value[key], depth + 1)
            return digest
        if hasattr(type(value), "__array_interface__"):
            return trail.mix(digest + int(array_entry("", value)[3][7:23], 16))
        is_atom = type(value) in _ATOMS or isinstance(value, (list, tuple))
        return self._text(digest, repr(value) if is_atom else type(value).__name__)

    def _text(self, digest: int, text: str) -> int:
        return trail.mix(digest + self._library.text(text))


def _are_atoms(values: Any) -> bool:
    """Whether their text says all that there is."""
    return not values or (type(values[0]) in _ATOMS and _ATOMS.issuperset(map(type, values)))
