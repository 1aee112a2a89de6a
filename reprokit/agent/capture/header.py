"""The header of a snapshot (snapshot.json), typed and declared once, for writers and readers.

A Trigger says why the step was captured; it is passed unchanged from the check that raised it to the screen.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

    Entry = dict[str, Any]

GRADIENT, PARAMETER, ACTIVATION, LOSS, CONDITION = "gradient", "parameter", "activation", "loss", "condition"
KINDS = (GRADIENT, PARAMETER, ACTIVATION, LOSS, CONDITION)
MAX_TEXT = 300


@dataclass(frozen=True)
class Trigger:
    """Why a step was captured. Unknown fields are None or empty."""

    kind: str = ""  # one of KINDS
    what: str = ""  # a text for people
    condition: str = ""  # of kind CONDITION: LOSS_ABOVE or another of settings.py
    name: str = ""  # of the parameter, module or layer
    count: int | None = None  # of elements that are not finite
    of: int | None = None  # number of all elements
    limit: float | None = None  # of a condition; the value is beyond it
    value: float | None = None
    rank: int | None = None  # that reported it, for OTHER_RANK
    place: int | None = None  # in TensorFlow: number of the step's layer call; in JAX: of its output
    updates: int | None = None  # of kind PARAMETER: since the saved state, if there may have been several
    was_before: bool | None = None  # of kind PARAMETER: in the saved state itself, as there is no earlier one
    evaluation: int | None = None  # number of the closure's evaluation in the step
    began_here: bool | None = None  # with several ranks: whether the problem began on this one
    where: tuple[Any, ...] = field(default=(), compare=False)  # places in the user's code, the innermost first
    optimizers: tuple[str, ...] = ()  # first the one that was to update

    def with_(self, **changes: Any) -> Trigger:
        """Return a copy with other values for some fields."""
        return replace(self, **changes)

    def line(self) -> dict[str, Any]:
        """Return the known fields as a JSON object; floats as hexadecimal texts."""
        values = {name: value for name, value in vars(self).items() if value is not None and value not in ("", ())}
        return {name: value.hex() if isinstance(value, float) else value for name, value in values.items()}

    @classmethod
    def read(cls, content: Any) -> Trigger:
        """Read untrusted JSON; a field of a wrong type counts as missing."""
        return cls(**typed(cls, content))


def _number(value: Any) -> int | None:
    return value if type(value) is int and value >= 0 else None


def _float(value: Any) -> float | None:
    """Return a float from a number or its text; None for anything else."""
    try:
        if isinstance(value, str):
            return float.fromhex(value) if "0x" in value else float(value)
        return float(value) if type(value) in (int, float) else None
    except (ValueError, OverflowError):
        return None


def list_of(kind: type) -> Callable[[Any], tuple[Any, ...]]:
    """Return a reader that makes a tuple of the items of this type in a list."""
    return lambda value: tuple([item for item in value if isinstance(item, kind)]) if isinstance(value, list) else ()


READERS: dict[str, Callable[[Any], Any]] = {
    "str": lambda value: value[:MAX_TEXT] if isinstance(value, str) else "",
    "int": lambda value: _number(value) or 0,
    "int | None": _number,
    "float | None": _float,
    "bool": lambda value: value is True,
    "bool | None": lambda value: value if type(value) is bool else None,
    "tuple[Any, ...]": list_of(object),
    "tuple[str, ...]": list_of(str),
}


def typed(kind: Any, content: Any, readers: Mapping[str, Callable[[Any], Any]] = READERS) -> dict[str, Any]:
    """Return the fields of a dataclass from untrusted JSON; a field of a wrong type counts as missing."""
    values = content if isinstance(content, dict) else {}
    return {each.name: readers[str(each.type)](values.get(each.name)) for each in fields(kind)}


def in_words(trigger: Trigger) -> str:
    """Return a phrase that describes a trigger."""
    if trigger.kind == GRADIENT:
        words = f"gradient of {trigger.name or 'a parameter'} is not finite{_counted(trigger)}"
    elif trigger.kind == PARAMETER and trigger.was_before:
        words = f"{trigger.name or 'a parameter'} was not finite before the step{_counted(trigger)}"
        words += "; no earlier state is held"
    elif trigger.kind == PARAMETER:
        words = f"{trigger.name or 'a parameter'} is not finite after the update{_counted(trigger)}{_since(trigger)}"
    elif trigger.kind == ACTIVATION:
        words = f"output of {trigger.name or 'a module'} is not finite{_counted(trigger)}"
    elif trigger.kind == LOSS:
        words = f"the loss is {trigger.what or 'not finite'}"
    else:
        words = trigger.what or trigger.kind or "nobody knows why"
    return words[:MAX_TEXT]


def _since(trigger: Trigger) -> str:
    updates = trigger.updates
    return "" if updates is None else f", or after one of the {updates:,} updates since this state"


def _counted(trigger: Trigger) -> str:
    is_known = trigger.count is not None and trigger.of is not None
    return f" ({trigger.count:,} of {trigger.of:,} elements)" if is_known else ""


_NO_TRIGGER = Trigger()
_OPTIONAL = ("versions", "rank", "world", "given_up", "loops", "random_after_update", "sharded")  # omitted if empty


@dataclass(frozen=True)
class SnapshotHeader:
    """The facts of a captured step; tensors stand as their names in the file."""

    framework: str = ""  # pytorch, tensorflow, keras or jax
    versions: Mapping[str, Any] = field(default_factory=dict)
    step: int = 0  # number of the optimizer's steps before
    epoch: int | None = None
    steps_in_epoch: int | None = None
    rank: int | None = None
    world: int | None = None  # how many ranks
    trigger: Trigger = _NO_TRIGGER
    also: tuple[Trigger, ...] = ()
    models: tuple[Entry, ...] = ()
    parameters: Mapping[str, Any] = field(default_factory=dict)  # that are in no model
    optimizers: tuple[Entry, ...] = ()
    scalers: tuple[Entry, ...] = ()
    schedules: tuple[Entry, ...] = ()
    batches: tuple[Entry, ...] = ()
    loops: Mapping[str, Any] = field(default_factory=dict)  # variables of for loops, by functions
    losses: tuple[Any, ...] = ()  # the last ones, as hexadecimal texts
    loss: Mapping[str, Any] | None = None  # value and digest
    random: Mapping[str, Any] = field(default_factory=dict)
    random_after_update: Mapping[str, Any] = field(default_factory=dict)
    gradients: Mapping[str, Any] = field(default_factory=dict)  # that are not finite
    gradient_digests: Mapping[str, Any] = field(default_factory=dict)
    given_up: tuple[str, ...] = ()  # gradients that were overwritten to inform all ranks
    sharded: bool = False  # tensors are one rank's shards
    precision: Mapping[str, Any] = field(default_factory=dict)
    environment: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()  # what could not be saved

    def with_(self, **changes: Any) -> SnapshotHeader:
        """Return a copy with other values for some fields."""
        return replace(self, **changes)

    def line(self) -> dict[str, Any]:
        """Return the header as snapshot.json holds it."""
        return {
            name: _as_json(value) for name, value in vars(self).items() if name not in _OPTIONAL or _is_known(value)
        }

    @classmethod
    def read(cls, content: Any) -> SnapshotHeader:
        """Read untrusted JSON; a field of a wrong type counts as missing."""
        return cls(**typed(cls, content, _READERS))


def _is_known(value: Any) -> bool:
    return not (value is None or value is False or value == () or value == {})


def _as_json(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_as_json(item) for item in value]
    return value.line() if isinstance(value, Trigger) else value


_READERS: dict[str, Callable[[Any], Any]] = {
    **READERS,
    "Trigger": Trigger.read,
    "tuple[Trigger, ...]": lambda value: tuple(map(Trigger.read, list_of(dict)(value))),
    "tuple[Entry, ...]": list_of(dict),
    "Mapping[str, Any]": lambda value: value if isinstance(value, dict) else {},
    "Mapping[str, Any] | None": lambda value: value if isinstance(value, dict) else None,
}
