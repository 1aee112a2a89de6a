"""The recipe: with what a command must be recorded to be reproducible, as `reprokit reproduce` found it.

A recipe may come from somebody else. It names switches and patches of reprokit's and nothing else: no command, no
path, no variable. What it does not know it refuses, and nothing in it is executed.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import msgspec

from reprokit.core import toml_text
from reprokit.core.bounds import read_whole
from reprokit.core.errors import BadRecipe
from reprokit.core.printable import printable
from reprokit.model.plan import Plan
from reprokit.model.run import RecipeUsed
from reprokit.run_files import rundir

SCHEMA = 1
MAX_BYTES = 64 << 10
LONGEST_COMMENT = 4000
MAX_PATCHES = 64
MAX_WHY = 256  # ids of findings in all
PATCH = r"^[a-z0-9][a-z0-9-]{0,63}(=[\x21-\x7e]{1,200})?\Z"  # "id" or "id=value"

PatchText = Annotated[str, msgspec.Meta(pattern=PATCH)]
FindingIds = Annotated[list[Annotated[str, msgspec.Meta(max_length=400)]], msgspec.Meta(max_length=MAX_WHY)]
Patches = Annotated[tuple[PatchText, ...], msgspec.Meta(max_length=MAX_PATCHES)]


class RecipeSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The options of a recording, beside the command."""

    clock: bool = False
    keyed: bool = False
    include_crypto: bool = False
    hide_rdrand: bool = False
    patches: Patches = ()

    @property
    def switches(self) -> tuple[str, ...]:
        """Return the options of record that are set, without patches."""
        names = ("clock", "keyed", "include_crypto", "hide_rdrand")
        return tuple(f"--{name.replace('_', '-')}" for name in names if getattr(self, name))

    @property
    def words(self) -> tuple[str, ...]:
        """Return all settings as options of record."""
        return (*self.switches, *(f"--patch {patch}" for patch in self.patches))


def planned(plan: Plan, settings: RecipeSettings) -> Plan:
    """Return the plan with these settings."""
    return msgspec.structs.replace(
        plan,
        clock=settings.clock,
        keyed=settings.keyed,
        record_crypto=settings.include_crypto,
        hide_rdrand=settings.hide_rdrand,
        patches=settings.patches,
    )


class Recipe(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The contents of recipe.toml."""

    schema: int
    record: RecipeSettings = RecipeSettings()
    why: Annotated[dict[str, FindingIds], msgspec.Meta(max_length=128)] = {}  # option to findings that it cures


def read(path: Path) -> tuple[Recipe, RecipeUsed]:
    """Return the recipe in a file, and which file that was; raises BadRecipe with one line."""
    data = read_whole(path, MAX_BYTES, BadRecipe, "name the recipe.toml of a reproduction")
    try:
        recipe = loads(data.decode("utf-8"))
    except UnicodeDecodeError:
        raise BadRecipe(f"{path} is not UTF-8; is it a recipe?") from None
    except (msgspec.ValidationError, ValueError, RecursionError) as error:
        raise BadRecipe(f"{path}: {' '.join(str(error).split())}; 'reprokit reproduce' writes recipes") from None
    return recipe, RecipeUsed(path=str(path), digest="sha256:" + hashlib.sha256(data).hexdigest())


def loads(text: str) -> Recipe:
    """Return the recipe in a text; raises ValueError or msgspec.ValidationError where it is none."""
    content = toml_text.loads(text)
    version = content.get("schema")
    if type(version) is int and version != SCHEMA:
        newer = "; upgrade reprokit" if version > SCHEMA else ""
        raise ValueError(f"it has schema {version}, this reprokit reads {SCHEMA}{newer}")
    return msgspec.convert(content, Recipe)


def merged(recipe: Recipe, asked: RecipeSettings) -> RecipeSettings:
    """Return what the recipe and the command line ask for together; crypto only if the command line does so itself."""
    recorded_with = recipe.record
    if recorded_with.include_crypto and not asked.include_crypto:
        raise BadRecipe("the recipe records what can be secret keys; add --include-crypto if you want that")
    return RecipeSettings(
        clock=recorded_with.clock or asked.clock,
        keyed=recorded_with.keyed or asked.keyed,
        include_crypto=asked.include_crypto,
        hide_rdrand=recorded_with.hide_rdrand or asked.hide_rdrand,
        patches=tuple(dict.fromkeys((*recorded_with.patches, *asked.patches))),
    )


def write(path: Path, recipe: Recipe, comment: str) -> None:
    """Write a recipe, whole or not at all."""
    rundir.write_whole(path, dumps(recipe, comment).encode(), mode=0o666)


def dumps(recipe: Recipe, comment: str) -> str:
    """Return the recipe as TOML."""
    return "\n".join(_lines(recipe, comment)) + "\n"


def _lines(recipe: Recipe, comment: str) -> Iterator[str]:
    yield from (f"# {printable(line, LONGEST_COMMENT)}" for line in comment.splitlines())
    yield f"schema = {recipe.schema}"
    yield ""
    yield "[record]"
    for name in ("clock", "keyed", "include_crypto", "hide_rdrand"):
        yield f"{name} = {'true' if getattr(recipe.record, name) else 'false'}"
    yield f"patches = {_list(recipe.record.patches)}"
    if recipe.why:
        yield ""
        yield "[why]"
        yield from (f"{_quoted(option)} = {_list(findings)}" for option, findings in recipe.why.items())


def _list(values: tuple[str, ...] | list[str]) -> str:
    return f"[{', '.join(map(_quoted, values))}]"


def _quoted(text: str) -> str:
    """Return a basic string of TOML; JSON writes it for texts without control characters and lone surrogates."""
    return json.dumps(re.sub(r"[\x00-\x1f\x7f\ud800-\udfff]", "?", text), ensure_ascii=False)
