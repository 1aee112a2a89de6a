"""Builds profiled runs as agents and launcher leave them, without running anything."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from reprokit.model.run import ProfilingFacts
from reprokit.profiling import analyze
from reprokit.run_files import rundir
from reprokit.run_files.rundir import RunDirectory
from tests.verify.runs import Building, recording

Line = dict[str, Any]
PLACE = ["/home/somebody/project/train.py", 31, "loss_of"]


def profiled(path: Path, *processes: list[Line], **facts: Any) -> Building:
    """A run of some processes, each with the lines that its agent wrote; not yet written."""
    building = recording(path)
    building.run.profiling = ProfilingFacts(**facts)
    building.run.profile = None
    path.mkdir()
    (path / rundir.PROFILE).mkdir()
    for number, lines in enumerate(processes):
        text = "".join(json.dumps({"key": key, **line}) + "\n" for key, line in enumerate(lines))
        (path / rundir.PROFILE / f"{100 + number}-0.jsonl").write_text(text)
    return building


def diagnosed(path: Path, *processes: list[Line], **facts: Any) -> Any:
    """What comes out of such a run."""
    return analyze(RunDirectory(profiled(path, *processes, **facts).write()))


def operator(name: str = "aten::index_put", phase: str = "backward", **changes: Any) -> Line:
    """A call of an operator of PyTorch, as its observer tells of it."""
    line = {
        "kind": "operator",
        "framework": "pytorch",
        "version": "2.13.0+cpu",
        "name": name,
        "overload": "",
        "phase": phase,
        "device": "cpu",
        "dtypes": ["float32", "int64", "float32"],
        "shapes": [[100, 8], [4000], [4000, 8]],
        "attributes": {"accumulate": True},
        "calls": 20,
        "where": [PLACE],
    }
    return {**line, **changes}


def confirmed(name: str = "aten::index_put", phase: str = "backward", **changes: Any) -> Line:
    """What came out when such a call was executed again."""
    line = operator(name, phase)
    outcome = {
        "repeats": 30,
        "results": 7,
        "threads": {"1": "repeats"},
        "capabilities": {"avx2": "same"},
        "problem": "",
    }
    return {**line, "kind": "confirmed", **outcome, **changes}
