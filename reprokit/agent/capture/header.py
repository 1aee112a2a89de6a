"""What snapshot.json says of a captured step, typed and declared once: for who writes it and for who reads it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from .trigger import READERS, Trigger, list_of, typed

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

    Entry = dict[str, Any]

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
