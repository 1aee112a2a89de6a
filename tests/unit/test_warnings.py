"""Every warning has a code, of which `reprokit help` says what it means."""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from reprokit.cli.help import warnings
from reprokit.core.errors import RunDamaged
from reprokit.model.run import OLDEST
from reprokit.model.run_warning import RunWarning
from reprokit.run_files import rundir
from reprokit.run_files.rundir import RunDirectory
from reprokit.verify.runs import compare
from reprokit.verify.show import overview
from reprokit.verify.show.summary import document, summarize
from tests.support import Reprokit
from tests.unit.test_errors import classes
from tests.unit.test_messages import Texts
from tests.verify.runs import recording

PRODUCT = sorted((Path(__file__).parent.parent.parent / "reprokit").rglob("*.py"))
WARNS = {"warn", "_warn", "show", "RunWarning"}  # what takes a text and its code
# What hands a warning on has its code from elsewhere; an error's slug is its code.
HANDED_ON = {"code", "first.code", "line.code", "warning.code"}
SLUGS = {"error.slug", "RunDamaged.slug", "closing.failure.slug", "getattr(error, 'slug', 'system')"}


def _codes(trees: dict[Path, ast.Module]) -> Iterator[tuple[str, list[str]]]:
    """Each place that warns, and the codes that it may have."""
    texts = Texts(trees)
    for path, nodes in texts.nodes.items():
        for node in nodes:
            code = _code(node)
            if code is not None and ast.unparse(code) not in HANDED_ON | SLUGS:
                yield f"{path.name}:{code.lineno}", list(texts.of(path, code))


def _code(node: ast.AST) -> ast.expr | None:
    if isinstance(node, ast.Call):
        function = node.func
        name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
        is_shown = name == "show" and not ast.unparse(function).endswith(("closing.show", "self.show"))
        return None if is_shown or name not in WARNS or len(node.args) < 2 else node.args[1]
    if isinstance(node, ast.Dict):  # a line of the agent
        pairs = zip(node.keys, node.values, strict=True)
        entries = {key.value: value for key, value in pairs if isinstance(key, ast.Constant)}
        return entries["code"] if {"text", "code"} <= entries.keys() else None
    return None


def test_each_code_is_explained_and_each_that_is_explained_is_used() -> None:
    contents = {path: path.read_bytes() for path in PRODUCT}
    found = dict(_codes({path: ast.parse(content) for path, content in contents.items() if b"warn" in content}))
    assert [place for place, codes in found.items() if not codes] == []
    assert {code for codes in found.values() for code in codes} == warnings().keys()
    assert not warnings().keys() & {error.slug for error in classes()}


def test_help_explains_a_warning(reprokit: Reprokit) -> None:
    explained = reprokit.run("help", "disk-full")
    assert (explained.returncode, explained.stdout) == (0, f"disk-full\n\n{warnings()['disk-full']}\n")


def test_warnings_of_earlier_runs_are_texts_without_a_code(tmp_path: Path) -> None:
    building = recording(tmp_path / "run")
    building.losses(1.0)
    path = building.write()
    content = json.loads((path / rundir.RUN).read_text())
    rundir.write_json(path / rundir.RUN, {**content, "format": OLDEST, "warnings": ["the disk was full"]})
    assert RunDirectory(path).run.warnings == [RunWarning("the disk was full")]
    assert "of the left run, the disk was full" in compare(path, path).notes
    assert document(summarize(path))["warnings"] == [{"text": "the disk was full", "code": ""}]
    for damaged in ([1], [{"text": "the disk was full"}], "the disk was full"):
        rundir.write_json(path / rundir.RUN, {**content, "format": OLDEST, "warnings": damaged})
        with pytest.raises(RunDamaged):
            RunDirectory(path)


def test_a_warning_is_shown_with_its_code(tmp_path: Path) -> None:
    building = recording(tmp_path / "run")
    building.run.warnings = [RunWarning("the disk was full", "disk-full")]
    building.add("warning", text="two calls are missing", code="operators-cut")
    path = building.write()
    shown = document(summarize(path))["warnings"]
    assert [(warning["text"], warning["code"]) for warning in shown] == [
        ("the disk was full", "disk-full"),
        ("the agent: two calls are missing", "operators-cut"),
    ]
    assert ("warning", "the disk was full [disk-full]") in overview.rows(summarize(path))
