"""The names of variables of TensorFlow and Keras, for the trail, captures, questions and saved tensors."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any


def name_of(variable: Any) -> str:
    """Return the name of a variable in its model."""
    return str(getattr(variable, "path", None) or variable.name)


def distinct_names(variables: Iterable[Any]) -> list[str]:
    """Return the names of variables in snapshots, without output numbers; repeated names get #2, #3, ..."""
    counts: dict[str, int] = {}
    result = []
    for variable in variables:
        name = name_of(variable)
        name = name[:-2] if name.endswith(":0") else name
        count = counts[name] = counts.get(name, 0) + 1
        result.append(f"{name}#{count}" if count > 1 else name)
    return result
