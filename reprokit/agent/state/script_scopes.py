"""Finds where a script keeps its variables: in its modules, running functions, and objects of its own classes."""

from __future__ import annotations

import os
import sys
import weakref
from collections import deque
from functools import partial
from types import FunctionType, GeneratorType, MethodType, ModuleType

from ..capture.variables import set_variables, user_functions
from ..core.attributes import dictionary_of, own_attributes
from ..core.live_objects import instances
from ..core.user_frames import installed_package, is_users, variables_of
from .library_values import fields_of_library

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from types import FrameType
    from typing import Any

    Assign = Callable[[str, Any], object]

MAX_PATH = 4  # names in a path to an object
MAX_OBJECTS = 5000  # searched on each level
MAX_ITEMS = 1000  # of a container
_CHANGED = frozenset([deque, dict, list, set])
_NUMBERS = frozenset([bool, int, float])
_KEYS = frozenset([bool, int, float, str])
_NAMESPACES = (("argparse", "Namespace"), ("types", "SimpleNamespace"))
_LISTS = ("CallbackList",)  # of callbacks, which are named by themselves where they can be
_TRAIN = ("xgboost.training", "lightgbm.engine")  # modules of the function train
_OF_LIGHTGBM = "lightgbm.callback"
_OPTIMIZED = 1  # CO_OPTIMIZED: a function's code; the variables of other frames are those of a module or class


class VariableScope:
    """The variables of a module or of a running function, and how one is set."""

    def __init__(self, file: str, function: str, variables: Mapping[str, Any], assign: Assign | None) -> None:
        self._head, self._tail = f"{_label(file)}: ", f" in {function}()" if function else ""
        self.variables, self.assign = variables, assign

    def rows(self) -> Iterator[tuple[str, str, str]]:
        """Yield name, head and tail of each variable: an object that a method calls self is named by its class."""
        for name, value in list(self.variables.items()):
            if name == "self":
                yield name, f"{self._head}{type(value).__name__}", ""
            elif name[:2] != "__" and name != "_" and not issubclass(type(value), ModuleType):
                yield name, self._head + name, self._tail

    def name_of(self, head: str, tail: str) -> str:
        """Return the name of a variable that this scope may have; an empty text if its names look different."""
        name = head[len(self._head) :]
        is_own = tail == self._tail and head.startswith(self._head) and name.isidentifier()
        return name if is_own and self.assign is not None else ""


class RememberedInstances:
    """Searches the heap for instances once, as that takes long; later calls return those of them that still live."""

    def __init__(self) -> None:
        self._found: list[weakref.ref[Any]] | None = None

    def __call__(self, *classes: type) -> list[Any]:
        if self._found is None:
            self._found = [weakref.ref(each) for each in instances(*classes) if hasattr(each, "__weakref__")]
        alive = (reference() for reference in self._found)
        return [each for each in alive if isinstance(each, classes)]


def scopes(frame: FrameType | None, search: Callable[..., list[Any]] = instances) -> Iterator[VariableScope]:
    """Yield the scopes of the script: its modules, the functions that led to this frame, and the rest of its objects.

    An object that only a library refers to, as a callback, is found if it is the only one of its class; all callbacks
    of Keras are, by their place in the list of the running fit, and functions among those of a booster's training.
    """
    names = sorted(filter(is_of_script, list(sys.modules)), key=lambda name: name != "__main__")
    own_modules = {name: _module(name) for name in names}
    for variables in own_modules.values():
        yield VariableScope(_file(variables), "", variables, variables.__setitem__)
    for function in reversed(list(user_functions(frame))):
        code = function.f_code
        if code.co_flags & _OPTIMIZED:
            variables = variables_of(function)
            yield VariableScope(code.co_filename, code.co_name, variables, partial(_set_local, function))
    values = [value for variables in own_modules.values() for value in list(variables.values())]
    classes = {value for value in values if issubclass(type(value), type)}  # a proxy may load what its class is
    by_class: dict[type, list[Any]] = {}
    for instance in search(*[kind for kind in classes if is_of_script(kind.__module__)], *_callback_classes()):
        by_class.setdefault(type(instance), []).append(instance)
    for kind in sorted(by_class, key=lambda kind: (kind.__name__ in _LISTS, kind.__module__, kind.__qualname__)):
        if len(by_class[kind]) == 1:
            package = kind.__module__.partition(".")[0]
            file = _file(_module(kind.__module__)) if is_of_script(kind.__module__) else package
            yield VariableScope(file, "", {"self": by_class[kind][0]}, None)
    for callback in _boosting_callbacks(frame):
        yield VariableScope(callback.__code__.co_filename, "", {callback.__name__: callback}, None)


def _callback_classes() -> list[type]:
    """Return the classes of callbacks of Keras and XGBoost, and those that LightGBM itself has, where imported."""
    named = [_module("keras.callbacks").get("Callback"), _module("xgboost.callback").get("TrainingCallback")]
    own = [kind for kind in _module(_OF_LIGHTGBM).values() if isinstance(kind, type)]
    of_lightgbm = [kind for kind in own if kind.__module__ == _OF_LIGHTGBM and "__call__" in vars(kind)]
    return [kind for kind in named if isinstance(kind, type)] + of_lightgbm


def _boosting_callbacks(frame: FrameType | None) -> Iterator[FunctionType]:
    """Yield the functions among the callbacks of running trainings of XGBoost and LightGBM."""
    while frame is not None:
        if frame.f_code.co_name == "train" and frame.f_globals.get("__name__") in _TRAIN:
            callbacks = frame.f_locals.get("callbacks")
            for callback in callbacks if isinstance(callbacks, (list, tuple, set)) else ():
                if isinstance(callback, FunctionType):
                    yield callback
        frame = frame.f_back


def paths_of(targets: Iterable[Any], frame: FrameType | None) -> dict[int, str]:
    """Return the names by which the script refers to objects, such as "ema.model", by the objects' ids."""
    wanted, paths = {id(target) for target in targets}, dict[int, str]()
    seen = set[int]()
    level = [(name, value) for scope in scopes(frame) for name, value in list(scope.variables.items())]
    for _ in range(MAX_PATH):
        further: list[tuple[str, Any]] = []
        for name, value in level[:MAX_OBJECTS]:
            if id(value) in wanted:
                paths.setdefault(id(value), name)
            if id(value) not in seen and name[:2] != "__" and wanted - paths.keys():
                seen.add(id(value))
                further += [(f"{name}{step}", part) for step, part in _parts(value)]
        level = further
    return paths


def _parts(value: Any) -> list[tuple[str, Any]]:
    """Return what an object of the script, a dictionary or a list refers to, and how the script writes that."""
    if type(value) is dict:
        return [(f"[{key!r}]", part) for key, part in list(value.items())[:MAX_ITEMS] if type(key) in _KEYS]
    if type(value) in (list, tuple, deque):
        return [(f"[{number}]", part) for number, part in enumerate(list(value)[:MAX_ITEMS])]
    if issubclass(type(value), ModuleType):
        return []
    return [(f".{name}", part) for name, part in (fields_of(value) or {}).items()]


def _set_local(function: FrameType, name: str, value: Any) -> None:
    set_variables(function, {name: value})


def _module(name: str) -> dict[str, Any]:
    """Return the variables of a module. Asking it for an attribute could load it, if it is a lazy one."""
    return dictionary_of(sys.modules.get(name)) or {}


def _file(variables: Mapping[str, Any]) -> str:
    return str(variables.get("__file__") or "script")


def _label(file: str) -> str:
    """Return a script's path from the main script's directory, or its name."""
    main = os.path.dirname(os.path.abspath(_file(_module("__main__"))))
    path = os.path.abspath(file)
    return path[len(main) + 1 :] if path.startswith(main + "/") else os.path.basename(file)


def is_of_script(name: str) -> bool:
    """Return whether a module is the script's own."""
    variables = _module(name)
    file = variables.get("__file__")
    if name == "__main__":
        return not file or is_users(str(file))
    return bool(file) and variables.get("__spec__") is not None and is_users(str(file))


def fields_of(value: Any) -> dict[str, Any] | None:
    """Return the attributes of an object of the script's code, or the variables of its closure or generator."""
    kind = type(value)
    if kind is MethodType:
        return {"__self__": value.__self__}
    if kind is FunctionType:
        return _cells(value) if is_users(value.__code__.co_filename) else None
    if kind is GeneratorType:
        is_own = value.gi_frame is not None and is_users(value.gi_code.co_filename)
        return variables_of(value.gi_frame) if is_own else None
    if issubclass(kind, type):
        attributes = vars(value) if is_of_script(value.__module__) and not hasattr(value, "__members__") else {}
        return {
            name: part for name, part in attributes.items() if name[:2] != "__" and not hasattr(type(part), "__get__")
        }
    of_library = fields_of_library(value)
    if of_library is not None:
        return of_library
    is_own = is_of_script(kind.__module__) or (kind.__module__, kind.__name__) in _NAMESPACES
    own = dictionary_of(value) or {}
    children = own.get("_modules") if "_parameters" in own else None  # of a torch.nn.Module
    if not is_own and any(issubclass(kind, callback) for callback in _callback_classes()):
        return {name: part for name, part in own_attributes(value).items() if name[:1] != "_"}
    if not is_own or hasattr(kind, "__members__"):
        return children
    attributes = own_attributes(value) if children is None else own
    if any(installed_package(_file(_module(base.__module__))) for base in kind.__mro__):
        # The library keeps attributes, too; a module's numbers are another part of the state.
        names = [
            name for name, part in attributes.items() if name[:1] != "_" and not (children and type(part) in _NUMBERS)
        ]
        attributes = {name: attributes[name] for name in names}
    return {**attributes, **(children or {})}


def _cells(function: FunctionType) -> dict[str, Any]:
    values = dict(vars(function))
    code, defaults = function.__code__, function.__defaults__ or ()
    for name, default in zip(code.co_varnames[code.co_argcount - len(defaults) :], defaults):
        if type(default) in _CHANGED:  # what calls of the function remember
            values[name] = default
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or ()):
        try:
            values[name] = cell.cell_contents
        except ValueError:  # it is empty
            continue
    return values
