"""All patches there are."""

from __future__ import annotations

import difflib

from reprokit.errors import UnknownPatch
from reprokit.patches import general, pytorch, tensorflow
from reprokit.patches.patch import Patch

CATALOGUE: tuple[Patch, ...] = (*pytorch.PATCHES, *tensorflow.PATCHES, *general.PATCHES)
_BY_ID = {patch.id: patch for patch in CATALOGUE}


def find(name: str) -> Patch:
    """Return the patch of this id."""
    if name in _BY_ID:
        return _BY_ID[name]
    near = difflib.get_close_matches(name, _BY_ID, n=3, cutoff=0.5)
    advice = f"did you mean {' or '.join(near)}?" if near else f"there are {', '.join(_BY_ID)}"
    raise UnknownPatch(f"there is no patch {name[:100]!r}; {advice}")
