"""Declares the parts of a bundle, its list of contents, and the bounds that limit a hostile one."""

from __future__ import annotations

import re
from typing import Annotated, Final

import msgspec

from reprokit.model.run import Digest
from reprokit.run_files import rundir
from reprokit.run_files import unflushed as pending_lines

FORMAT: Final = 1
LIST: Final = "bundle.json"  # the first member
HOME: Final = "run/"  # prefix of the names of all other members

WHOLE = (rundir.FINDINGS, rundir.RESUMPTION, rundir.DIVERGENCE, rundir.SYSTEM_CALLS)  # JSON files
TEXTS = (rundir.READ, rundir.WRITTEN, rundir.MODULES, rundir.STOPPED)  # one path per line, or a sentence
DIRECTORIES = (rundir.KEPT, rundir.EVALUATION, rundir.TRAIL, rundir.SAMPLES)  # files that are packed unchanged
FRESH = f"{rundir.ENTROPY}/fresh"  # its size is the number of missed requests; it holds no random bytes
HEADER, TENSORS = "snapshot.json", "tensors.safetensors"  # files of a snapshot
JSON = (rundir.RUN, rundir.ENVIRONMENT, rundir.OUTPUTS, *WHOLE)

# Needed only while the run goes on, or summarized by packed files: pending in metrics.jsonl, profile in findings.json,
# signals and killed in run.json, objects and pipes in environment.json, what single processes read in read.paths. Also
# tensors and keyframes, which are large and may reveal the data: a replay of a bundle with entropy can save them again;
# and files of the user that were there before the run.
NEVER = (
    rundir.AGENT_PLAN,
    rundir.SHIM_PLAN,
    rundir.OPTIONS,
    rundir.SEEDS,
    rundir.OBJECTS,
    rundir.PIPES,
    rundir.ORDERS,
    rundir.TURNS,
    rundir.RESERVE,
    rundir.SIGNALS,
    rundir.KILLED,
    rundir.READ_BY,
    rundir.FOUND_LIST,
    rundir.FOUND,
    f"{rundir.ENTROPY}/process-ids",
    f"{rundir.ENTROPY}/{rundir.OVER}",
    pending_lines.DIRECTORY,
    rundir.PROFILE,
    rundir.ANSWERS,
    rundir.TENSORS,
    rundir.KEYFRAMES,
)

MAX_FILES = 100_000
MAX_SIZE = 1 << 40  # bytes of all files together
MAX_LIST = 64 << 20  # bytes of bundle.json

_NAME = r"[A-Za-z0-9][A-Za-z0-9._-]{0,200}"
_ENTROPY = rf"{rundir.ENTROPY}/[A-Za-z0-9][A-Za-z0-9_-]{{0,200}}\.entropy"
_SNAPSHOT = rf"{rundir.SNAPSHOTS}/{_NAME}/(?:{re.escape(HEADER)}|{re.escape(TENSORS)})"
_ALLOWED = re.compile(
    "|".join(
        [
            *(re.escape(name) for name in (*JSON, rundir.METRICS, *TEXTS, FRESH, rundir.VARIABLE_KEY)),
            *(f"{re.escape(directory)}/{_NAME}" for directory in DIRECTORIES),
            _ENTROPY,
            rf"{rundir.NUMBERS}/[A-Za-z0-9][A-Za-z0-9-]{{0,200}}\.numbers",
            rf"{rundir.CONSOLE}/[A-Za-z0-9][A-Za-z0-9-]{{0,200}}\.console",
            _SNAPSHOT,
        ]
    )
)

Size = Annotated[int, msgspec.Meta(ge=0, le=MAX_SIZE)]


class PackedFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A file of the bundle."""

    size: Size
    digest: Digest


class BundleContents(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """bundle.json"""

    format: int = FORMAT
    reprokit: str  # version of reprokit that packed it
    run_id: str
    entropy: bool  # whether it contains the random profile
    normalized: bool  # whether paths and names were replaced
    snapshots: bool = False  # whether it contains captured states, which include training data
    original: Digest  # digest of the original run.json
    left_out: list[str]  # sentences on what is omitted, and why
    files: dict[str, PackedFile]


def is_allowed(name: str) -> bool:
    """Return whether a run directory can hold a file of this name."""
    return _ALLOWED.fullmatch(name) is not None
