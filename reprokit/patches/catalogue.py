"""All patches there are, each a thing that makes a training repeat: those of catalogue.toml."""

from __future__ import annotations

import difflib
import enum
from collections.abc import Mapping
from pathlib import Path

import msgspec

from reprokit.core import toml_text
from reprokit.core.errors import UnknownPatch


class Takes(enum.Enum):
    """Whether an id is followed by =VALUE."""

    NOTHING = "nothing"
    MAYBE = "maybe"
    A_VALUE = "a value"


class Patch(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One patch. What is done in the process is a function of that name in reprokit/agent/patches."""

    id: str
    title: str  # what it does, in a few words
    framework: str = ""  # the module that must be imported for it to matter; "": any program
    versions: str = ""  # of the framework, as PEP 440 has it: ">=2.1,<2.8"; "": all that are known
    variables: Mapping[str, str] = {}  # set before the start; {value} stands for the value
    flags: Mapping[str, str] = {}  # likewise, but added behind what the user has in them
    agent: bool = False  # something is done in the process too
    takes: Takes = Takes.NOTHING
    value: str = ""  # what the value is, in a word: N, NAME
    pattern: str = ""  # which values there are, as a regular expression
    example: str = ""  # what the value is, in words: "a number of threads, as in threads=1"
    default: str = ""  # the value where none is given
    repeatable: bool = False  # may be given several times, with different values
    conflicts: tuple[str, ...] = ()  # ids that it cannot be together with
    needs: Mapping[str, str] = {}  # distributions, any of which must be installed, and their versions
    remedy: str = ""  # what to do where none is
    not_with: Mapping[str, str] = {}  # modules beside which it must not be set, and their versions
    warning: str = ""  # said before the start: it changes numbers, or may raise
    cost: str = ""  # in words; with figures where it was measured
    measured: bool = False  # whether the cost is a measured one
    automatic: bool = False  # part of --patch auto: no warning, and a small, known cost
    accelerated: bool = False  # it matters to what is computed on a GPU only
    beside: tuple[str, ...] = ()  # auto takes it only where one of these modules is installed
    undo: str = "it ends with the process"  # how it is taken back


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
