"""All patches there are: those of catalogue.toml."""

from __future__ import annotations

import difflib
from pathlib import Path

import msgspec

from reprokit.core import toml_text
from reprokit.core.errors import UnknownPatch
from reprokit.patches.patch import Patch


class _CatalogueFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """catalogue.toml"""

    patch: tuple[Patch, ...]


_TEXT = Path(__file__).with_suffix(".toml").read_text(encoding="utf-8")
CATALOGUE: tuple[Patch, ...] = msgspec.convert(toml_text.loads(_TEXT), _CatalogueFile).patch
_BY_ID = {patch.id: patch for patch in CATALOGUE}


def find(name: str) -> Patch:
    """Return the patch of this id."""
    if name in _BY_ID:
        return _BY_ID[name]
    near = difflib.get_close_matches(name, _BY_ID, n=3, cutoff=0.5)
    advice = f"did you mean {' or '.join(near)}?" if near else f"there are {', '.join(_BY_ID)}"
    raise UnknownPatch(f"there is no patch {name[:100]!r}; {advice}")
