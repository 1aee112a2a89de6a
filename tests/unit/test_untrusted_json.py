"""One strict reader for every JSON that somebody else may have written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from reprokit.core.errors import RunDamaged
from reprokit.core.untrusted_json import loads
from reprokit.run_files.rundir import METRICS, RUN, RunDirectory, seal_file
from tests.verify.runs import training

FILLER = '"filler": "' + "x" * 5000 + '"'  # beyond what the quicker reader takes


@pytest.mark.parametrize(
    "text", ['{"a": 1, "a": 2}', '[{"b": {"a": 1, "a" :2}}]', '{"a": ":", "a": 1}', '{"\\u0061":1,"a":1}']
)
def test_a_key_that_occurs_twice_is_refused(text: str) -> None:
    for padded in (text, f"[{text}, {{{FILLER}}}]"):
        with pytest.raises(ValueError, match="twice"):
            loads(padded.encode())


@pytest.mark.parametrize("text", ["NaN", "[Infinity]", "1e999", "{", "1 2", "[" * 100_000, '{"a":' * 100_000, "\xff"])
def test_what_is_no_json_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        loads(text.encode("latin-1"))


def test_what_is_json_is_read() -> None:
    values: tuple[Any, ...] = (
        {"a": ":", "b": [{"c": 1.5}, {"c": None}]},
        [],
        "\udcff",
        {"\udcff": {"a": {}}},
        0,
        {"x": "y" * 9000},
    )
    for value in values:
        assert loads(json.dumps(value).encode()) == value


def test_values_beyond_memory_are_not_made() -> None:
    with pytest.raises(ValueError, match="more values"):
        loads(b"[" + b"[]," * (6 << 20) + b"[]]")


def test_run_directories_with_two_meanings_are_damaged(tmp_path: Path) -> None:
    """The checks fit what one reader sees; another would see a failed run, or another loss."""
    path = training(tmp_path / "run").write()
    text = (path / RUN).read_text()
    (path / RUN).write_text(text.replace('"exit_code"', '"exit_code": 3, "exit_code"', 1))
    with pytest.raises(RunDamaged, match="'exit_code' occurs twice"):
        RunDirectory(path)
    (path / RUN).write_text(text)
    metrics = (path / METRICS).read_text()
    (path / METRICS).write_text(metrics.replace('"step"', '"step": 9, "step"', 1))
    run = RunDirectory(path)
    run.run.metrics = seal_file(path / METRICS)
    with pytest.raises(RunDamaged, match="'step' occurs twice"):
        list(run.metrics())
