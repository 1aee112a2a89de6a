"""Makes the events of PyTorch's operators below autograd, and reads the properties of an operator."""

from __future__ import annotations

from ..core.signal_errors import pass_on
from ..events.operators import OperatorCalled
from . import private_api
from .dispatch_modes import DispatchModes, passed_on
from .places import OURS, Places

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from ..core.user_frames import Place
    from ..events.operators import OperatorListener

MAX_LISTED = 16  # tensors of a call, and items of a list, that are written
MAX_TEXT = 100
_UNINITIALIZED = ("aten::empty", "aten::new_empty", "aten::resize")
_READING = ("aten::lift_fresh", "aten::_unsafe_view", "aten::_local_scalar_dense", "aten::record_stream")
_MARKING = ("profiler::", "prim::", "debugprims::")
_OVERWRITE = frozenset(
    "copy fill zero normal uniform random bernoulli exponential geometric cauchy log_normal set _foreach_copy "
    "_foreach_zero".split()
)
_STATES = ("seed", "offset", "rng", "workspace", "reserve", "debug", "unused", "philox")  # names of such results
_PLAIN = (bool, int, str, float, type(None))


class PytorchOperator:
    """The properties of an overload of an operator."""

    def __init__(self, torch: Any, function: Any) -> None:
        schema = private_api.schema(function)
        arguments = schema.arguments
        self._torch = torch
        self.name: str = schema.name
        self.overload: str = schema.overload_name
        self.built_in = self.name.startswith("aten::")
        self.is_silent = _only_returns_views(function)
        self.is_uninitialized = self.name.startswith(_UNINITIALIZED)
        self.takes_storage = any("Storage" in str(argument.type) for argument in arguments)
        self.changes = any(_is_written(argument) for argument in arguments)
        self.overwrites = self.changes and self.name.rpartition("::")[2].rstrip("_") in _OVERWRITE  # its first argument
        self.names = [argument.name for argument in arguments]
        self.draws = "generator" in self.names or getattr(torch.Tag, "nondeterministic_seeded", None) in getattr(
            function, "tags", ()
        )
        # The outputs of a collective are complete only once it was waited for.
        self.has_no_outputs_yet = self.name.startswith(("c10d::", "_c10d_functional::"))
        self._returns: list[str | None] = [None if _is_written(value) else value.name or "" for value in schema.returns]
        self._written = [(number, argument.name) for number, argument in enumerate(arguments) if _is_written(argument)]
        self._workspaces = {name for name in self.names if "workspace" in name or "reserve" in name}
        self._unread = self._outputs_of(arguments)
        self._defaults = {
            argument.name: _plain(argument.default_value)
            for argument in arguments
            if argument.has_default_value() and not _holds_tensors(argument)
        }

    def _outputs_of(self, arguments: Any) -> set[str]:
        """Return the names of arguments whose values are no inputs."""
        first = {self.names[0]} if self.overwrites else set()
        names = first.union(argument.name for argument in arguments if argument.is_out)
        return names | {name for name in self.names if self.has_no_outputs_yet and name.startswith("output")}

    @property
    def returns_values(self) -> bool:
        """Whether it returns anything."""
        return bool(self._returns)

    def input_values(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
        """Return the arguments whose values are inputs."""
        if not self._unread and not self._workspaces:
            return [*args, *kwargs.values()]
        named = [*zip(self.names, args), *kwargs.items()]
        workspaces = {name for name, value in named if name in self._workspaces and _is_bytes(self._torch, value)}
        return [value for name, value in named if name not in self._unread and name not in workspaces]

    def output_values(self, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> list[Any]:
        """Return the returned and written values, without random states and workspaces that nobody fills."""
        if type(result) is tuple:
            result = self.comparable_results(result)
        written = [args[number] if number < len(args) else kwargs.get(name) for number, name in self._written]
        return [result, *written] if None in self._returns or not self._returns else [result]

    def comparable_results(self, result: Any) -> list[Any]:
        """Return the results to compare: without generator states, workspaces and changed arguments."""
        values = list(result) if isinstance(result, (list, tuple)) else [result]
        if self.name in ("aten::_embedding_bag", "aten::_embedding_bag_forward_only"):
            return values[:1]  # the other results are uninitialized in some modes
        names = self._returns if len(self._returns) == len(values) else [""] * len(values)
        return without_workspaces(self._torch, values, names)

    def attributes(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, object]:
        """Return all arguments but tensors, by name, with defaults for those that the caller left out."""
        attributes = dict(self._defaults)
        for name, value in [*zip(self.names, args), *kwargs.items()]:
            if not _has_tensor(value):
                attributes[name] = _plain(value)
        return attributes


def _only_returns_views(function: Any) -> bool:
    """Return whether an operator computes nothing, but only returns views of its unchanged inputs."""
    schema = private_api.schema(function)
    if schema.name in _READING or schema.name.startswith(_MARKING):
        return True
    returns = [value.alias_info for value in schema.returns]
    return bool(returns) and all(alias is not None and not alias.is_write for alias in returns)


def _is_written(argument: Any) -> bool:
    return argument.alias_info is not None and argument.alias_info.is_write


def _holds_tensors(argument: Any) -> bool:
    return "Tensor" in str(argument.type)


def _has_tensor(value: Any) -> bool:
    if type(value) in (list, tuple):
        return any(_has_tensor(item) for item in value)
    return hasattr(value, "data_ptr") and hasattr(value, "dtype")


def _plain(value: Any) -> object:
    """Return a value that JSON can represent."""
    if type(value) is str:
        return value[:MAX_TEXT]
    if isinstance(value, _PLAIN):
        return value
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value[:MAX_LISTED]]
    return str(value)[:MAX_TEXT] if type(value).__module__ == "torch" else type(value).__name__


def without_workspaces(torch: Any, values: list[Any], names: Sequence[str | None]) -> list[Any]:
    """Return the results of these names without generator states, workspaces, and arguments, which have no name."""
    results = []
    for number, (name, value) in enumerate(zip(names, values)):
        if name is None or any(part in name for part in _STATES):
            continue
        if number == 0 or not _is_bytes(torch, value):
            results.append(value)
    return results


def _is_bytes(torch: Any, value: Any) -> bool:
    """Return whether a value is a tensor of bytes, as are workspaces, which operators do not fill completely."""
    return isinstance(value, torch.Tensor) and value.dtype == torch.uint8


class PytorchCalled(OperatorCalled):
    """A call of an operator, or of a compiled graph, with what executes it."""

    __slots__ = ("function", "keywords", "phase", "places", "where")
    where: list[Place]
    phase: str

    def __init__(
        self, operator: Any, function: Any, inputs: Any, keywords: dict[str, Any], places: Places, found: Any
    ) -> None:
        super().__init__(operator, inputs)
        self.where, self.phase = found
        self.function = function
        self.keywords = keywords
        self.places: Any = places  # of the thread, with the autograd node that is being evaluated


class PytorchOperatorEvents:
    """Makes the event of each call while it is watching, except of views and of what the agent itself calls."""

    def __init__(
        self,
        torch: Any,
        listener: OperatorListener,
        make_places: Callable[[], Places],
        viewed: Callable[[PytorchOperator, Any, Any], object] | None = None,
    ) -> None:
        self._torch = torch
        self._listener = listener
        self._viewed = viewed  # called with an operator that only returns views, its arguments, and the result
        self._operators: dict[Any, PytorchOperator | None] = {}
        self.modes = DispatchModes(torch, self, make_places)
        self.watching = False

    def watch(self, is_on: bool) -> bool:
        """Begin or stop making events on this thread and on those that start; return whether its mode is active."""
        self.watching = is_on
        if is_on:
            return self.modes.enter()
        self.modes.leave()
        return False

    def call(self, mode: Any, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Execute a call unchanged, with its event."""
        listener, call, record = self._listener, None, None
        try:
            call = self._made(mode.places, function, args, kwargs)
            if call is not None:
                record = listener.begins(call)
        except Exception as error:
            listener.failed(self._name(function), error)
            pass_on(error)
        result = passed_on(self._torch, function, args, kwargs)
        if record is not None and call is not None:
            call.outputs = result
            try:
                listener.ended(call, record)
            except Exception as error:
                listener.failed(self._name(function), error)
                pass_on(error)
        elif self._viewed is not None:
            operator = self._operators.get(function)
            if operator is not None and operator.is_silent:
                self._viewed(operator, args, result)
        return result

    def _made(self, places: Places, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        operator = self._operators.get(function)
        if operator is None:
            if private_api.schema(function) is None:
                return None  # a higher-order operator: its inner operators are observed
            operator = self._operators[function] = PytorchOperator(self._torch, function)
        if operator.is_silent and not places.made_node():
            return None
        places.operator = operator.name
        found = places.of_call(3)
        if operator.is_silent or found[1] == OURS:
            return None
        return PytorchCalled(operator, function, args, kwargs, places, found)

    def _name(self, function: Any) -> str:
        operator = self._operators.get(function)
        return str(function) if operator is None else operator.name
