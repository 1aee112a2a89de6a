"""Reads TOML by the standard library's reader; in CPython 3.10 by the package that it comes from."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TypeVar

import msgspec

from reprokit.core.bounds import read_whole
from reprokit.core.errors import ReprokitError, reason

if sys.version_info >= (3, 11):
    from tomllib import TOMLDecodeError, loads
else:
    from tomli import TOMLDecodeError, loads

__all__ = ["TOMLDecodeError", "loads", "read"]
T = TypeVar("T")


def read(path: Path, kind: type[T], limit: int, error: type[ReprokitError], advice: str = "") -> T:
    """Return what a file of the user's holds, as what it must be; raises `error` with one line."""
    data = read_whole(path, limit, error, advice)
    try:
        return msgspec.convert(loads(data.decode()), kind)
    except (msgspec.ValidationError, ValueError, RecursionError) as refused:
        raise error(f"{path}: {reason(refused)}") from None
