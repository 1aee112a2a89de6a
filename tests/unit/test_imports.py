"""What imports what: the hubs know no feature, and importing reprokit needs nothing of one platform.

The walls between rooms are contracts of import-linter in pyproject.toml, which make lint checks.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from pathlib import Path

import pytest

import reprokit
from reprokit.run import parts
from reprokit.run.part import RunPart
from tests.unit.test_agent_rooms import circles

PACKAGE = Path(reprokit.__path__[0])

IMPORTS = (ast.Import, ast.ImportFrom)
FRAMEWORKS = ("numpy", "torch", "tensorflow", "keras", "sklearn", "xgboost", "pandas", "jax", "lightgbm")


def modules() -> Iterator[tuple[str, Path]]:
    """Each module's part ("launch", "rundir", ...) and file."""
    for path in sorted(PACKAGE.rglob("*.py")):
        yield path.relative_to(PACKAGE).parts[0].removesuffix(".py"), path


@cache
def imports(path: Path) -> list[ast.Import | ast.ImportFrom]:
    """All statements of a module that import something, wherever in it."""
    return [node for node in statements(ast.parse(path.read_text(encoding="utf-8"))) if isinstance(node, IMPORTS)]


def statements(parent: ast.AST) -> Iterator[ast.AST]:
    """The statements below a node: to walk all expressions too takes four times as long."""
    for block in ("body", "orelse", "finalbody", "handlers", "cases"):
        below = getattr(parent, block, [])
        for node in below if isinstance(below, list) else []:
            yield node
            yield from statements(node)


def test_the_agent_imports_the_standard_library_only() -> None:
    wrong = []
    for part, path in modules():
        for node in imports(path) if part == "agent" else ():
            names = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif not node.level:
                names = [node.module or ""]
            wrong += [f"{path.name}: {name}" for name in names if name.split(".")[0] in FRAMEWORKS]
    assert wrong == []


def test_no_modules_import_each_other_in_a_circle() -> None:
    """Of the agent's modules tests/unit/test_agent_rooms.py tells this; imports for types alone count."""
    paths = {".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts): path for _, path in modules()}
    names = {name.removesuffix(".__init__"): path for name, path in paths.items() if "reprokit._shim" not in name}
    graph = {}
    for name, path in names.items():
        members = [(node, alias.name) for node in imports(path) for alias in node.names]
        targets = {
            member if member in names else str(getattr(node, "module", ""))
            for node, alias in members
            for member in (f"{node.module}.{alias}" if isinstance(node, ast.ImportFrom) else alias,)
        }
        graph[name] = frozenset(targets & names.keys() - {name})
    assert [sorted(circle) for circle in circles(graph)] == []


def texts(tree: ast.AST) -> Iterator[str]:
    """The strings of a module, also those that are put together."""
    for node in ast.walk(tree):
        parts = node.values if isinstance(node, ast.JoinedStr) else [node]
        yield "".join(part.value for part in parts if isinstance(part, ast.Constant) and isinstance(part.value, str))


def test_trainings_are_files_that_are_linted_and_no_strings() -> None:
    named = rf"(?:import|from)\b.*\b(?:{'|'.join(FRAMEWORKS)})\b"
    imports = re.compile(rf"^ *{named}", re.MULTILINE)
    wrong = [
        f"{path.name}: {text.strip().splitlines()[0]}"
        for path in sorted(Path(__file__).parents[1].rglob("*.py"))
        if re.search(named, path.read_text())
        for text in texts(ast.parse(path.read_bytes()))
        if len(text.strip().splitlines()) > 4 and imports.search(text)
    ]
    assert wrong == []


# Hubs, and the folders whose features they walk by a table.
HUBS = {
    "run/run.py": "run/parts",
    "run/part.py": "run/parts",
    "verify/runs.py": "verify/categories",
    "evidence/report/gather.py": "evidence/report/sections",
    "diff/files.py": "diff/formats",
    "diff/compare.py": "diff/formats",
}
SHARED = {"declared_outputs", "ends", "match"}  # by all categories


@pytest.mark.parametrize(("hub", "folder"), HUBS.items())
def test_hubs_import_no_feature_by_name(hub: str, folder: str) -> None:
    features = {path.stem for path in (PACKAGE / folder).glob("[!_]*.py")} - SHARED
    package = f"reprokit.{folder.replace('/', '.')}"
    tree = ast.parse((PACKAGE / hub).read_text(encoding="utf-8"))
    named = {text.removeprefix(f"{package}.") for text in texts(tree)}  # by which a module could be loaded
    for node in imports(PACKAGE / hub):
        above = f"{node.module}." if isinstance(node, ast.ImportFrom) else ""
        members = {f"{above}{alias.name}" for alias in node.names} | {above.rstrip(".")}
        named |= {member.removeprefix(f"{package}.") for member in members if member.startswith(f"{package}.")}
    assert {name.partition(".")[0] for name in named} & features == set()
    assert len(features) > 10


def test_each_part_of_a_run_stands_in_the_table_and_each_row_has_its_file() -> None:
    rows = [row.name for row in parts.TABLE]
    assert sorted(rows) == sorted(path.stem for path in (PACKAGE / "run" / "parts").glob("[!_]*.py"))
    assert all(issubclass(import_module(f"reprokit.run.parts.{name}").PART, RunPart) for name in rows)


@pytest.mark.parametrize("absent", ["fcntl", "resource", "pty", "termios", "pwd", "grp"])
def test_what_only_reads_runs_is_imported_without_a_posix_module(absent: str) -> None:
    code = f"""
import sys
sys.modules[{absent!r}] = None
from reprokit.cli import main, options, output, record, replay, doctor, verify, show
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def loaded_after(code: str) -> set[str]:
    show = "import sys; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", f"{code}\n{show}"], capture_output=True, text=True, check=True)
    return {name.split(".")[0] for name in done.stdout.split()}


def test_nothing_heavy_is_imported_with_reprokit_itself() -> None:
    assert loaded_after("import reprokit").isdisjoint({"click", "rich", "msgspec", "cffi", "psutil", "numpy"})


def test_recording_imports_no_tables_and_no_process_tools_before_the_start() -> None:
    loaded = loaded_after("import reprokit.cli.main, reprokit.cli.record, reprokit.run.run")
    assert loaded.isdisjoint({"rich", "psutil", "numpy", "torch", "tensorflow"})


def test_snapshots_are_read_without_a_framework_and_imported_without_numpy() -> None:
    heavy = {"numpy", "torch", "tensorflow", "keras", "click", "rich"}
    assert loaded_after("import reprokit.capture, reprokit.capture.files").isdisjoint(heavy)


# What a module is, not what was done to it: these say nothing to who looks for a file.
VAGUE = {
    *("parts", "pieces", "rows", "values", "words", "things", "near"),
    *("held", "kept", "found", "given", "listed", "listing", "listings", "computed", "computing", "copying", "fresh"),
    *("imported", "inherited", "keeping", "logged", "matching", "patched", "pending", "placing", "profiled", "reading"),
    *("replaying", "standing", "unpacked", "unreached", "varied", "watching", "written", "apart", "elsewhere"),
}


def test_modules_are_named_by_what_they_are() -> None:
    assert sorted(str(path.relative_to(PACKAGE)) for _, path in modules() if path.stem in VAGUE) == []
