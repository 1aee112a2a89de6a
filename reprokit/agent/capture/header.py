"""What snapshot.json says of a captured step, typed and declared once: for who writes it and for who reads it.

A Trigger says why the step was captured, from the check that saw it to the screen.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace

from .settings import CONDITIONS

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
    """What was not as it should be. What is not known of it is None or empty."""

    kind: str = ""  # one of KINDS
    what: str = ""  # for people
    condition: str = ""  # one of CONDITIONS, of kind CONDITION
    name: str = ""  # of the parameter, module or layer
    count: int | None = None  # of elements that are not finite
    of: int | None = None  # how many
    limit: float | None = None  # of a condition, beyond which the value is
    value: float | None = None
    rank: int | None = None  # where it was seen, of OTHER_RANK
    place: int | None = None  # of TensorFlow: which of the step's layer calls
    updates: int | None = None  # of kind PARAMETER: since the state that is kept, where there may have been several
    was_before: bool | None = None  # of kind PARAMETER: in the state itself, as none from before is held
    evaluation: int | None = None  # of a closure
    began_here: bool | None = None  # of several ranks: whether it went wrong on this one
    where: tuple[Any, ...] = field(default=(), compare=False)  # places in the user's code, the innermost first
    optimizers: tuple[str, ...] = ()  # first the one that was to update

    def with_(self, **changes: Any) -> Trigger:
        """Return the same with other fields."""
        return replace(self, **changes)

    def line(self) -> dict[str, Any]:
        """Return the fields that are known, as JSON holds them."""
        known = {name: value for name, value in vars(self).items() if value is not None and value not in ("", ())}
        return {name: value.hex() if isinstance(value, float) else value for name, value in known.items()}

    @classmethod
    def read(cls, content: Any) -> Trigger:
        """Return what JSON of unknown origin says; a field of another type is as one that is not there."""
        return cls(**typed(cls, content))

    @property
    def is_of_known_condition(self) -> bool:
        """Whether it is of no condition, or says which one held."""
        return self.kind != CONDITION or self.condition in CONDITIONS


def _number(value: Any) -> int | None:
    return value if type(value) is int and value >= 0 else None


def _float(value: Any) -> float | None:
    """Return a number, which may be the text of one."""
    try:
        if isinstance(value, str):
            return float.fromhex(value) if "0x" in value else float(value)
        return float(value) if type(value) in (int, float) else None
    except (ValueError, OverflowError):
        return None


def list_of(kind: type) -> Callable[[Any], tuple[Any, ...]]:
    """Read a list of values of this type."""
    return lambda value: tuple([one for one in value if isinstance(one, kind)]) if isinstance(value, list) else ()


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
    """Return what JSON of unknown origin says of a dataclass; a field of another type is as one that is not there."""
    known = content if isinstance(content, dict) else {}
    return {each.name: readers[str(each.type)](known.get(each.name)) for each in fields(kind)}


def in_words(trigger: Trigger) -> str:
    """Return the trigger in one phrase."""
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
_IF_KNOWN = ("versions", "rank", "world", "given_up", "loops", "random_after_update", "sharded")  # else not written


@dataclass(frozen=True)
class SnapshotHeader:
    """The facts of a captured step; of tensors the names that they have in the file."""

    framework: str = ""  # pytorch, tensorflow or keras
    versions: Mapping[str, Any] = field(default_factory=dict)
    step: int = 0  # steps that the optimizer had made before
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
    losses: tuple[Any, ...] = ()  # the last, as hexadecimal texts
    loss: Mapping[str, Any] | None = None  # value and digest
    random: Mapping[str, Any] = field(default_factory=dict)
    random_after_update: Mapping[str, Any] = field(default_factory=dict)
    gradients: Mapping[str, Any] = field(default_factory=dict)  # that are not finite
    gradient_digests: Mapping[str, Any] = field(default_factory=dict)
    given_up: tuple[str, ...] = ()  # gradients that were used to tell all ranks
    sharded: bool = False  # tensors are one rank's shards
    precision: Mapping[str, Any] = field(default_factory=dict)
    environment: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()  # what could not be kept

    def with_(self, **changes: Any) -> SnapshotHeader:
        """Return the same with other fields."""
        return replace(self, **changes)

    def line(self) -> dict[str, Any]:
        """Return what snapshot.json is to hold."""
        return {
            name: _as_json(value) for name, value in vars(self).items() if name not in _IF_KNOWN or _is_known(value)
        }

    @classmethod
    def read(cls, content: Any) -> SnapshotHeader:
        """Return what JSON of unknown origin says; a field of another type is as one that is not there."""
        return cls(**typed(cls, content, _READERS))


def _is_known(value: Any) -> bool:
    return not (value is None or value is False or value == () or value == {})


def _as_json(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_as_json(one) for one in value]
    return value.line() if isinstance(value, Trigger) else value


_READERS: dict[str, Callable[[Any], Any]] = {
    **READERS,
    "Trigger": Trigger.read,
    "tuple[Trigger, ...]": lambda value: tuple(map(Trigger.read, list_of(dict)(value))),
    "tuple[Entry, ...]": list_of(dict),
    "Mapping[str, Any]": lambda value: value if isinstance(value, dict) else {},
    "Mapping[str, Any] | None": lambda value: value if isinstance(value, dict) else None,
}
