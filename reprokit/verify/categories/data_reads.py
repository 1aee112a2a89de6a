"""Words for the data that a run read: files, objects of stores, pipes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from reprokit.core.difference import Difference, Verdict

Facts = dict[str, Any]


def pipe_words(left: Facts, right: Facts) -> str:
    """Return from which MiB on a pipe differs; the last pieces may differ because one run read less."""
    pieces = [entry["pieces"] if isinstance(entry.get("pieces"), list) else [] for entry in (left, right)]
    pairs = list(zip(*pieces, strict=False))
    first_different = next(
        (number for number, (left_piece, right_piece) in enumerate(pairs) if left_piece != right_piece), len(pairs)
    )
    if left.get("size") != right.get("size") and first_different >= len(pairs) - 1:
        return f"the pipe gave other bytes, or one run read less of it, from MiB {first_different} on"
    return f"the pipe gave other bytes from MiB {first_different} on"


def described(entry: Facts | None) -> str:
    """Return what is known of the bytes that were read."""
    if entry is None:
        return ""
    digest = str(entry.get("digest") or entry.get("note") or "not read")
    number_of_files = f"{entry['files']} files, " if entry.get("files") else ""
    version = f", version {entry['version']}" if entry.get("version") else ""
    return f"{number_of_files}{entry.get('size')} bytes {digest}{version}"


def unknown_data(tree: Difference) -> Iterator[str]:
    """Yield data whose bytes were not compared and that may be a cause."""
    found = [leaf for leaf in tree.leaves() if leaf.verdict is Verdict.NOT_RECORDED and leaf.name.startswith("data.")]
    if found:
        yield f"a cause may be in data that was read: of {len(found)}, first {found[0].name[5:]}, {found[0].detail}"
