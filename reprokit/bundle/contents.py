"""What a bundle is: its parts, its list of contents, and the bounds that keep a hostile one small."""

from __future__ import annotations

import re
from typing import Annotated, Final

import msgspec

from reprokit.rundir import (
    ENTROPY,
    ENVIRONMENT,
    EVALUATION,
    FINDINGS,
    KEPT,
    METRICS,
    MODULES,
    OUTPUTS,
    READ,
    RUN,
    SYSTEM_CALLS,
    TRAIL,
    WRITTEN,
)

FORMAT: Final = 1
LIST: Final = "bundle.json"  # the first member
HOME: Final = "run/"  # before the names of all others

WHOLE = (OUTPUTS, FINDINGS, SYSTEM_CALLS)  # JSON files
PATHS = (READ, WRITTEN, MODULES)  # a path a line
DIRECTORIES = (KEPT, EVALUATION, TRAIL)  # files that are taken as they are
SECRET = (ENTROPY,)
JSON = (RUN, ENVIRONMENT, *WHOLE)

MAX_FILES = 1_000_000
MAX_SIZE = 1 << 40  # bytes of all files
MAX_LIST = 512 << 20  # bytes of bundle.json

_NAME = r"[A-Za-z0-9][A-Za-z0-9._-]{0,200}"
_ALLOWED = re.compile(
    "|".join(
        [
            *(re.escape(name) for name in (*JSON, METRICS, *PATHS)),
            *(f"{re.escape(directory)}/{_NAME}" for directory in (*DIRECTORIES, *SECRET)),
        ]
    )
)

Digest = Annotated[str, msgspec.Meta(pattern="^sha256:[0-9a-f]{64}$")]
Size = Annotated[int, msgspec.Meta(ge=0, le=MAX_SIZE)]


class Packed(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A file of the bundle."""

    size: Size
    digest: Digest


class Contents(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """bundle.json"""

    format: int = FORMAT
    reprokit: str  # the version that packed it
    run_id: str
    entropy: bool  # whether the random profile is in it
    normalised: bool  # whether paths and names were replaced
    original: Digest  # of run.json as it was
    left_out: list[str]  # what is not in it, and why
    files: dict[str, Packed]


def is_allowed(name: str) -> bool:
    """Whether a run directory can hold a file of this name."""
    return _ALLOWED.fullmatch(name) is not None
