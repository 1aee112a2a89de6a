"""Decides which environment variables a run keeps and its replay sets again: an allow-list, never secrets.

docs/commands/replay.md shows the list to users.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from reprokit.core.errors import ReprokitError
from reprokit.run_files import rundir
from reprokit.run_files.rundir import RunDirectory

_LISTED = Path(__file__).with_name("kept_variables.txt").read_text(encoding="ascii")
KEPT_NAMES = frozenset(re.findall(r"^(\w+)$", _LISTED, re.MULTILINE))
KEPT_PREFIXES = tuple(re.findall(r"^(\w+)\*$", _LISTED, re.MULTILINE))
OF_ONE_JOB = tuple(re.findall(r"^!(\w+)\*$", _LISTED, re.MULTILINE))

KEY_SIZE = 32  # bytes
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_SECRET_NAME = re.compile(
    r"TOKEN(?!IZERS_)|KEY|SECRET|PASSW|PASSPHRASE|CREDENTIAL|AUTH|COOKIE|PRIVATE|SIGNATURE|LICEN[CS]E"
)
_SECRET_VALUE = re.compile(r"://[^/\s]*@")  # a URL with a user in it


def is_secret(name: str, value: str) -> bool:
    """Return whether a variable may hold a secret, by its name or value."""
    return bool(_SECRET_NAME.search(name.upper()) or _SECRET_VALUE.search(value))


def is_kept(name: str, value: str) -> bool:
    """Return whether this variable can change a training's results and may be stored."""
    listed = name in KEPT_NAMES or (name.startswith(KEPT_PREFIXES) and not name.startswith(OF_ONE_JOB))
    return listed and _NAME.fullmatch(name) is not None and not is_secret(name, value)


def kept(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the part of an environment that a run keeps."""
    return {name: value for name, value in sorted(environment.items()) if is_kept(name, value)}


def given_again(environment: Mapping[str, str], recorded: Mapping[str, str]) -> dict[str, str]:
    """Return the environment with its kept variables as they were in the recording.

    Recorded variables pass the allow-list again, as a run directory may be untrusted.
    """
    rest = {name: value for name, value in environment.items() if not is_kept(name, value)}
    allowed = {name: value for name, value in recorded.items() if "\0" not in value and is_kept(name, value)}
    return {**rest, **allowed}


def write_key(path: Path, recording: Path | None) -> None:
    """Write the key for digests of values that scripts read; a replay copies its recording's, to compare digests."""
    key = b""
    if recording is not None:
        with suppress(ReprokitError):
            key = RunDirectory(recording).read(rundir.VARIABLE_KEY, KEY_SIZE)
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(key if len(key) == KEY_SIZE else os.urandom(KEY_SIZE))
