"""The rooms of the agent: imports point downwards and never in a circle, and its hubs know no feature by name.

Imports for types alone count too.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator, Mapping
from functools import cache
from importlib import import_module
from pathlib import Path

import pytest

import reprokit.agent
from reprokit.agent import registry
from reprokit.agent.questions import KINDS

AGENT = Path(reprokit.agent.__path__[0])
ROOT, NAME = "", "reprokit.agent."  # the agent's own __init__.py, and what the names of its modules begin with
FEATURES = {"capture", "operators", "patches", "questions", "state", "tensors"}
# From the top down. A room imports its own modules and lower rooms; features may import each other.
LAYERS = (
    {"start", "script_api"},
    {"registry"},
    FEATURES,
    {"frameworks"},
    {"orders"},
    {"surroundings"},
    {"pytorch", "tensorflow"},
    {"listeners", "predictions", "seeds"},
    {"events"},
    {"core"},
)
LOOSE = {"__init__", "registry", "script_api", "start"}


@cache
def modules() -> Mapping[str, Path]:
    """The agent's modules by their names below it; the script of the bootstrap is none."""
    files = [path for path in AGENT.rglob("*.py") if path.parent.name != "bootstrap"]
    return {
        ".".join(path.relative_to(AGENT).with_suffix("").parts).removesuffix("__init__").rstrip("."): path
        for path in files
    }


def imported(name: str) -> Iterator[str]:
    """The agent's modules that one of them imports, wherever in it."""
    path = modules()[name]
    package = list(path.relative_to(AGENT).parent.parts)
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name.removeprefix(NAME) for alias in node.names if alias.name.startswith(NAME))
        elif isinstance(node, ast.ImportFrom) and (node.level or f"{node.module}.".startswith(NAME)):
            base = package[: len(package) - node.level + 1] if node.level else []
            origin = ".".join([*base, *([f"{node.module}.".removeprefix(NAME).rstrip(".")] if node.module else [])])
            for alias in node.names:
                member = f"{origin}.{alias.name}".lstrip(".")
                yield member if member in modules() else origin


@cache
def graph() -> Mapping[str, frozenset[str]]:
    return {name: frozenset(imported(name)) - {name} for name in modules()}


def room(name: str) -> str:
    return name.partition(".")[0]


def layer(name: str) -> int:
    (number,) = [number for number, rooms in enumerate(LAYERS) if room(name) in rooms]
    return number


def circles(imports: Mapping[str, frozenset[str]]) -> set[frozenset[str]]:
    """The largest sets of modules that all import each other, perhaps through others."""

    def reached(start: str) -> set[str]:
        seen: set[str] = set()
        waiting = [start]
        while waiting:
            waiting += imports[waiting.pop()] - seen
            seen.update(waiting)
        return seen

    all_reached = {name: reached(name) for name in imports}
    groups = {frozenset(other for other in all_reached[name] if name in all_reached[other]) for name in imports}
    return {group for group in groups if group}


def test_a_circle_is_seen_through_other_modules_and_by_none_that_only_leads_to_it() -> None:
    imports = {"a": {"b"}, "b": {"c"}, "c": {"a", "d"}, "d": set(), "e": {"a"}, "f": {"f"}}
    assert circles({name: frozenset(those) for name, those in imports.items()}) == {frozenset("abc"), frozenset("f")}


def test_no_modules_of_the_agent_import_each_other_in_a_circle() -> None:
    found = [sorted(circle) for circle in circles(graph())]
    assert found == []


def test_imports_of_the_agent_point_downwards() -> None:
    wrong = [
        f"{name} imports {target}"
        for name, targets in graph().items()
        for target in targets
        if name != ROOT and room(name) != room(target) and layer(target) <= layer(name)
        if not {room(name), room(target)} <= FEATURES
    ]
    assert wrong == []


def test_every_room_has_its_place() -> None:
    rooms = {path.name for path in AGENT.iterdir() if (path / "__init__.py").exists()}
    assert rooms | LOOSE - {"__init__"} == set().union(*LAYERS)
    assert {path.stem for path in AGENT.glob("*.py")} == LOOSE


@pytest.mark.parametrize(("hub", "known"), [("start", {"core", "registry"}), ("core.agent", {"core"})])
def test_the_hubs_import_no_feature_by_name(hub: str, known: set[str]) -> None:
    assert {room(target) for target in graph()[hub]} <= known
    loaders = {"import_module", "__import__"}
    tree = ast.parse(modules()[hub].read_text(encoding="utf-8"))
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    named = [node for node in calls if getattr(node.func, "id", getattr(node.func, "attr", "")) in loaders]
    texts = [part.value for node in named for part in ast.walk(node) if isinstance(part, ast.Constant)]
    assert {room(str(text).removeprefix(NAME)) for text in texts} & set().union(*LAYERS) == set()


def places() -> Iterator[tuple[str, int]]:
    """The functions of all rows of the registry, with the number of their arguments."""
    yield from ((f"{module}.start", 2) for module in registry.PLANNED.values())
    yield from ((f"{module}.start", 1) for module, _ in registry.EACH_PROCESS)
    yield from ((place, 3) for _, place in registry.MODULES)
    yield from ((place, 1) for _, place in registry.LAST_FACTS)
    yield from ((place, 4) for place in registry.SCRIPT.values())
    yield from ((f"{module}.listener", 4) for module in KINDS.values())


@pytest.mark.parametrize(("place", "arguments"), [*places()])
def test_every_row_of_a_registry_names_a_function_with_its_arguments(place: str, arguments: int) -> None:
    module, _, name = place.rpartition(".")
    function = getattr(import_module(f"reprokit.agent.{module}"), name)
    assert len(inspect.signature(function).parameters) == arguments


def test_every_adapter_is_where_the_registry_loads_it() -> None:
    names = {registry.load(adapter).__name__ for adapter in set(registry.WATCHED.values())}
    assert names == {f"{adapter.capitalize()}Adapter" for adapter in registry.WATCHED.values()}
