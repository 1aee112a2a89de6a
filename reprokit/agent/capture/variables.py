"""The script's local variables: finds a batch in them, sets them, and finds the line that made them non-finite.

Nothing is executed to find a line. From the statement that passed a value on, non-finite variables are followed to the
statements that assign them. The search ends at a statement whose own variables are all finite.
"""

from __future__ import annotations

import ast
import linecache
import math
import sys
from itertools import islice
from numbers import Real
from types import CodeType, FrameType, FunctionType

from ..core.attributes import own_attributes
from ..core.signal_errors import pass_on
from ..core.user_frames import is_users, running_code, users_frames, variables_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from typing import Any

    from ..core.user_frames import Place

MAX_FRAMES = 8
MAX_ITEMS = 10_000  # of one variable
_KINDS = {("torch", "Tensor"), ("numpy", "ndarray"), ("tensorflow", "EagerTensor")}


def user_functions(frame: FrameType | None) -> Iterator[FrameType]:
    """Return the frames of the user's own functions, the innermost first, as far as they are looked at."""
    return islice(users_frames(frame), MAX_FRAMES)


def user_places(frame: FrameType | None) -> list[list[Any]]:
    """Return file, line and function of the user's frames, the innermost first."""
    return [[each.f_code.co_filename, each.f_lineno, each.f_code.co_name] for each in user_functions(frame)]


def variables_with_samples(
    frame: FrameType | None, samples: int, may_keep: Callable[[Any], bool]
) -> list[tuple[str, dict[str, Any]]]:
    """Return by function the variables with one entry for each sample, such as labels, masks and indices."""
    by_function = []
    for function in user_functions(frame):
        variables = variables_of(function)
        names = [name for name in variables if name[:1] != "_" and _has_samples(variables[name], samples, may_keep)]
        values = {name: variables[name] for name in names}
        if values:
            by_function.append((function.f_code.co_name, values))
    return by_function


def loop_counters(frame: FrameType | None) -> dict[str, dict[str, int]]:
    """Return by function the counters of for loops, by which the script may select its batch."""
    by_function: dict[str, dict[str, int]] = {}
    for function in user_functions(frame):
        variables, code = variables_of(function), function.f_code
        values = {name: variables[name] for name in _loop_variables(code) if type(variables.get(name)) is int}
        if values:
            by_function.setdefault(code.co_name, values)
    return by_function


def _loop_variables(code: CodeType) -> list[str]:
    """Return the names that for loops assign. Assigning them again within the body does not change the loop."""
    from dis import get_instructions

    names, stores_left = [], 0
    for instruction in get_instructions(code):
        operation = instruction.opname
        if operation == "FOR_ITER":
            stores_left = 1
        elif stores_left and operation == "UNPACK_SEQUENCE":
            stores_left += int(instruction.argval) - 1
        elif stores_left and operation.startswith("STORE_"):
            several = operation == "STORE_FAST_STORE_FAST"  # of CPython 3.13, as STORE_FAST_LOAD_FAST
            stored = instruction.argval if isinstance(instruction.argval, tuple) else (instruction.argval,)
            names += [str(name) for name in (stored if several else stored[:1])]
            stores_left = max(0, stores_left - 1 - several)
    return names


def _has_samples(value: Any, samples: int, may_keep: Callable[[Any], bool]) -> bool:
    try:
        tensors = tensors_of(value)
        return bool(tensors) and all(may_keep(part) and part.shape and part.shape[0] == samples for part in tensors)
    except RuntimeError:  # nested tensors have no shape
        return False


def tensors_of(value: Any) -> list[Any]:
    """Return the tensors and arrays in a nested value, in order; an empty list if it has more than MAX_ITEMS items."""
    tensors, queue, items_left = [], [value], MAX_ITEMS
    while queue:
        part = queue.pop()
        kind = type(part)
        if isinstance(part, (list, tuple, dict)):
            try:
                items_left -= len(part)
                items = list(part.values() if isinstance(part, dict) else part) if items_left >= 0 else []
            except Exception as error:  # of a class of the script's own
                pass_on(error)
                return []
            if items_left < 0:
                return []
            queue += reversed(items)
        elif (str(kind.__module__).partition(".")[0], kind.__name__) in _KINDS:
            tensors.append(part)
    return tensors


def replacements_of(old: Any, new: Any) -> dict[int, Any]:
    """Return the tensors of ``new`` by the ids of the corresponding ones of ``old``; empty if the counts differ."""
    old_tensors, new_tensors = tensors_of(old), tensors_of(new)
    return dict(zip(map(id, old_tensors), new_tensors)) if len(old_tensors) == len(new_tensors) else {}


def replace_variables(
    frame: FrameType | None,
    replaced: dict[int, Any],
    saved_values: Callable[[str, Mapping[str, Any]], Iterator[tuple[str, Any]]],
) -> None:
    """Set variables of the user's running functions.

    ``saved_values`` yields name and value, given a function's name and variables; ``replaced`` has new values by the
    ids of the old ones, under any name.
    """
    functions = list(user_functions(frame))
    new_values: list[dict[str, Any]] = []
    for function in functions:
        variables = function.f_locals
        new_values.append(dict(saved_values(function.f_code.co_name, variables)))
        for name, value in new_values[-1].items():
            replaced.update(replacements_of(variables[name], value))
    for function, values in zip(functions, new_values):
        for name, value in dict(function.f_locals).items():
            if id(value) in replaced:
                values.setdefault(name, replaced[id(value)])
        set_variables(function, values)


def set_variables(function: FrameType, values: Mapping[str, Any]) -> None:
    """Set variables of a running function."""
    if not values:
        return
    from ctypes import c_int, py_object, pythonapi

    variables = function.f_locals
    variables.update(values)
    # It does nothing from CPython 3.13 on, nor needs to.
    pythonapi.PyFrame_LocalsToFast(py_object(function), c_int(0))


def set_loop_counters(frame: FrameType | None, loops: Mapping[str, Any]) -> None:
    """Set the counters of for loops in the user's functions to numbers from ``loop_counters``."""
    for function in user_functions(frame):
        numbers, variables = loops.get(function.f_code.co_name), function.f_locals
        if isinstance(numbers, dict):
            set_variables(function, {name: numbers[name] for name in numbers if type(variables.get(name)) is int})


_OTHER_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)
_BODIES = frozenset(["body", "orelse", "finalbody", "handlers", "cases"])
# Functions that return finite values for finite ones: they rearrange values or create new ones.
_KEEPS_FINITE = frozenset(
    "append arange array asarray as_tensor astype clone contiguous copy cpu detach dict enumerate flatten from_numpy"
    " isinstance len list numpy ones ones_like print range reshape size squeeze stack tensor transpose tuple unsqueeze"
    " view zeros zeros_like zip".split()
)
_MAX_CALLS = 4  # of functions within functions


def lines_that_made(
    frames: Iterable[FrameType], is_finite: Callable[[Any], bool], has_attributes: bool = True
) -> list[Place]:
    """Return the lines that may have made the non-finite values these frames work on; none if that is unknown.

    ``frames``: the innermost first. ``has_attributes``: attributes of the script's objects are as in the captured step.
    """
    try:
        return _lines_that_made(frames, is_finite, has_attributes)
    except Exception as error:  # raised by methods of the script's own classes
        pass_on(error)
        return []


def _lines_that_made(
    frames: Iterable[FrameType], is_finite: Callable[[Any], bool], has_attributes: bool
) -> list[Place]:
    lines: list[Place] = []
    for frame in frames:
        search = _LineSearch(frame, is_finite, has_attributes)
        lines += search.origin_lines(is_called=bool(lines))
        if search.is_unknown:
            return []
        if not search.is_argument:
            break
    return lines


class _LineSearch:
    """Searches one function for the statements that made variables non-finite."""

    def __init__(self, frame: FrameType, is_finite: Callable[[Any], bool], has_attributes: bool) -> None:
        self._code, self._line = frame.f_code, frame.f_lineno
        self._values: Mapping[str, Any] = {**frame.f_globals, **variables_of(frame)}
        self._is_finite = is_finite
        self._statements = list(_statements(_body(self._code)))
        self._seen: set[int] = set()
        self._has_attributes = has_attributes
        self.is_unknown = False  # the origin may be an attribute whose value is no longer known
        self.is_argument = False  # the caller passed a non-finite argument

    def origin_lines(self, is_called: bool) -> list[Place]:
        """Return the lines; leave out a line that only calls a function in which lines were found."""
        before = [statement for statement in self._statements if _line_of(statement) <= self._line]
        last = max(before, key=_line_of, default=None)
        lines = set() if last is None else set(self._origins(last))
        return sorted(lines - {_place(self._code, last)} if is_called and last is not None else lines)

    def _origins(self, statement: ast.AST, assigned_name: str = "") -> Iterator[Place]:
        self._seen.add(id(statement))
        bad = [name for name in _variables_read(statement) if name != assigned_name and self._is_bad(name, statement)]
        if not bad:
            yield from _lines_of(statement, self._code, self._values)
        arguments = self._code.co_varnames[: self._code.co_argcount + self._code.co_kwonlyargcount]
        for name in bad:
            assignments = self._assignments(name, statement)
            is_new = any(name not in _variables_read(assignment) for assignment in assignments)
            self.is_argument = self.is_argument or (name in arguments and not is_new)
            self.is_unknown = self.is_unknown or ("." in name and not assignments)
            for other in assignments:
                yield from self._origins(other, name)

    def _assignments(self, name: str, statement: ast.AST) -> list[ast.AST]:
        """Return the assignments that a statement may read: those before it, else the loop's last iteration's."""
        assignments = [
            each for each in self._statements if id(each) not in self._seen and name in _variables_written(each)
        ]
        return [each for each in assignments if _line_of(each) <= _line_of(statement)] or assignments

    def _is_bad(self, name: str, statement: ast.AST) -> bool:
        """Return whether a variable is non-finite, and unchanged since this statement read it."""
        later = [other for other in self._statements if _line_of(statement) < _line_of(other) < self._line]
        return not self._is_known_finite(name) and not any(name in _variables_written(other) for other in later)

    def _is_known_finite(self, name: str) -> bool:
        value: Any = self._values.get(name.partition(".")[0])
        for attribute in name.split(".")[1:]:
            value = own_attributes(value).get(attribute)
        if "." in name and not self._has_attributes and tensors_of(value):
            return False
        items = value if isinstance(value, (list, tuple)) else [value]
        numbers = [item for item in items if type(item) is not int and isinstance(item, Real)]
        return all(map(math.isfinite, numbers)) and all(map(self._has_finite_numbers, tensors_of(value)))

    def _has_finite_numbers(self, part: Any) -> bool:
        try:
            return self._is_finite(part)
        except Exception as error:  # it holds no numbers, or shows none
            pass_on(error)
            return True


def _body(code: CodeType) -> Sequence[ast.AST]:
    """Return the statements of a function from its source file; none if it cannot be read."""
    try:
        tree = ast.parse("".join(linecache.getlines(code.co_filename)))
    except (SyntaxError, ValueError, RecursionError):
        return []
    if code.co_name == "<module>":
        return tree.body
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.name == code.co_name:
            if code.co_firstlineno in (node.lineno, *[decorator.lineno for decorator in node.decorator_list]):
                return node.body
    return []


def _statements(body: Iterable[ast.AST]) -> Iterator[ast.AST]:
    """Yield statements and those nested in them, such as a loop's, but not those of inner functions."""
    for statement in body:
        if not isinstance(statement, _OTHER_SCOPES):
            yield statement
            for name in _BODIES:
                inner = getattr(statement, name, [])
                yield from _statements(inner if isinstance(inner, list) else [])


def _nodes(statement: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes of a statement, without nested statements and without indices of subscripts."""
    for name, value in ast.iter_fields(statement):
        if name not in _BODIES and not (name == "slice" and isinstance(statement, ast.Subscript)):
            for node in value if isinstance(value, list) else [value]:
                if isinstance(node, ast.AST) and not isinstance(node, _OTHER_SCOPES):
                    yield node
                    yield from _nodes(node)


def _line_of(statement: ast.AST) -> int:
    return int(getattr(statement, "lineno", 0))


def _dotted(node: ast.AST) -> str:
    """Return the dotted name of a variable or attribute; an empty string for other nodes."""
    if isinstance(node, ast.Name):
        return node.id
    owner = _dotted(node.value) if isinstance(node, ast.Attribute) else ""
    return f"{owner}.{node.attr}" if owner and isinstance(node, ast.Attribute) else ""


def _variables_read(statement: ast.AST) -> list[str]:
    names = [_dotted(node) for node in _nodes(statement) if isinstance(getattr(node, "ctx", None), ast.Load)]
    names += _variables_written(statement) if isinstance(statement, ast.AugAssign) else []
    return list(dict.fromkeys(filter(None, names)))


def _variables_written(statement: ast.AST) -> list[str]:
    """Return the variables that a statement assigns, wholly or in part, or whose method it calls."""
    names = []
    for node in _nodes(statement):
        if isinstance(getattr(node, "ctx", None), ast.Store):
            names.append(_dotted(node.value if isinstance(node, (ast.Subscript, ast.Starred)) else node))
        elif isinstance(node, ast.keyword) and node.arg == "out":
            names.append(_dotted(node.value))
    call = getattr(statement, "value", None)
    if isinstance(statement, ast.Expr) and isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute):
        names.append(_dotted(call.func.value))
    return list(filter(None, names))


def _place(code: CodeType, statement: ast.AST) -> Place:
    return code.co_filename, _line_of(statement), code.co_name


def _lines_of(statement: ast.AST, code: CodeType, values: Mapping[str, Any], depth: int = 0) -> Iterator[Place]:
    """Yield the lines of functions that a statement calls, and its own if it computes beyond _KEEPS_FINITE."""
    computes = isinstance(statement, ast.AugAssign)
    for node in _nodes(statement):
        function = _called_function(node.func, values) if isinstance(node, ast.Call) and depth < _MAX_CALLS else None
        inner = [] if function is None else list(_returned_by(function, depth + 1))
        yield from inner
        computes = computes or (not inner and _computes(node))
    if computes:
        yield _place(code, statement)


def _returned_by(function: FunctionType, depth: int) -> Iterator[Place]:
    """Yield the lines by which a function that has returned computed its result."""
    statements = list(_statements(_body(function.__code__)))
    queue: list[ast.AST] = [other for other in statements if isinstance(other, ast.Return)]
    visited: set[int] = set()
    while queue:
        statement = queue.pop()
        if id(statement) not in visited:
            visited.add(id(statement))
            yield from _lines_of(statement, function.__code__, function.__globals__, depth)
            names = _variables_read(statement)
            queue += [other for other in statements if any(name in names for name in _variables_written(other))]


def _called_function(node: ast.AST, values: Mapping[str, Any]) -> FunctionType | None:
    """Return the user's function, or method, that a node calls, unless it is still running."""
    owner, _, name = _dotted(node).rpartition(".")
    if owner:
        holder = values.get(owner.partition(".")[0])
        for attribute in owner.split(".")[1:]:
            holder = own_attributes(holder).get(attribute)
        function = next((vars(kind)[name] for kind in type(holder).__mro__ if name in vars(kind)), None)
        function = getattr(function, "__func__", function)  # of a static method
    else:
        function = values.get(name)
    function = getattr(function, "__wrapped__", function) if type(function) is FunctionType else None
    if type(function) is not FunctionType or not is_users(function.__code__.co_filename):
        return None
    return None if function.__code__ in running_code(sys._getframe(1)) else function


def _computes(node: ast.AST) -> bool:
    if isinstance(node, ast.Call):
        return getattr(node.func, "attr", getattr(node.func, "id", "")) not in _KEEPS_FINITE
    return isinstance(node, ast.BinOp) or getattr(node, "attr", "") in ("nan", "inf")
