"""Lines of losses, written by compiled code where they wait: each step of a training pays for one."""

from __future__ import annotations

from .. import trail_library
from .json_text import to_json
from .native_module import load

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    # The bytes that a line needs at most, and its parts.
    LossNames = tuple[int, bytes, bytes]

NUMBERS = 200  # bytes of a line beside its names


class LossLines:
    """Writes the lines of one process."""

    formats = trail_library.FORMATS

    def __init__(self, run: str) -> None:
        module = load(trail_library.path_of(run))
        self.write: Any = None if module is None else module.loss_line
        self.names: dict[str, LossNames] = {}

    def prepare(self, identity: str, name: str) -> LossNames:
        """What lines of a name need: more than there can be, where nothing compiled writes any."""
        head = f'{{"k":"loss","p":{identity},"n":'.encode()
        rest = f',"name":{to_json(name)},"step":'.encode()
        room = 1 << 62 if self.write is None else len(head) + len(rest) + NUMBERS
        known = self.names[name] = room, head, rest
        return known
