"""Reads and restores what PyTorch's steps start from: models, averages, optimizers, schedules, scalers, generators."""

from __future__ import annotations

import atexit
import math
import sys

from ..capture import torch_state
from ..capture.random_states import RandomStates
from ..core.live_objects import LiveObjects
from ..core.patching import replace
from ..events import steps as events
from ..pytorch import private_api
from ..pytorch.state import entries_of, named_tensors, parts_of
from ..pytorch.tensors import entry, is_tensor
from .pytorch_batches import BatchStream
from .pytorch_variables import TorchVariables
from .script_scopes import paths_of
from .script_variables import VariableReader, VariableSetter
from .training_state import (
    BUFFERS,
    GRADIENTS,
    MODULES,
    OPTIMIZER,
    PARAMETERS,
    SCALER,
    SETTINGS,
    VARIABLES,
    StateAnswers,
    shorten,
    state_digest,
    text_digest,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from ..core.agent import Agent
    from ..events.steps import Handler, TrainingEvent

    NamedTensors = dict[str, Any]

OTHERS, SCHEDULE, LOADER = "other-models", "schedule", "loader-generator"
GENERATORS = {"torch": "PyTorch generator", "torch.cuda": "GPU generators", "python": "Python generator"}
GENERATORS["numpy"] = "NumPy generator"
SETTERS = (  # functions by which a script loads the states of generators
    ("torch", "set_rng_state"),
    ("torch.random", "set_rng_state"),
    ("random", "setstate"),
    ("numpy.random", "set_state"),
)


class PytorchState:
    """Reads and restores the state of a training when a model is first called in a step."""

    def __init__(self, agent: Agent, answers: StateAnswers) -> None:
        self._agent, self._answers, self.failed = agent, answers, answers.failed
        self._torch: Any = sys.modules["torch"]
        self._optimizers, self._schedules, self._scalers = LiveObjects(), LiveObjects(), LiveObjects()
        self._records = LiveObjects()  # of the optimizers, by which updates are counted
        self._random = RandomStates(self._torch)
        # The states of generators after the last update, and when a loader began or returned a batch.
        self._at_update: Any = None
        self._at_loader: Any = None
        self._at_batch: Any = None
        self._variables_at_batch: list[Any] | None = None
        self._loader_generator: Any = None  # of the loader that began last, if it has its own generator
        self._batches = BatchStream(answers)
        self._model_calls = 0  # of the current step
        self._due_call = 1  # the call before which the state of the current step is read
        self._is_restoring = False  # generators, by functions that are wrapped here
        self._searches = 2  # of the heap for copies of models: where a state is first read, and at the question's step
        atexit.register(agent.attempt, self._batches.finish)
        if answers.parts:
            for name, setter in SETTERS:
                if name in sys.modules:
                    replace(sys.modules[name], setter, self._make_setter)

    def handlers(self) -> dict[type[TrainingEvent], Handler]:
        restoring: dict[type[TrainingEvent], Handler] = {
            events.TensorsChange: self._tensors_change,
            events.BatchDue: self._batches.due,
        }
        return {
            **(restoring if self._answers.parts else {}),
            events.OptimizerMade: self._optimizer_made,
            events.ScheduleMade: lambda event: self._schedules.add(event.schedule),
            events.ScalerMade: lambda event: self._scalers.add(event.scaler),
            events.LoaderBegan: self._loader_began,
            events.BatchFetched: self._batch_fetched,
            events.LoaderExhausted: self._batches.exhausted,
            events.ModelCalled: self._model_called,
            events.UpdateDone: self._updated,
        }

    # Events

    def _optimizer_made(self, event: events.OptimizerMade) -> None:
        self._optimizers.add(event.target)
        if event.optimizer is not None:
            self._records.add(event.optimizer)

    def _make_setter(self, original: Any) -> Any:
        def set_state(*arguments: Any, **keywords: Any) -> None:
            original(*arguments, **keywords)
            if not self._is_restoring:
                self._agent.attempt(self._tensors_change)

        return set_state

    def _tensors_change(self, _event: events.TensorsChange | None = None) -> None:
        """Restore the generators once a checkpoint is loaded, as the script may draw before its first step."""
        if self._answers.is_first and not self._model_calls:
            file = self._answers.snapshot_to_restore("state")
            if file is not None:
                self._restore_generators(file, "random_at_update")

    def _loader_began(self, event: events.LoaderBegan) -> None:
        """Restore and read the generators before a loader draws its order."""
        owners = event.loader, getattr(event.loader, "sampler", None)
        generators = [getattr(owner, "generator", None) for owner in owners]
        usable = [generator for generator in generators if isinstance(generator, self._torch.Generator)]
        self._loader_generator = usable[0] if usable else None  # a script's own sampler may have another kind
        is_next = self._answers.is_first and self._model_calls < self._due_call
        file = self._answers.snapshot_to_restore("state") if is_next else None
        if file is not None:
            self._restore_generators(file, "random_at_loader")
        if self._answers.saves_state:
            self._at_loader = self._states()

    def _batch_fetched(self, event: events.BatchFetched) -> None:
        """Restore and read the generators before the script uses a batch, as to add noise."""
        answers = self._answers
        self._batches.fetched(event)
        if not answers.is_first or self._model_calls >= self._due_call:
            return
        file = answers.snapshot_to_restore("state") if self._batches.is_at_first else None
        if file is not None:
            self._restore_generators(file, "random_at_batch")
            self._restore_variables(file, f"{VARIABLES}_at_batch")
        if answers.saves_state:
            self._at_batch = self._states()
            self._variables_at_batch = answers.attempt(VARIABLES, self._read_variables, True)

    def _states(self) -> Any:
        """Return a function that gives the current states of generators, and the state of the loader's own."""
        self._random.keep()
        state = None if self._loader_generator is None else self._loader_generator.get_state()
        return self._random.taken(), state

    def _model_called(self, event: events.ModelCalled) -> None:
        if not event.has_gradients or not getattr(event.module, "training", True):
            return
        self._model_calls += 1
        answers = self._answers
        if self._model_calls != self._due_call or not (answers.is_logged or answers.is_first):
            return
        if not list(self._optimizers):
            return
        if self._searches == 2 or (self._searches and answers.is_first):
            self._searches -= 1
            self._hooks().modules.search(self._torch.nn.Module)
        file = answers.snapshot_to_restore("state") if answers.is_first else None
        if file is not None:
            self._restore(file)
        if answers.is_logged:
            answers.log_parts(self._digests(), fetched=self._batches.fetched_by_place())
        if answers.is_first and answers.saves_state:
            answers.attempt("the state was not kept", self._save)
            self._batches.start_saving()

    def _updated(self, event: events.UpdateDone) -> None:
        answers = self._answers
        if not answers.window.updated(event.optimizer, self._records):
            return
        if answers.window.step <= answers.first + 1 and not answers.every:
            answers.log(calls=self._model_calls)
        # Like the step before, the first one may accumulate gradients of more calls than a training that resumes in it.
        is_within = answers.is_first and 0 < answers.calls < self._model_calls
        self._due_call = 1 + (self._model_calls - answers.calls if is_within else 0)
        self._model_calls, self._at_loader, self._at_batch = 0, None, None
        self._variables_at_batch = None
        self._at_update = self._states() if answers.is_first and answers.saves_state else None
        self._batches.updated()

    # Reading

    def _tensors(self) -> tuple[NamedTensors, NamedTensors, NamedTensors, dict[int, str]]:
        """Return parameters, buffers, tensors of models that no optimizer trains, and names by id()."""
        trained = [parameter for optimizer in self._optimizers for parameter in torch_state.parameters_of(optimizer)]
        modules = self._hooks().modules
        owners = modules.owners(trained, self._torch.nn.Module)
        parameters: NamedTensors = {}
        buffers: NamedTensors = {}
        for number, owner in enumerate(owners):
            for prefix, own, own_buffers in parts_of(owner):
                head = f"model#{number}.{prefix}" if len(owners) > 1 else prefix
                parameters.update({head + name: tensor for name, tensor in own.items() if tensor is not None})
                buffers.update({head + name: tensor for name, tensor in own_buffers.items() if tensor is not None})
        names = {id(tensor): name for name, tensor in (*parameters.items(), *buffers.items())}
        for number, parameter in enumerate(trained):
            if id(parameter) not in names:
                names[id(parameter)] = name = f"parameter#{number}"
                parameters[name] = parameter
        return parameters, buffers, self._other_models(names), names

    def _other_models(self, names: dict[int, str]) -> NamedTensors:
        """Return the tensors of models that have no names yet; a model is named as the script refers to it."""
        unnamed = [
            (root, {name: tensor for name, tensor in named_tensors(parts_of(root)) if id(tensor) not in names})
            for root in self._hooks().modules.outermost()
        ]
        roots = [(root, tensors) for root, tensors in unnamed if tensors]
        is_named = bool(roots) and not self._answers.every
        paths = paths_of([root for root, _ in roots], sys._getframe()) if is_named else {}
        others: NamedTensors = {}
        counts: dict[str, int] = {}
        for root, tensors in roots:
            kind = type(root).__name__
            number = counts[kind] = counts.get(kind, -1) + 1
            head = paths.get(id(root), f"{kind}#{number}")
            others.update({f"{head}.{name}": tensor for name, tensor in tensors.items()})
        return others

    def _hooks(self) -> Any:
        return self._agent.pytorch

    def _named_settings(self) -> Iterator[tuple[str, Any, str]]:
        """Yield name, owner and attribute of the plain numbers that models keep, and of their parameters' flags."""
        counts: dict[str, int] = {}
        for root in self._hooks().modules.outermost():
            kind = type(root).__name__
            number = counts[kind] = counts.get(kind, -1) + 1
            for path, module in root.named_modules(prefix=f"{kind}#{number}"):
                numbers = [name for name, value in vars(module).items() if type(value) in (bool, int, float)]
                yield from ((f"{path}.{name}", module, name) for name in numbers if not name.startswith("_"))
                parameters = private_api.containers(module)[0]
                flags = ((name, tensor) for name, tensor in parameters.items() if tensor is not None)
                yield from ((f"{path}.{name}.requires_grad", tensor, "requires_grad") for name, tensor in flags)

    def _module_settings(self) -> dict[str, Any]:
        settings = {name: getattr(owner, attribute) for name, owner, attribute in self._named_settings()}
        return {name: value for name, value in settings.items() if math.isfinite(value)}

    def _digests(self) -> dict[str, dict[str, str]]:
        torch = self._torch
        with torch.no_grad(), private_api.without_overrides(torch):
            *models, names = self._tensors()
            digests = dict(
                zip((PARAMETERS, BUFFERS, OTHERS), ({n: _digest(t) for n, t in tensors.items()} for tensors in models))
            )
            if not self._answers.every:
                gradients = {name: parameter.grad for name, parameter in models[0].items()}
                digests[GRADIENTS] = {n: "" if t is None else _digest(t) for n, t in gradients.items()}
                digests[MODULES] = {name: repr(value)[:16] for name, value in self._module_settings().items()}
            if self._answers.is_first and not self._answers.every:
                reader = self._variable_reader()
                digests[VARIABLES] = self._answers.attempt(VARIABLES, reader.texts, sys._getframe(), text_digest) or {}
            digests.update({part: {} for part in (OPTIMIZER, SETTINGS, SCHEDULE, SCALER)})
            for number, optimizer in enumerate(self._optimizers):
                for key, value in _settings(number, optimizer):
                    digests[SETTINGS].update(_digests_of(key, value))
                for parameter in torch_state.parameters_of(optimizer):
                    state = optimizer.state.get(parameter, {})
                    digests[OPTIMIZER].update(_digests_of(f"optimizer#{number}.{names[id(parameter)]}", state))
            for kind, objects in ((SCHEDULE, self._schedules), (SCALER, self._scalers)):
                for number, owner in enumerate(objects):
                    digests[kind].update(_digests_of(f"{type(owner).__name__}#{number}", _state_of(owner)))
        self._random.keep()
        for name, state in self._random.kept().items():
            digests[GENERATORS[name]] = {name: state_digest(state)}
        if self._loader_generator is not None:
            digests[LOADER] = {LOADER: state_digest(self._loader_generator.get_state())}
        return digests

    def _other_parts(self) -> list[Any]:
        """Return the tensors of other parts of the state."""
        *models, _ = self._tensors()
        parameters = list(models[0].values())
        states = [
            state for optimizer in self._optimizers for state in optimizer.state.values() if isinstance(state, dict)
        ]
        moments = [value for state in states for value in state.values() if is_tensor(value)]
        gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
        return [*parameters, *models[1].values(), *models[2].values(), *gradients, *moments]

    def _variable_reader(self, copies: bool = False) -> VariableReader:
        owners = [*self._optimizers, *self._schedules, *self._scalers]
        return VariableReader(TorchVariables(self._other_parts(), copies=copies), owners)

    def _read_variables(self, copies: bool = False) -> list[Any]:
        with self._torch.no_grad(), private_api.without_overrides(self._torch):
            return self._variable_reader(copies).differing(sys._getframe(), text_digest, self._answers.resumed)

    # Saving and restoring

    def _save(self) -> None:
        tensors = torch_state.SnapshotTensors()
        *models, names = self._tensors()
        header: dict[str, Any] = {}
        for part, named in zip((PARAMETERS, BUFFERS, OTHERS), models):
            header[part] = {name: tensors.put(f"{part}.{name}", tensor) for name, tensor in named.items()}
        header[GRADIENTS] = {
            name: None if tensor.grad is None else tensors.put(f"{GRADIENTS}.{name}", tensor.grad)
            for name, tensor in models[0].items()
        }
        header[MODULES] = self._module_settings()
        header["optimizers"] = [
            torch_state.take_optimizer(
                tensors, number, optimizer, [names[id(parameter)] for parameter in torch_state.parameters_of(optimizer)]
            )
            for number, optimizer in enumerate(self._optimizers)
        ]
        header["schedules"] = torch_state.take_all(tensors, "schedule", list(self._schedules))
        header["scalers"] = torch_state.take_all(tensors, "scaler", list(self._scalers))
        moments = {
            "random": self._states(),
            "random_at_update": self._at_update,
            "random_at_loader": self._at_loader,
            "random_at_batch": self._at_batch,
        }
        for moment, recorded in moments.items():
            if recorded is not None:
                states, state = recorded
                header[moment] = torch_state.take_random(tensors, states(), moment)
                header[f"{LOADER} {moment}"] = None if state is None else tensors.pack(f"{LOADER} {moment}", state)
        moments_of_variables = {VARIABLES: self._answers.attempt(VARIABLES, self._read_variables)}
        moments_of_variables[f"{VARIABLES}_at_batch"] = self._variables_at_batch
        for moment, rows in moments_of_variables.items():
            header[moment] = [[head, tail, tensors.fill(moment, node)] for head, tail, node in rows or []]
        self._answers.save("state", header, tensors.parts)

    def _restore(self, file: Any) -> None:
        """Restore the parts of the state that the question names, the generators last."""
        header, reader, parts = file.header, torch_state.SnapshotReader(self._torch, file.tensors), self._answers.parts
        attempt = self._answers.attempt
        *models, _ = self._tensors()
        for part, named in zip((PARAMETERS, BUFFERS, OTHERS), models):
            if part in parts:
                attempt(part, self._restore_tensors, named, header[part], reader)
        if GRADIENTS in parts:
            attempt(GRADIENTS, self._restore_gradients, models[0], header[GRADIENTS], reader)
        if MODULES in parts:
            attempt(MODULES, self._restore_module_settings, header[MODULES])
        for optimizer, saved in zip(self._optimizers, header["optimizers"]):
            attempt(OPTIMIZER, self._restore_optimizer, optimizer, saved, reader)
        for part, objects, saved_states in (
            (SCHEDULE, self._schedules, header["schedules"]),
            (SCALER, self._scalers, header["scalers"]),
        ):
            for owner, saved in zip(objects, saved_states) if part in parts else ():
                attempt(part, torch_state.put_stateful, owner, saved, reader)
        self._restore_generators(file, "random")
        self._restore_variables(file, VARIABLES)

    def _restore_tensors(self, named: NamedTensors, keys: dict[str, str], reader: torch_state.SnapshotReader) -> None:
        with self._torch.no_grad():
            for name, key in keys.items():
                named[name].data.copy_(reader.tensor(key))

    def _restore_gradients(
        self, parameters: NamedTensors, keys: dict[str, str | None], reader: torch_state.SnapshotReader
    ) -> None:
        for name, key in keys.items():
            parameters[name].grad = None if key is None else reader.tensor(key).to(parameters[name].device)

    def _restore_module_settings(self, saved: dict[str, Any]) -> None:
        for name, owner, attribute in self._named_settings():
            if name in saved and attribute in vars(owner):
                vars(owner)[attribute] = saved[name]
            elif name in saved:
                setattr(owner, attribute, saved[name])

    def _restore_optimizer(self, optimizer: Any, saved: Any, reader: torch_state.SnapshotReader) -> None:
        parts = self._answers.parts
        if parts.isdisjoint((OPTIMIZER, SETTINGS)):
            return
        groups, state = [dict(group) for group in optimizer.param_groups], dict(optimizer.state)
        torch_state.put_optimizer(optimizer, saved, reader)
        if SETTINGS not in parts:
            for group, own_settings in zip(optimizer.param_groups, groups):
                group.update(own_settings)
        if OPTIMIZER not in parts:
            optimizer.state.clear()
            optimizer.state.update(state)

    def _restore_variables(self, file: Any, moment: str) -> None:
        if VARIABLES in self._answers.parts:
            reader = torch_state.SnapshotReader(self._torch, file.tensors)
            setter = VariableSetter(TorchVariables(self._other_parts(), reader), self._answers.variables)
            with self._torch.no_grad():
                self._answers.attempt(VARIABLES, setter.restore, file.header[moment], sys._getframe())

    def _restore_generators(self, file: Any, moment: str) -> None:
        header, reader, parts = file.header, torch_state.SnapshotReader(self._torch, file.tensors), self._answers.parts
        states = header.get(moment) or {}
        chosen = {name: states[name] for name in states if GENERATORS[name] in parts}
        self._is_restoring = True
        self._answers.attempt("generators", torch_state.put_random, self._torch, chosen, reader)
        self._is_restoring = False
        state = header.get(f"{LOADER} {moment}")
        if LOADER in parts and state is not None and self._loader_generator is not None:
            self._answers.attempt(LOADER, lambda: self._loader_generator.set_state(reader.value(state)))


def _digest(tensor: Any) -> str:
    return shorten(entry("", tensor)[3])


def _digests_of(name: str, value: Any) -> dict[str, str]:
    return {key: shorten(digest) for key, _, _, digest in entries_of(name, value)}


def _settings(number: int, optimizer: Any) -> Iterator[tuple[str, Any]]:
    for place, group in enumerate(optimizer.param_groups):
        for key in group:
            if key not in torch_state.IMPLEMENTATION:
                yield f"optimizer#{number}.group{place}.{key}", group[key]


def _state_of(owner: Any) -> dict[str, Any]:
    state = owner.state_dict()
    return {key: state[key] for key in state if key not in private_api.NOTES_OF_SCHEDULES}
