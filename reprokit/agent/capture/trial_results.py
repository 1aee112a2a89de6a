"""What a process that does a captured step again tells the launcher: one result, and a line for each trial."""

from __future__ import annotations

import json
import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from typing import Any

FORMAT = 1


def write_result(path: str, mode: str, result: Mapping[str, Any]) -> None:
    """Write the result whole or not at all."""
    partial = f"{path}.{os.getpid()}"
    text = json.dumps({"format": FORMAT, "mode": mode, **_plain(result)}, allow_nan=False)
    with os.fdopen(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600), "w") as file:
        file.write(text + "\n")
    os.rename(partial, path)


def add_progress(path: str | None, line: Mapping[str, Any]) -> None:
    """Add a line; the launcher shows those that have a text."""
    if path is not None:
        data = json.dumps(_plain(line), allow_nan=False).encode() + b"\n"
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            os.write(descriptor, data)
        finally:
            os.close(descriptor)


def outcomes(lines: Iterable[Any]) -> list[tuple[tuple[int, ...], bool]]:
    """The trials that earlier processes made; one that ended its process did not reproduce anything."""
    known: dict[tuple[int, ...], bool] = {}
    for line in lines:
        if isinstance(line, dict) and isinstance(line.get("running"), list):
            known.setdefault(tuple(line["running"]), False)
        elif isinstance(line, dict) and isinstance(line.get("samples"), list):
            known[tuple(line["samples"])] = bool(line.get("reproduced"))
        elif isinstance(line, dict) and isinstance(line.get("retry"), list):
            known.pop(tuple(line["retry"]), None)
    return list(known.items())


def fills(lines: Iterable[Any]) -> bool:
    """Whether the script cannot work with smaller batches, so that samples stand for those that are left out."""
    return any(isinstance(line, dict) and line.get("filled") is True for line in lines)


def own_snapshot(path: str, rank: str | None) -> str:
    """The snapshot of this process's own rank, where it lies beside the one that was named."""
    directory, _, name = path.rstrip("/").rpartition("/")
    step, mark, named = name.partition("-rank")
    if not mark or rank is None or not rank.isdecimal() or named.partition("-")[0] == rank:
        return path
    beside = f"{directory}/{step}-rank{rank}"
    return beside if os.path.isdir(beside) else path


def _plain(value: Any) -> Any:
    """What JSON knows; of numbers that are not finite their names."""
    if isinstance(value, dict):
        return {str(key): _plain(value[key]) for key in value}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, float) and value - value != 0:
        return str(value)
    return value
