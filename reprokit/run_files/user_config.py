"""The user's own configuration: [tool.reprokit] of pyproject.toml, or reprokit.toml.

It is looked for in the working directory of the command, then upward to the root of its git repository; the nearest
directory with either file counts, and of both reprokit.toml. What lies in a run directory never counts: that may come
from somebody else.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec

from reprokit.core import toml_text
from reprokit.core.bounds import read_whole
from reprokit.core.errors import BadConfig, reason
from reprokit.run_files import rundir

FILE: Final = "reprokit.toml"
PROJECT: Final = "pyproject.toml"
MAX_BYTES: Final = 1 << 20
REPOSITORY: Final = ".git"  # a directory, or a file in a worktree

Texts = Annotated[tuple[Annotated[str, msgspec.Meta(max_length=4096)], ...], msgspec.Meta(max_length=1000)]


class UserConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the configuration may hold."""

    ignore: Texts = ()  # differences in outputs that do not count, as verify --ignore
    ignore_console: Texts = ()  # text in printed lines that does not count, as verify --ignore-console


class _OwnFile(UserConfig, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """reprokit.toml, which also lists the trainings of a gate."""

    training: Any = None  # read by the gate alone


class LocatedConfig(msgspec.Struct, frozen=True):
    """A configuration, and its file."""

    config: UserConfig
    path: Path


def read(path: Path) -> LocatedConfig:
    """Return the configuration in a file of reprokit's own; raises BadConfig with one line."""
    return LocatedConfig(toml_text.read(path, _OwnFile, MAX_BYTES, BadConfig), path)


def find(directory: Path) -> LocatedConfig | None:
    """Return the configuration that counts in a directory; None if there is none. Raises BadConfig with one line."""
    for place in _places(directory):
        if (place / FILE).is_file():
            return read(place / FILE)
        if (place / PROJECT).is_file() and (config := _of_project(place / PROJECT)) is not None:
            return LocatedConfig(config, place / PROJECT)
    return None


def _places(directory: Path) -> Iterator[Path]:
    """Yield the directories to look in, the nearest first."""
    above = [directory, *directory.parents]
    root = next((number for number, place in enumerate(above) if (place / REPOSITORY).exists()), 0)
    is_run = [(place / rundir.RUN).exists() for place in above]
    yield from (place for number, place in enumerate(above[: root + 1]) if not any(is_run[number:]))


def _of_project(path: Path) -> UserConfig | None:
    data = read_whole(path, MAX_BYTES, BadConfig)
    try:
        content = toml_text.loads(data.decode())
    except (ValueError, RecursionError) as refused:
        raise BadConfig(f"{path}: {reason(refused)}") from None
    tools = content.get("tool")
    table = tools.get("reprokit") if isinstance(tools, dict) else None
    try:
        return None if table is None else msgspec.convert(table, UserConfig)
    except msgspec.ValidationError as refused:
        raise BadConfig(f"{path}: [tool.reprokit]: {reason(refused)}") from None
