"""Separates the timings of a training from the content of gensim's models, which are pickles.

A model holds the seconds that it was trained for, and a list of what was done with it, and when.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from reprokit.artifacts.elements import Noise, Part, Value
from reprokit.difference import BookkeepingKind

MODEL = re.compile(r"new gensim\.models\.[\w.]+, ")
SECONDS = re.compile(r"/total_train_time\Z"), re.compile(r"[0-9.e+-]+")
DATE = re.compile(r"/lifecycle_events/[0-9]+/datetime\Z"), re.compile(r"'[0-9T:.+-]+'")
MESSAGE = re.compile(r"/lifecycle_events/[0-9]+/msg\Z"), re.compile(r"('.*?) (took [0-9.]+s, [0-9.]+ [\w ]+/s)'")


def without_timings(parts: Iterable[Part]) -> Iterator[Part]:
    """Yield the parts of a pickle, where timings of gensim's models are bookkeeping."""
    model: str | None = None  # the name of the last one; its parts come before those of another
    for part in parts:
        if not isinstance(part, Value):
            yield part
            continue
        if MODEL.match(part.text) and not (model is not None and part.name.startswith(f"{model}/")):
            model = part.name
        yield from _split(part) if model is not None and part.name.startswith(model) else (part,)


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
