"""Operators' events and their listeners: no listener knows a framework, and nothing imports in a circle."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import reprokit.agent

AGENT = Path(reprokit.agent.__file__).parent
FRAMEWORKS = {"pytorch", "tensorflow", "jax"}
LISTENERS = ("confirm", "explain", "log", "profile")
MAKERS = {"pytorch": ("operators", "compiled_graphs"), "tensorflow": ("operators", "followed_functions")}


def imported(module: str) -> Iterator[str]:
    """The agent's modules that a module imports, wherever in it; also those for types alone."""
    path = AGENT.joinpath(*module.split("."))
    path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    package = path.relative_to(AGENT).parts[:-1]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.level:
            base = ".".join([*package[: len(package) - node.level + 1], *filter(None, [node.module])])
            for name in [f"{base}.{alias.name}".lstrip(".") for alias in node.names]:
                yield name if AGENT.joinpath(*name.split(".")).with_suffix(".py").exists() else base


@pytest.mark.parametrize("listener", LISTENERS)
def test_a_listener_knows_no_framework(listener: str) -> None:
    names = set(imported(f"operators.{listener}"))
    assert names
    assert [name for name in names if FRAMEWORKS & set(name.split("."))] == []


@pytest.mark.parametrize("framework", MAKERS)
def test_an_event_does_not_know_its_listeners(framework: str) -> None:
    for maker in MAKERS[framework]:
        names = set(imported(f"{framework}.{maker}"))
        assert "events.operators" in names
        assert [name for name in names if name.startswith("operators")] == []
    assert all(name.startswith("core.") for name in imported("events.operators"))


@pytest.mark.parametrize("framework", MAKERS)
def test_adapters_have_the_names_of_their_listeners_and_know_one_framework(framework: str) -> None:
    folder = AGENT / "operators" / framework
    files = {path.stem for path in folder.glob("*.py")}
    assert {"explain", "log", "profile", "repeats"} <= files
    for file in files - {"__init__"}:
        parts = {part for name in imported(f"operators.{framework}.{file}") for part in name.split(".")}
        assert parts & FRAMEWORKS == {framework}
