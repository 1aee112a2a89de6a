"""Reads and sets attributes of objects of the user's classes directly, without running code of the class."""

from __future__ import annotations

import types

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Any

MAX_ATTRIBUTES = 10_000
MAX_NAME = 200  # characters of a class's name
_OPAQUE_TYPES = (type, types.ModuleType, types.FunctionType, types.MethodType, types.BuiltinFunctionType)


class ObjectFields:
    """The attributes of an object in a snapshot, which stands for the object if its class is not available."""

    def __init__(self, kind: str, values: Mapping[str, Any]) -> None:
        self.kind = kind  # module and name of the class
        self.values = values

    def __getattr__(self, name: str) -> Any:
        try:
            return self.__dict__["values"][name]
        except KeyError:
            raise AttributeError(name) from None


def class_name(value: Any) -> str:
    """Return module and name of an object's class."""
    kind = type(value)
    return f"{kind.__module__}.{kind.__qualname__}"[:MAX_NAME]


def own_attributes(value: Any) -> dict[str, Any]:
    """Return the attributes in an object's ``__dict__`` and ``__slots__``; properties are not evaluated."""
    if isinstance(value, _OPAQUE_TYPES):
        return {}
    attributes = {name: _slot_value(slot, value) for name, slot in _slots(type(value))}
    attributes = {name: part for name, part in attributes.items() if part is not NotImplemented}
    own = dictionary_of(value)
    if own is not None and len(own) <= MAX_ATTRIBUTES and "_parameters" not in own:  # not a torch.nn.Module
        attributes.update(own)
    return attributes


def set_own_attribute(value: Any, name: str, new: Any) -> None:
    """Set an attribute that own_attributes() returns, bypassing ``__setattr__``."""
    for slot_name, slot in _slots(type(value)):
        if slot_name == name:
            slot.__set__(value, new)
            return
    own = dictionary_of(value)
    if own is not None:
        own[name] = new


def dictionary_of(value: Any) -> dict[str, Any] | None:
    """Return an object's ``__dict__``, read without its class; None if it has none."""
    try:
        own = object.__getattribute__(value, "__dict__")
    except (AttributeError, TypeError):
        return None
    return own if type(own) is dict else None


def _slots(kind: type) -> Iterator[tuple[str, Any]]:
    for owner in kind.__mro__:
        if "__slots__" not in vars(owner):
            continue
        for name, slot in vars(owner).items():
            if isinstance(slot, types.MemberDescriptorType):
                yield name, slot


def _slot_value(slot: Any, value: Any) -> Any:
    try:
        return slot.__get__(value, type(value))
    except AttributeError:  # it was not set
        return NotImplemented
