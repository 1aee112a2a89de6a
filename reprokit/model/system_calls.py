"""profile/system-calls.json: requests for entropy that strace saw."""

from __future__ import annotations

from typing import Annotated

import msgspec

from reprokit.model.run import FORMAT


class SystemCall(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A request to the kernel by one process, as strace saw it."""

    call: str
    source: str  # the file that was opened, or "getrandom"
    program: str = ""  # path of what the process had executed
    pid: Annotated[int, msgspec.Meta(ge=0)] = 0
    calls: Annotated[int, msgspec.Meta(ge=0)] = 0


class SystemCallsFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """profile/system-calls.json"""

    format: int = FORMAT
    calls: list[SystemCall] = msgspec.field(default_factory=list)
    left_out: int = 0  # of more callers than are told apart
    problem: str = ""
