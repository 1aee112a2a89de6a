"""The file `checkpoint`, in which TensorFlow notes its last checkpoints; when they were written is noise."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

from reprokit.artifacts.elements import Limits, Noise, Part, Source, Value
from reprokit.artifacts.formats.text import lines
from reprokit.errors import ArtifactDamaged

_LINE = re.compile(r'(\w+): (?:"(?:[^"\\]|\\.)*"|[-+.\w]+)')
TIMES = ("all_model_checkpoint_timestamps", "last_preserved_timestamp")


def read(source: Source, limits: Limits) -> Iterator[Part]:
    """Each field with its number."""
    counts: Counter[str] = Counter()
    for line in lines(source, limits.text):
        text = line.strip()
        if not text:
            continue
        found = _LINE.fullmatch(text)
        if found is None:
            raise ArtifactDamaged(f"the line {text[:80]!r} is no field")
        name = f"{found[1]}/{counts[found[1]]}"
        counts[found[1]] += 1
        value = text.removeprefix(f"{found[1]}: ")
        yield Noise(name, value) if found[1] in TIMES else Value(name, value)
