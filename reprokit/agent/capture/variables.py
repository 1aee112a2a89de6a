"""The script's variables: what of a batch they hold, how it is put back, and which line made them not finite.

Nothing is executed to find a line: from the statement that handed a value over, the variables that are not finite are
followed to the statements that assign them, up to one whose own variables are finite.
"""

from __future__ import annotations

import ast
import linecache
import math
import sys
from numbers import Real
from types import CodeType, FrameType, FunctionType

from ..core import user_frames
from ..core.attributes import own_attributes
from ..core.signal_errors import pass_on
from ..core.user_frames import is_users, running_code, variables_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from typing import Any

    from ..core.user_frames import Place

MAX_FRAMES = 8
MAX_ITEMS = 10_000  # of one variable
_KINDS = {("torch", "Tensor"), ("numpy", "ndarray"), ("tensorflow", "EagerTensor")}


def user_functions(frame: FrameType | None) -> Iterator[FrameType]:
    """Yield the frames of the user's own functions, the innermost first."""
    found = 0
    while frame is not None and found < MAX_FRAMES:
        if user_frames.is_users(frame.f_code.co_filename):
            found += 1
            yield frame
        frame = frame.f_back


def places_of(frame: FrameType | None) -> list[list[Any]]:
    """File, line and function of the user's frames, the innermost first."""
    return [[one.f_code.co_filename, one.f_lineno, one.f_code.co_name] for one in user_functions(frame)]


def with_samples(
    frame: FrameType | None, samples: int, may_keep: Callable[[Any], bool]
) -> list[tuple[str, dict[str, Any]]]:
    """By functions: variables that have one entry for each sample, as labels, masks and indices have."""
    found = []
    for function in user_functions(frame):
        known = variables_of(function)
        names = [name for name in known if name[:1] != "_" and _has_samples(known[name], samples, may_keep)]
        values = {name: known[name] for name in names}
        if values:
            found.append((function.f_code.co_name, values))
    return found


def of_loops(frame: FrameType | None) -> dict[str, dict[str, int]]:
    """By functions: the numbers that their for loops count with, which may choose what belongs to the batch."""
    found: dict[str, dict[str, int]] = {}
    for function in user_functions(frame):
        known, code = variables_of(function), function.f_code
        values = {name: known[name] for name in _loop_variables(code) if type(known.get(name)) is int}
        if values:
            found.setdefault(code.co_name, values)
    return found


def _loop_variables(code: CodeType) -> list[str]:
    """Return what for loops set. To set it once more within the loop's body changes nothing of the loop."""
    from dis import get_instructions

    names, left = [], 0
    for instruction in get_instructions(code):
        operation = instruction.opname
        if operation == "FOR_ITER":
            left = 1
        elif left and operation == "UNPACK_SEQUENCE":
            left += int(instruction.argval) - 1
        elif left and operation.startswith("STORE_"):
            several = operation == "STORE_FAST_STORE_FAST"  # of CPython 3.13, as STORE_FAST_LOAD_FAST
            stored = instruction.argval if isinstance(instruction.argval, tuple) else (instruction.argval,)
            names += [str(name) for name in (stored if several else stored[:1])]
            left = max(0, left - 1 - several)
    return names


def _has_samples(value: Any, samples: int, may_keep: Callable[[Any], bool]) -> bool:
    try:
        found = parts(value)
        return bool(found) and all(may_keep(part) and part.shape and part.shape[0] == samples for part in found)
    except RuntimeError:  # nested tensors have no shape
        return False


def parts(value: Any) -> list[Any]:
    """Return the tensors and arrays that a variable holds, in order; none of what holds more than a batch does."""
    found, waiting, left = [], [value], MAX_ITEMS
    while waiting:
        part = waiting.pop()
        kind = type(part)
        if isinstance(part, (list, tuple, dict)):
            try:
                left -= len(part)
                items = list(part.values() if isinstance(part, dict) else part) if left >= 0 else []
            except Exception as error:  # of a class of the script's own
                pass_on(error)
                return []
            if left < 0:
                return []
            waiting += reversed(items)
        elif (str(kind.__module__).partition(".")[0], kind.__name__) in _KINDS:
            found.append(part)
    return found


def standing_for(old: Any, new: Any) -> dict[int, Any]:
    """By the id of each tensor of a value, that of another one of the same build."""
    ours, theirs = parts(old), parts(new)
    return dict(zip(map(id, ours), theirs)) if len(ours) == len(theirs) else {}


def give(
    frame: FrameType | None,
    replaced: dict[int, Any],
    kept: Callable[[str, Mapping[str, Any]], Iterator[tuple[str, Any]]],
) -> None:
    """Give the user's functions new values for variables.

    ``kept`` tells them for a function's name and its variables; ``replaced`` has those that stand for objects, by id,
    whatever functions call them.
    """
    functions = list(user_functions(frame))
    given: list[dict[str, Any]] = []
    for function in functions:
        known = function.f_locals
        given.append(dict(kept(function.f_code.co_name, known)))
        for name, value in given[-1].items():
            replaced.update(standing_for(known[name], value))
    for function, values in zip(functions, given):
        for name, value in dict(function.f_locals).items():
            if id(value) in replaced:
                values.setdefault(name, replaced[id(value)])
        put(function, values)


def put(function: FrameType, values: Mapping[str, Any]) -> None:
    """Give a function's variables these values, by name."""
    if not values:
        return
    from ctypes import c_int, py_object, pythonapi

    known = function.f_locals
    known.update(values)
    # It does nothing from CPython 3.13 on, nor needs to.
    pythonapi.PyFrame_LocalsToFast(py_object(function), c_int(0))


def put_loops(frame: FrameType | None, loops: Mapping[str, Any]) -> None:
    """Give what the for loops of the user's functions count with the numbers that ``of_loops`` returned."""
    for function in user_functions(frame):
        numbers, known = loops.get(function.f_code.co_name), function.f_locals
        if isinstance(numbers, dict):
            put(function, {name: numbers[name] for name in numbers if type(known.get(name)) is int})


_OTHER_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)
_BODIES = frozenset(["body", "orelse", "finalbody", "handlers", "cases"])
# Functions that give finite values for finite ones: they pack values or begin new ones.
_HARMLESS = frozenset(
    "append arange array asarray as_tensor astype clone contiguous copy cpu detach dict enumerate flatten from_numpy"
    " isinstance len list numpy ones ones_like print range reshape size squeeze stack tensor transpose tuple unsqueeze"
    " view zeros zeros_like zip".split()
)
_MAX_CALLS = 4  # of functions within functions


def lines_that_made(
    frames: Iterable[FrameType], is_finite: Callable[[Any], bool], has_attributes: bool = True
) -> list[Place]:
    """Return the lines that may have made what these frames, the innermost first, work on; none if nobody can say.

    ``has_attributes`` tells whether objects of the script have the attributes that they had in the captured step.
    """
    try:
        return _lines_that_made(frames, is_finite, has_attributes)
    except Exception as error:  # of what the script's own classes do when they are asked
        pass_on(error)
        return []


def _lines_that_made(
    frames: Iterable[FrameType], is_finite: Callable[[Any], bool], has_attributes: bool
) -> list[Place]:
    found: list[Place] = []
    for frame in frames:
        search = _Search(frame, is_finite, has_attributes)
        found += search.made(is_called=bool(found))
        if search.is_unknown:
            return []
        if not search.is_argument:
            break
    return found


class _Search:
    """Looks for the statements of one function that made what is not finite."""

    def __init__(self, frame: FrameType, is_finite: Callable[[Any], bool], has_attributes: bool) -> None:
        self._code, self._line = frame.f_code, frame.f_lineno
        self._values: Mapping[str, Any] = {**frame.f_globals, **variables_of(frame)}
        self._is_finite = is_finite
        self._statements = list(_statements(_body(self._code)))
        self._seen: set[int] = set()
        self._has_attributes = has_attributes
        self.is_unknown = False  # whether it may have come from an attribute that nobody knows any more
        self.is_argument = False  # whether something that is not finite was handed over by the caller

    def made(self, is_called: bool) -> list[Place]:
        """Return the lines; one that only calls a function in which some were found is none of them."""
        before = [one for one in self._statements if _line_of(one) <= self._line]
        last = max(before, key=_line_of, default=None)
        lines = set() if last is None else set(self._makers(last))
        return sorted(lines - {_place(self._code, last)} if is_called and last is not None else lines)

    def _makers(self, statement: ast.AST, besides: str = "") -> Iterator[Place]:
        self._seen.add(id(statement))
        bad = [name for name in _read(statement) if name != besides and self._is_bad(name, statement)]
        if not bad:
            yield from _lines_of(statement, self._code, self._values)
        arguments = self._code.co_varnames[: self._code.co_argcount + self._code.co_kwonlyargcount]
        for name in bad:
            assignments = self._assignments(name, statement)
            is_new = any(name not in _read(one) for one in assignments)
            self.is_argument = self.is_argument or (name in arguments and not is_new)
            self.is_unknown = self.is_unknown or ("." in name and not assignments)
            for other in assignments:
                yield from self._makers(other, name)

    def _assignments(self, name: str, statement: ast.AST) -> list[ast.AST]:
        """The statements that may have given a variable what it has there: those before, else of the turn before."""
        all_of_it = [one for one in self._statements if id(one) not in self._seen and name in _written(one)]
        return [one for one in all_of_it if _line_of(one) <= _line_of(statement)] or all_of_it

    def _is_bad(self, name: str, statement: ast.AST) -> bool:
        """Return whether a variable is not finite, and still has the value that this statement read."""
        later = [one for one in self._statements if _line_of(statement) < _line_of(one) < self._line]
        return not self._is_known_finite(name) and not any(name in _written(one) for one in later)

    def _is_known_finite(self, name: str) -> bool:
        value: Any = self._values.get(name.partition(".")[0])
        for attribute in name.split(".")[1:]:
            value = own_attributes(value).get(attribute)
        if "." in name and not self._has_attributes and parts(value):
            return False
        items = value if isinstance(value, (list, tuple)) else [value]
        numbers = [one for one in items if type(one) is not int and isinstance(one, Real)]
        return all(map(math.isfinite, numbers)) and all(map(self._has_finite_numbers, parts(value)))

    def _has_finite_numbers(self, part: Any) -> bool:
        try:
            return self._is_finite(part)
        except Exception as error:  # it holds no numbers, or shows none
            pass_on(error)
            return True


def _body(code: CodeType) -> Sequence[ast.AST]:
    """Return the statements of a function as its file has them; none where that cannot be read."""
    try:
        tree = ast.parse("".join(linecache.getlines(code.co_filename)))
    except (SyntaxError, ValueError, RecursionError):
        return []
    if code.co_name == "<module>":
        return tree.body
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.name == code.co_name:
            if code.co_firstlineno in (node.lineno, *[one.lineno for one in node.decorator_list]):
                return node.body
    return []


def _statements(body: Iterable[ast.AST]) -> Iterator[ast.AST]:
    """Yield those of a function with those within them, as those of a loop; none of functions within it."""
    for statement in body:
        if not isinstance(statement, _OTHER_SCOPES):
            yield statement
            for name in _BODIES:
                inner = getattr(statement, name, [])
                yield from _statements(inner if isinstance(inner, list) else [])


def _nodes(statement: ast.AST) -> Iterator[ast.AST]:
    """Yield what a statement consists of, without the statements within it and without what only chooses elements."""
    for name, value in ast.iter_fields(statement):
        if name not in _BODIES and not (name == "slice" and isinstance(statement, ast.Subscript)):
            for node in value if isinstance(value, list) else [value]:
                if isinstance(node, ast.AST) and not isinstance(node, _OTHER_SCOPES):
                    yield node
                    yield from _nodes(node)


def _line_of(statement: ast.AST) -> int:
    return int(getattr(statement, "lineno", 0))


def _dotted(node: ast.AST) -> str:
    """Return the name of a variable, or of an object's attribute."""
    if isinstance(node, ast.Name):
        return node.id
    owner = _dotted(node.value) if isinstance(node, ast.Attribute) else ""
    return f"{owner}.{node.attr}" if owner and isinstance(node, ast.Attribute) else ""


def _read(statement: ast.AST) -> list[str]:
    names = [_dotted(node) for node in _nodes(statement) if isinstance(getattr(node, "ctx", None), ast.Load)]
    names += _written(statement) if isinstance(statement, ast.AugAssign) else []
    return list(dict.fromkeys(filter(None, names)))


def _written(statement: ast.AST) -> list[str]:
    """Return the variables that a statement assigns, wholly or in part, or calls a method of."""
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
    """The line of a statement that computes, other than by what keeps finite values finite, and of what it calls."""
    computes = isinstance(statement, ast.AugAssign)
    for node in _nodes(statement):
        function = _function(node.func, values) if isinstance(node, ast.Call) and depth < _MAX_CALLS else None
        inner = [] if function is None else list(_returned_by(function, depth + 1))
        yield from inner
        computes = computes or (not inner and _computes(node))
    if computes:
        yield _place(code, statement)


def _returned_by(function: FunctionType, depth: int) -> Iterator[Place]:
    """Yield the lines of a function that ended, by which what it returned was computed."""
    statements = list(_statements(_body(function.__code__)))
    waiting: list[ast.AST] = [one for one in statements if isinstance(one, ast.Return)]
    seen: set[int] = set()
    while waiting:
        statement = waiting.pop()
        if id(statement) not in seen:
            seen.add(id(statement))
            yield from _lines_of(statement, function.__code__, function.__globals__, depth)
            names = _read(statement)
            waiting += [one for one in statements if any(name in names for name in _written(one))]


def _function(node: ast.AST, values: Mapping[str, Any]) -> FunctionType | None:
    """Return the function of the user's that was called so and has returned, by its name or as a method."""
    owner, _, name = _dotted(node).rpartition(".")
    if owner:
        holder = values.get(owner.partition(".")[0])
        for attribute in owner.split(".")[1:]:
            holder = own_attributes(holder).get(attribute)
        found = next((vars(kind)[name] for kind in type(holder).__mro__ if name in vars(kind)), None)
        found = getattr(found, "__func__", found)  # of a static method
    else:
        found = values.get(name)
    found = getattr(found, "__wrapped__", found) if type(found) is FunctionType else None
    if type(found) is not FunctionType or not is_users(found.__code__.co_filename):
        return None
    return None if found.__code__ in running_code(sys._getframe(1)) else found


def _computes(node: ast.AST) -> bool:
    if isinstance(node, ast.Call):
        return getattr(node.func, "attr", getattr(node.func, "id", "")) not in _HARMLESS
    return isinstance(node, ast.BinOp) or getattr(node, "attr", "") in ("nan", "inf")
