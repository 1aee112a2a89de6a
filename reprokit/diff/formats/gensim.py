"""Separates the timings of a training from the content of gensim's models, which are pickles.

A model holds the seconds that it was trained for, and a list of what was done with it, and when.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from reprokit.core.difference import BookkeepingKind
from reprokit.diff.elements import Noise, Part, Value
from reprokit.diff.formats.pickle_nodes import GlobalName, Item, PickledObject

MODELS = "gensim.models."  # its classes
SECONDS = re.compile(r"/total_train_time\Z"), re.compile(r"[0-9.e+-]+")
DATE = re.compile(r"/lifecycle_events/[0-9]+/datetime\Z"), re.compile(r"'[0-9T:.+-]+'")
MESSAGE = re.compile(r"/lifecycle_events/[0-9]+/msg\Z"), re.compile(r"('.*?) (took [0-9.]+s, [0-9.]+ [\w ]+/s)'")


def is_model(item: Item) -> bool:
    """Return whether a pickle's object is a model of gensim."""
    function = item.function if isinstance(item, PickledObject) else None
    return isinstance(function, GlobalName) and str(function).startswith(MODELS)


def without_timings(parts: Iterable[Part]) -> Iterator[Part]:
    """Yield the parts of a model, whose timings are bookkeeping."""
    for part in parts:
        yield from _split(part) if isinstance(part, Value) else (part,)


def _split(part: Value) -> Iterator[Part]:
    """Yield a value of a model, or what of it is a timing."""
    message = MESSAGE[1].fullmatch(part.text) if MESSAGE[0].search(part.name) else None
    if message is not None:
        yield Value(part.name, f"{message[1]}'")
        yield Noise(f"{part.name} (speed)", message[2], BookkeepingKind.RATE)
    elif _is(part, *SECONDS):
        yield Noise(part.name, part.text, BookkeepingKind.DURATION)
    elif _is(part, *DATE):
        yield Noise(part.name, part.text, BookkeepingKind.DATE)
    else:
        yield part


def _is(part: Value, name: re.Pattern[str], text: re.Pattern[str]) -> bool:
    return name.search(part.name) is not None and text.fullmatch(part.text) is not None
