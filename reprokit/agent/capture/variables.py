"""Variables of the user's functions: what of a batch they hold where nobody handed it over, and how it is put back."""

from __future__ import annotations

from ..core import user_frames

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from types import CodeType, FrameType
    from typing import Any

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
        known = dict(function.f_locals)  # of a module, which other threads may add to
        names = [name for name in known if name[:1] != "_" and _has_samples(known[name], samples, may_keep)]
        values = {name: known[name] for name in names}
        if values:
            found.append((function.f_code.co_name, values))
    return found


def of_loops(frame: FrameType | None) -> dict[str, dict[str, int]]:
    """By functions: the numbers that their for loops count with, which may choose what belongs to the batch."""
    found: dict[str, dict[str, int]] = {}
    for function in user_functions(frame):
        known, code = function.f_locals, function.f_code
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
            except Exception:  # of a class of the script's own
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
