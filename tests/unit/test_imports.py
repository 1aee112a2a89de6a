"""The layers: imports point downwards, and importing reprokit needs nothing of one platform."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import reprokit

PACKAGE = Path(reprokit.__path__[0])

# From the top down. A part imports its own modules and what stands in a lower layer, never beside it.
LAYERS = (
    {"__main__", "notebook"},
    {"cli", "pytest_plugin"},
    {"reproduce", "report", "bundle", "gate", "study"},
    {"questions"},
    {"launch", "verify", "profiling", "rules"},
    {"entropy", "artifacts", "knowledge", "patches", "capture", "saved_tensors"},
)
BOTTOM = {"errors", "version"}
FRAMEWORKS = ("numpy", "torch", "tensorflow", "keras", "sklearn", "xgboost", "pandas", "jax", "lightgbm")


def modules() -> Iterator[tuple[str, Path]]:
    """Each module's part ("launch", "rundir", ...) and file."""
    for path in sorted(PACKAGE.rglob("*.py")):
        yield path.relative_to(PACKAGE).parts[0].removesuffix(".py"), path


@cache
def imports(path: Path) -> list[ast.Import | ast.ImportFrom]:
    """All statements of a module that import something, wherever in it."""
    nodes = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
    return [node for node in nodes if isinstance(node, (ast.Import, ast.ImportFrom))]


def imported(path: Path) -> Iterator[str]:
    """The parts of reprokit that a module imports, wherever in it."""
    package = ["reprokit", *path.relative_to(PACKAGE).with_suffix("").parts[:-1]]
    for node in imports(path):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        else:
            base = package[: len(package) - node.level + 1] if node.level else []
            origin = ".".join([*base, *([node.module] if node.module else [])])
            names = [f"{origin}.{alias.name}" for alias in node.names]
        yield from (name.split(".")[1] for name in names if name.startswith("reprokit."))


def layer(part: str) -> int:
    for number, parts in enumerate(LAYERS):
        if part in parts:
            return number
    return len(LAYERS) + (1 if part in BOTTOM else 0)


def is_allowed(part: str, target: str) -> bool:
    if part == target or part == "__init__":
        return True
    if target == "__init__" or (layer(part), layer(target)) == (len(LAYERS), len(LAYERS)):
        return True  # single-file modules may use each other
    return layer(target) > layer(part)


def test_imports_point_downwards() -> None:
    names = {part for part, _ in modules()}
    wrong = [
        f"{path.relative_to(PACKAGE)} imports {target}"
        for part, path in modules()
        for target in imported(path)
        if target in names and part != "agent" and not is_allowed(part, target)
    ]
    assert wrong == []


def test_verify_reads_then_compares_then_shows() -> None:
    order = ("show", "compare", "read")
    wrong = [
        f"{path.relative_to(PACKAGE)} imports {later}"
        for number, part in enumerate(order)
        for path in (PACKAGE / "verify" / part).glob("*.py")
        for later in order[:number]
        if f"reprokit.verify.{later}" in path.read_text(encoding="utf-8")
    ]
    assert wrong == []


def test_the_agent_imports_nothing_of_reprokit_and_nobody_but_the_library_of_snapshots_imports_it() -> None:
    inside = [
        f"{path} imports {t}" for part, path in modules() if part == "agent" for t in imported(path) if t != "agent"
    ]
    outside = [
        str(path)
        for part, path in modules()
        if part not in ("agent", "__init__", "capture")
        for t in imported(path)
        if t == "agent"
    ]
    assert inside == []
    assert outside == []


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


def texts(tree: ast.AST) -> Iterator[str]:
    """The strings of a module, also those that are put together."""
    for node in ast.walk(tree):
        parts = node.values if isinstance(node, ast.JoinedStr) else [node]
        yield "".join(part.value for part in parts if isinstance(part, ast.Constant) and isinstance(part.value, str))


def test_trainings_are_files_that_are_linted_and_no_strings() -> None:
    imports = re.compile(rf"^ *(?:import|from)\b.*\b(?:{'|'.join(FRAMEWORKS)})\b", re.MULTILINE)
    wrong = [
        f"{path.name}: {text.strip().splitlines()[0]}"
        for path in sorted(Path(__file__).parents[1].rglob("*.py"))
        for text in texts(ast.parse(path.read_bytes()))
        if len(text.strip().splitlines()) > 4 and imports.search(text)
    ]
    assert wrong == []


# Listeners: what a run keeps of the events of any framework.
LISTENERS = {"events", "metrics", "trail_library"}


def test_listeners_know_no_framework() -> None:
    folders = {path.name for path in (PACKAGE / "agent").iterdir() if path.is_dir()} - {"core"}
    wrong = []
    for name in LISTENERS:
        path = PACKAGE / "agent" / f"{name}.py"
        for node in imports(path):
            if isinstance(node, ast.ImportFrom) and node.level:
                targets = (node.module or "").split(".")[:1] + [alias.name for alias in node.names if not node.module]
                wrong += [f"{name} imports {target}" for target in targets if target in folders]
    assert wrong == []


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
