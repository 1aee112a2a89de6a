"""The contract with PyTorch: which private names the agent uses, and that this release has them."""

from __future__ import annotations

import ast
import json
import re
import sys
from functools import cache
from pathlib import Path

import pytest

import reprokit
from tests.interpreters import lacking

AGENT = Path(reprokit.__path__[0]) / "agent"


def seen(framework: str) -> dict[str, str]:
    """The versions in which each private name of a framework was seen, by its dotted path."""
    names: dict[str, str] = json.loads((AGENT / framework / "private_api.json").read_text(encoding="utf-8"))
    return names


SEEN = seen("pytorch")
NEWEST = [path for path, versions in SEEN.items() if not versions.startswith("until")]
TORCH_LIKE = {name for path in SEEN for name in path.replace("()", "").split(".") if name.startswith("_")} - {"_C"}


@cache
def names_in(path: Path) -> set[str]:
    """The attributes that begin with an underscore, also those that getattr and hasattr ask for."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Attribute):
            names.add(node.attr)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("getattr", "hasattr"):
            names.update(str(part.value) for part in node.args[1:2] if isinstance(part, ast.Constant))
    return {name for name in names if re.match("_[^_]", name)}


def modules() -> list[Path]:
    return sorted(AGENT.rglob("*.py"))


@pytest.mark.slow
@pytest.mark.torch
def test_this_release_has_every_private_name_that_is_used() -> None:
    assert lacking(sys.executable, NEWEST) == set()


def test_each_name_says_in_which_versions_it_was_seen() -> None:
    assert [path for path, versions in SEEN.items() if not re.fullmatch(r"(until )?\d+\.\d+", versions)] == []


def test_only_the_folder_of_pytorch_uses_its_private_names() -> None:
    wrong = [
        f"{path.relative_to(AGENT)}: {name}"
        for path in modules()
        if path.name != "private_api.py"
        for name in sorted(names_in(path) & of_torch(path))
    ]
    assert wrong == []


def of_torch(path: Path) -> set[str]:
    """Names that mean PyTorch's in this module: those of others' are what the module itself defines."""
    text = path.read_text(encoding="utf-8")
    defined = set(re.findall(r"(?:self|cls)\.(_\w+)\b(?: *:[^=\n]+)? *=|def (_\w+)", text))
    own = {name for pair in defined for name in pair}
    return TORCH_LIKE - own


@pytest.mark.torch
def test_names_of_torch_c_that_are_used_anywhere_are_listed() -> None:
    import torch

    used = re.compile(r"(?:torch|module|_torch)\._C\.(\w+)(?!\.)|getattr\((?:self\.)?_?torch\._C, \"(\w+)\"")
    listed = {part for path in SEEN for part in path.split(".")}
    texts = {path.name: path.read_text(encoding="utf-8") for path in modules() if path.stem != "call_graph"}
    names = {(file, name) for file, text in texts.items() for pair in used.findall(text) for name in pair if name}
    assert sorted((file, name) for file, name in names if name not in listed and hasattr(torch._C, name)) == []
