"""Replaces functions with wrappers that look like them; all wrapping goes through here."""

from __future__ import annotations

import functools
import gc
import sys
from types import ModuleType

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, TypeAlias

Function: TypeAlias = "Callable[..., Any]"  # which may be a method

MARK = "_reprokit_original"
_IS_CPYTHON = sys.implementation.name == "cpython"


def replace(owner: Any, name: str, make: Callable[[Function], Function], mark: str = MARK) -> None:
    """Replace a function of a module or class with make(original), if it exists; once for each mark."""
    original = vars(owner).get(name)
    if original is None or not callable(original) or hasattr(original, mark):
        return
    wrapper = functools.wraps(original)(make(original))
    if isinstance(owner, ModuleType):  # pickle finds functions by module and name
        wrapper.__module__, wrapper.__qualname__ = owner.__name__, name
    setattr(wrapper, mark, True)
    setattr(owner, name, wrapper)


def replace_method(kind: type, name: str, make: Callable[[Function], Function], mark: str = MARK) -> None:
    """Replace a method in the class that defines it: this one or the next above it; once for each mark."""
    owner = next((each for each in kind.__mro__ if name in vars(each)), None)
    if owner is not None and not hasattr(vars(owner)[name], mark):
        replace(owner, name, make, mark)


def noting(attempt: Function, note: Callable[..., object]) -> Callable[[Function], Function]:
    """Return a factory of wrappers that pass each call's result, arguments and keywords to ``note``."""

    def make(original: Function) -> Function:
        def call(*arguments: Any, **keywords: Any) -> Any:
            result = original(*arguments, **keywords)
            attempt(note, result, arguments, keywords)
            return result

        return call

    return make


def swap(owner: Any, name: str, make: Callable[[Function], Function]) -> Callable[[], None]:
    """Replace a function even if it is wrapped already, for a patch; return a function that undoes it."""
    original = getattr(owner, name)  # not vars(owner)[name]: TensorFlow 1 wraps modules in empty objects
    function = functools.wraps(original)(make(original))
    setattr(owner, name, function)

    def undo() -> None:
        if getattr(owner, name, None) is function:  # otherwise someone else has wrapped it, and still calls it
            setattr(owner, name, original)

    return undo


def replace_in_static_type(owner: type, name: str, make: Callable[[Function], Function]) -> None:
    """Do the same as replace() for a method of a type written in C, which refuses assignment; CPython only.

    A class in its place would be noticed by `type(x) is`, pickle and subclasses. Its dictionary can be
    obtained from the garbage collector; the interpreter's method cache must be invalidated then.
    """
    original = vars(owner).get(name)
    if original is None or not callable(original) or hasattr(original, MARK) or not _IS_CPYTHON:
        return
    dictionaries = [referent for referent in gc.get_referents(vars(owner)) if type(referent) is dict]
    if len(dictionaries) != 1 or dictionaries[0][name] is not original:
        return
    from ctypes import py_object, pythonapi

    wrapper = functools.wraps(original)(make(original))
    setattr(wrapper, MARK, True)
    dictionaries[0][name] = wrapper
    pythonapi.PyType_Modified(py_object(owner))
