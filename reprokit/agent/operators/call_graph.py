"""From cProfile's counts to functions of libraries, each with the places in the user's code that led to it."""

from __future__ import annotations

import dis
import sys
from types import CodeType, FunctionType

from ..core.loaded_modules import module_files
from ..core.user_frames import is_own, is_users

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import Any

    Key = object  # the id of a code object, or cProfile's text for a function of C
    Where = dict[tuple[Key, int], int]  # by user's function and line: number of calls

MAX_FUNCTIONS = 3000
MAX_WHERE = 5
MAX_NESTED = 2  # classes within classes
MAX_WRAPPED = 5  # decorators on a function
UNKNOWN = 0  # line of a call through a wrapper, which no name reveals; a function further on may reveal it
MAX_LEVELS = 12  # calls between the user's function and the one in the report
_NOT_FOLLOWED = ("<frozen importlib", "<frozen zipimport")
_PATCH_FILES = tuple("/frameworks/ /patches/ /pytorch/ /tensorflow/ /seeds/ /library_calls.py /patching.py".split())
_PATCH_CALLERS = ("outermost",)  # agent functions that call the script's; calls of others are not followed
_OF_NO_INTEREST = ("_thread.", "_weakrefset.", "gc.", "threading._", "threading.Thread._")  # called at exits
_UNNAMED = ("<module>", "<listcomp>", "<dictcomp>", "<setcomp>", "<genexpr>", "<lambda>")
_TENSORS = ("torch._C._TensorBase.", "torch._C.TensorBase.", "torch._tensor.Tensor.")  # all reported as torch.Tensor


class CallCounts:
    """Counts of calls, by function and by caller."""

    def __init__(self) -> None:
        self.counts: dict[Key, int] = {}
        self.codes: dict[Key, CodeType] = {}
        self.callees: dict[Key, dict[Key, int]] = {}

    def __len__(self) -> int:
        return len(self.counts)

    def copied(self) -> CallCounts:
        """Return a copy; another thread may add calls meanwhile."""
        copy = CallCounts()
        copy.counts, copy.codes = dict(self.counts), dict(self.codes)
        copy.callees = {caller: dict(callees) for caller, callees in list(self.callees.items())}
        return copy

    def add(self, entries: list[Any], running: Sequence[CodeType] = ()) -> None:
        """Add the entries of a profile; calls without a caller in it are attributed to a running function."""
        unexplained: dict[Key, int] = {}
        for entry in entries:
            caller = self._key(entry.code)
            self.counts[caller] = self.counts.get(caller, 0) + entry.callcount
            unexplained[caller] = unexplained.get(caller, 0) + entry.callcount
            for call in entry.calls or ():
                callee = self._key(call.code)
                self._add_call(caller, callee, call.callcount)
                unexplained[callee] = unexplained.get(callee, 0) - call.callcount
        for callee, count in unexplained.items() if running else ():
            code = self.codes.get(callee)
            if count > 0 and not (code is not None and (code in running or _is_internal(code))):
                self._add_call(self._key(_likely_caller(running, callee, code)), callee, count)

    def _add_call(self, caller: Key, callee: Key, count: int) -> None:
        callees = self.callees.setdefault(caller, {})
        callees[callee] = callees.get(callee, 0) + count

    def _key(self, code: Any) -> Key:
        if isinstance(code, str):
            return code
        self.codes[id(code)] = code  # not the code object itself: those of two files may be equal
        return id(code)


def describe(calls: CallCounts) -> Iterator[tuple[str, dict[str, object]]]:
    """Yield name and line of each library function reached from the user's code, the nearest first."""
    tracer = LibraryCallTracer(calls, ModuleNames())
    tracer.follow()
    lines: dict[str, dict[str, Any]] = {}
    for key in tracer.reached:
        name = tracer.name(key)
        if name is None or name.startswith(_OF_NO_INTEREST):
            continue
        line = lines.get(name)
        if line is None:
            if len(lines) >= MAX_FUNCTIONS:
                break
            line = lines[name] = {"name": name, "calls": 0, "where": []}
        line["calls"] += calls.counts.get(key, 0)
        line["where"] = (line["where"] + tracer.places(key))[:MAX_WHERE]
    return iter(lines.items())


def _is_internal(code: CodeType) -> bool:
    """Return whether code is the agent's and replaces no function that the user calls."""
    return is_own(code.co_filename) and not any(part in code.co_filename for part in _PATCH_FILES)


def _likely_caller(running: Sequence[CodeType], callee: Key, code: CodeType | None) -> CodeType:
    """Return the likely caller among running functions: the first one that names the callee, else the innermost."""
    name = str(callee).partition("'")[2].partition("'")[0] or str(callee).rstrip(">").rpartition(".")[2]
    name = name if code is None else code.co_name
    return next((caller for caller in running if name in _lines_of_names(caller)), running[0])


class LibraryCallTracer:
    """Traces calls from the user's code into libraries, level by level (breadth first)."""

    def __init__(self, calls: CallCounts, modules: ModuleNames) -> None:
        self._calls = calls
        self._modules = modules
        self._names: dict[Key, str | None] = {}
        self.reached: dict[Key, Where] = {}

    def name(self, key: Key) -> str | None:
        """Return the name of a library function; None if it has none."""
        if key not in self._names:
            self._names[key] = self._modules.name(key, self._calls.codes.get(key))
        return self._names[key]

    def follow(self) -> None:
        """Find the places in the user's code that led to each function."""
        level: dict[Key, Where] = {}
        for caller, code in self._calls.codes.items():
            if is_users(code.co_filename):
                self._reach(level, caller, {(caller, UNKNOWN): 0})
        for _ in range(MAX_LEVELS):
            self.reached.update(level)
            level = self._next_level(level)
            if not level:
                break

    def _next_level(self, level: dict[Key, Where]) -> dict[Key, Where]:
        following: dict[Key, Where] = {}
        for caller, where in level.items():
            if _is_followed(self._calls.codes.get(caller)):
                self._reach(following, caller, where)
        return following

    def _reach(self, level: dict[Key, Where], caller: Key, where: Where) -> None:
        """Add the callees of a function to a level."""
        nearest = [place for place, _ in _most(where)]
        for callee, count in self._calls.callees.get(caller, {}).items():
            if callee in self.reached or self._is_left_out(caller, callee):
                continue
            places = level.setdefault(callee, {})
            for user, line in nearest:
                for user_line in [line] if line != UNKNOWN else self._lines(user, callee):
                    places[user, user_line] = places.get((user, user_line), 0) + count

    def _is_left_out(self, caller: Key, callee: Key) -> bool:
        """Return whether a call is of the user's own function, or internal to the agent."""
        code = self._calls.codes.get(callee)
        if code is None:
            return False
        is_internal = is_own(code.co_filename) and _is_own(self._calls.codes.get(caller))
        return is_users(code.co_filename) or (is_internal and code.co_name not in _PATCH_CALLERS)

    def _lines(self, user: Key, callee: Key) -> list[int]:
        """Return the lines of the user's function that name the callee."""
        *_, owner, name = ["", *(self.name(callee) or "").split(".")]
        lines = _lines_of_names(self._calls.codes[user])
        return lines.get(owner if name in ("__init__", "__new__") else name, [])[:MAX_WHERE] or [UNKNOWN]

    def places(self, key: Key) -> list[list[object]]:
        """Return file, line, function and calls of the places that led to a function most often."""
        places = []
        for (user, line), count in _most(self.reached[key]):
            code = self._calls.codes[user]
            places.append([code.co_filename, code.co_firstlineno if line == UNKNOWN else line, code.co_name, count])
        return places


def _is_followed(code: CodeType | None) -> bool:
    """Return whether to follow the calls of code; those of an import are not followed."""
    return code is not None and code.co_name != "<module>" and not code.co_filename.startswith(_NOT_FOLLOWED)


def _is_own(code: CodeType | None) -> bool:
    return code is not None and is_own(code.co_filename)


def _most(where: Where) -> list[tuple[tuple[Key, int], int]]:
    return sorted(where.items(), key=lambda item: (-item[1], item[0][1]))[:MAX_WHERE]


# Names


class ModuleNames:
    """Names functions, by the modules of their files."""

    def __init__(self) -> None:
        self._by_file = dict(module_files())
        self._qualified: dict[str, dict[int, str]] = {}

    def name(self, key: Key, code: CodeType | None) -> str | None:
        """Return the name of a library function; None for other code."""
        if code is None:
            return _name_in_c(str(key))
        if code.co_name in _UNNAMED or is_own(code.co_filename) or code.co_filename.startswith(_NOT_FOLLOWED):
            return None
        module = self._by_file.get(code.co_filename)
        return None if module is None else _usual(f"{module}.{self._qualified_name(module, code)}")

    def _qualified_name(self, module: str, code: CodeType) -> str:
        name: str | None = getattr(code, "co_qualname", None)  # from Python 3.11 on
        if name is None:
            if module not in self._qualified:
                self._qualified[module] = dict(_functions(sys.modules.get(module)))
            name = self._qualified[module].get(id(code), code.co_name)
        return name.replace(".<locals>", "")


def _name_in_c(text: str) -> str | None:
    """Return the usual name of <built-in method torch.conv2d> or <method 'add' of 'torch._C.TensorBase' objects>."""
    if text.startswith("<built-in method "):
        name = text[len("<built-in method ") : -1].partition(" of ")[0]
    elif text.startswith("<method '"):
        method, _, owner = text[len("<method '") :].partition("' of '")
        name = f"{owner.partition(chr(39))[0]}.{method}"
        if "." not in name[: -len(method) - 1]:  # a type of Python itself
            return None
    else:
        return None
    return _usual(name) if "." in name and not name.startswith("builtins.") else None


def _usual(name: str) -> str:
    prefix = next((prefix for prefix in _TENSORS if name.startswith(prefix)), None)
    return name if prefix is None else "torch.Tensor." + name[len(prefix) :]


def _functions(owner: Any, prefix: str = "", depth: int = 0) -> Iterator[tuple[int, str]]:
    """Yield the ids of the code of a module's functions and methods, with their qualified names."""
    for name, value in list(vars(owner).items()) if owner is not None else ():
        if issubclass(type(value), type):
            if depth < MAX_NESTED:
                yield from _functions(value, f"{prefix}{name}.", depth + 1)
            continue
        for function in _unwrapped(value):
            yield id(function.__code__), getattr(function, "__qualname__", None) or prefix + name


def _unwrapped(value: Any) -> Iterator[Any]:
    """Yield the functions of a member of a class or module, unwrapping decorators."""
    if type(value) in (staticmethod, classmethod):
        value = value.__func__
    elif type(value) is property:
        value = value.fget
    for _ in range(MAX_WRAPPED):
        if type(value) is not FunctionType:  # attributes of other types are not read, as that may import modules
            return
        yield value
        value = getattr(value, "__wrapped__", None)


# Lines

_line_cache: dict[int, tuple[CodeType, dict[str, list[int]]]] = {}


def _lines_of_names(code: CodeType) -> dict[str, list[int]]:
    cached = _line_cache.get(id(code))
    if cached is None:
        cached = _line_cache[id(code)] = code, _read_lines_of_names(code)
    return cached[1]


def _read_lines_of_names(code: CodeType) -> dict[str, list[int]]:
    """Return the lines at which a function loads names and attributes, by name."""
    starts = dict(dis.findlinestarts(code))
    names: dict[str, list[int]] = {}
    line = code.co_firstlineno
    for instruction in dis.get_instructions(code):
        line = starts.get(instruction.offset) or line
        name = instruction.argval
        if instruction.opname.startswith("LOAD_") and instruction.opname != "LOAD_CONST" and isinstance(name, str):
            lines = names.setdefault(name, [])
            if line not in lines:
                lines.append(line)
    return names
