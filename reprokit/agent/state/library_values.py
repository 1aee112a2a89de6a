"""Reads and sets what objects of Python's own library keep, with which scripts count, remember and draw."""

from __future__ import annotations

import sys
from functools import partial
from itertools import count, cycle, islice

from ..core.attributes import class_name

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

MAX_BYTES = 1 << 16
MAX_DRAWN = 100_000  # items that an iterator is moved by
_SEQUENCE_ITERATORS = frozenset([type(iter([0])), type(iter((0,)))])
_SIZED_ITERATORS = frozenset(
    [
        *map(type, map(iter, ("", "\u2014", b"", range(1), {0}, {0: 0}, {0: 0}.values(), {0: 0}.items()))),
        type(reversed([0])),
    ]
)
_HAVE_STATES = sys.version_info < (3, 12)  # later ones of itertools warn, and have none from 3.14 on
_CONTEXT_VARIABLES = ("_contextvars.ContextVar", "builtins.ContextVar")  # 3.7 has the latter
_LOCAL = "_thread._local"
_SHARED = "multiprocessing.sharedctypes.Synchronized"
_CTYPES_NUMBERS = frozenset("bBhHiIlLqQfdg?")  # codes of the types; others may hold addresses
QUEUES = ("queue.LifoQueue", "queue.PriorityQueue", "queue.Queue")
_WITH_ATTRIBUTES = {
    "collections.ChainMap": ("maps",),
    "functools.partial": ("func", "args", "keywords"),
    **dict.fromkeys(QUEUES, ("queue",)),
    "weakref.WeakKeyDictionary": ("data",),
    "weakref.WeakValueDictionary": ("data",),
}
# By class: the value as a plain one, and what makes one of that again.
_PLAIN: dict[str, tuple[Callable[[Any], Any], Callable[[Any, Any], Any]]] = {
    "builtins.bytearray": (bytearray.hex, lambda kind, text: kind.fromhex(text)),
    "builtins.bytes": (bytes.hex, lambda kind, text: kind.fromhex(text)),
    "datetime.date": (str, lambda kind, text: kind.fromisoformat(text)),
    "datetime.datetime": (str, lambda kind, text: kind.fromisoformat(text)),
    "datetime.time": (str, lambda kind, text: kind.fromisoformat(text)),
    "datetime.timedelta": (lambda value: [value.days, value.seconds, value.microseconds], lambda kind, of: kind(*of)),
    "decimal.Decimal": (str, lambda kind, text: kind(text)),
    "fractions.Fraction": (str, lambda kind, text: kind(*map(int, text.split("/")))),
}


def fields_of_library(value: Any) -> dict[str, Any] | None:
    """Return what an object of Python's library keeps by name; None of others."""
    kind, name = type(value), class_name(value)
    if name in _WITH_ATTRIBUTES:
        return {each: getattr(value, each) for each in _WITH_ATTRIBUTES[name]}
    if name == _LOCAL:  # what the thread that trains sees of it
        return dict(vars(value))
    if name in _CONTEXT_VARIABLES:
        missing: Any = kind
        current = value.get(missing)
        return {} if current is missing else {"value": current}
    number = _number_of_ctypes(value)
    if number is not None:
        return {"value": number.value}
    if kind in (map, zip, filter):
        return {f"iterator {number}": each for number, each in enumerate(value.__reduce__()[1])}
    return None


def set_field_of_library(owner: Any, name: str, value: Any) -> bool:
    """Set such a field; return whether the object is one of those that have them."""
    fields = fields_of_library(owner)
    if fields is None:
        return False
    if isinstance(owner, partial):
        state = {**fields, name: value}
        set_state: Any = getattr(owner, "__setstate__")  # noqa: B009  # mypy knows it not
        set_state((owner.func, tuple(state["args"]), dict(state["keywords"]), vars(owner)))
    elif class_name(owner) == _LOCAL:
        vars(owner)[name] = value
    elif class_name(owner) in _CONTEXT_VARIABLES:
        owner.set(value)
    elif type(owner) not in (map, zip, filter):  # their iterators are moved in place
        number = _number_of_ctypes(owner)
        setattr(owner if number is None else number, name, value)
    return True


def _number_of_ctypes(value: Any) -> Any:
    """Return a number of ctypes, or the one that processes share, whose lock is left alone; None for others."""
    value = value.get_obj() if class_name(value) == _SHARED else value
    is_simple = any(base.__name__ == "_SimpleCData" for base in type(value).__mro__)
    return value if is_simple and getattr(type(value), "_type_", "") in _CTYPES_NUMBERS else None


def plain_of(value: Any) -> list[Any] | None:
    """Return the class and the plain value of a number, date, text of bytes or member of an enumeration."""
    kind = type(value)
    if hasattr(kind, "__members__"):
        return [class_name(value), str(value._name_)]
    row = _PLAIN.get(class_name(value))
    if row is None or (kind in (bytes, bytearray) and len(value) > MAX_BYTES):
        return None
    return [class_name(value), row[0](value)]


def made_of(content: list[Any], own: Any) -> Any:
    """Return the value of what plain_of() returned: the own one, changed, where that can be."""
    name, plain = content
    if plain_of(own) == content:
        return own
    members = getattr(type(own), "__members__", None)
    if name not in _PLAIN:
        return members.get(plain, own) if members and class_name(own) == name else own
    module, _, attribute = name.partition(".")
    kind = getattr(sys.modules.get(module), attribute, None)
    if kind is None:
        return own
    new = _PLAIN[name][1](kind, plain)
    if name == "builtins.bytearray" and isinstance(own, bytearray):
        own[:] = new
        return own
    return new


def position_of(value: Any) -> list[int] | None:
    """Return where an iterator is, or the next number of a counter and its step; None for others."""
    kind = type(value)
    if kind in _SEQUENCE_ITERATORS:
        state = value.__reduce__()
        return [int(state[2])] if len(state) > 2 else None  # None: it is exhausted
    if kind in _SIZED_ITERATORS:
        return [int(value.__length_hint__())]
    if kind is enumerate:
        return [int(value.__reduce__()[1][1])]
    if kind is islice and _HAVE_STATES:
        return [int(value.__reduce__()[2])]
    if kind is cycle and _HAVE_STATES:
        _, (rest,), (seen, is_first) = value.__reduce__()
        return [len(seen) if is_first is False or is_first == 0 else len(seen) - int(rest.__length_hint__())]
    if kind is count:
        numbers = repr(value)[len("count(") : -1].split(", ")
        is_whole = all(number.lstrip("-").isdecimal() for number in numbers)
        return [int(number) for number in numbers] if is_whole else None
    return None


def moved_to(own: Any, position: list[int]) -> Any:
    """Return the own iterator at a position, or a new counter: a counter cannot be set."""
    if type(own) in _SEQUENCE_ITERATORS:
        own.__setstate__(position[0])
    elif type(own) is count:
        return count(*position)
    else:
        _draw_until(own, position[0])
    return own


def _draw_until(iterator: Any, wanted: int) -> None:
    """Draw items until an iterator is at a position, unless that is behind it."""
    at, end = position_of(iterator), object()
    is_behind = at is not None and (at[0] < wanted) is (type(iterator) in _SIZED_ITERATORS)  # these count what is left
    if at is None or at == [wanted] or (is_behind and type(iterator) is not cycle):
        return
    for _ in range(MAX_DRAWN):
        if next(iterator, end) is end or position_of(iterator) == [wanted]:
            return
