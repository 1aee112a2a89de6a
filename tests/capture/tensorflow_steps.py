"""Runs small trainings with captures, by the agent alone, and does captured steps again."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

import jsonschema

from tests.agent.training import BOOTSTRAP
from tests.support import PLAIN_IMPORTS

Done = subprocess.CompletedProcess[str]


def validate(schema: str, document: object) -> None:
    """Hold a document against one of reprokit's schemas."""
    path = files("reprokit") / "schemas" / f"{schema}.schema.json"
    jsonschema.validate(document, json.loads(path.read_text()))


@dataclass(frozen=True)
class Steps:
    """A directory in which one script is run with a capture, and again."""

    directory: Path
    python: str = sys.executable

    @property
    def snapshots(self) -> list[Path]:
        """The snapshots that there are, in the order of their steps."""
        return sorted((self.directory / "run" / "snapshots").glob("step-*"))

    def header(self, number: int = 0) -> dict[str, Any]:
        """snapshot.json of one of them."""
        content: dict[str, Any] = json.loads((self.snapshots[number] / "snapshot.json").read_text())
        validate("snapshot", content)
        return content

    def capture(self, script: str, action: str = "stop", **settings: object) -> Done:
        """Run a script with a capture."""
        return self._run(script, {"action": action, **settings})

    def redo(self, mode: str, script: str, number: int = 0) -> tuple[dict[str, Any], Done]:
        """Do a captured step again, in this script; the result, and how the process ended."""
        result, progress = self.directory / "result.json", self.directory / "progress"
        result.unlink(missing_ok=True)
        progress.unlink(missing_ok=True)
        paths = {"snapshot": str(self.snapshots[number]), "result": str(result), "progress": str(progress)}
        done = self._run(script, {"redo": {"mode": mode, **paths}})
        assert result.exists(), done.stderr
        found = json.loads(result.read_text())
        if "trouble" not in found:  # which the launcher tells in another way
            validate("snapshot-result", {"snapshot": "", **found})
        return found, done

    def progress(self) -> list[dict[str, Any]]:
        """What was told of trials."""
        return [json.loads(line) for line in (self.directory / "progress").read_text().splitlines()]

    def _run(self, script: str, capture: Mapping[str, object]) -> Done:
        run = self.directory / "run"
        run.mkdir(exist_ok=True)
        plan = {"format": 1, "mode": "record", "shim": str(run / "no-shim.so")}
        capture = {"directory": str(run / "snapshots"), **capture}
        (run / "plan.json").write_text(json.dumps({**plan, "capture": capture}))
        (self.directory / "train.py").write_text(script)
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "REPROKIT"))}
        path = os.pathsep.join([str(BOOTSTRAP), PLAIN_IMPORTS])
        ours = {"REPROKIT_RUN": str(run).rjust(512, "/"), "REPROKIT_ID": "0", "PYTHONPATH": path}
        quiet = {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "", "PYTHONDONTWRITEBYTECODE": "1"}
        environment = {**kept, **ours, **quiet}
        command = [self.python, "train.py"]
        return subprocess.run(
            command, cwd=self.directory, env=environment, capture_output=True, text=True, timeout=300, check=False
        )


def captured(directory: Path, script: str) -> Steps:
    """A directory in which a step of the script has been captured, which ended it."""
    steps = Steps(directory)
    done = steps.capture(script)
    assert done.returncode == 123, done.stderr
    return steps


def line_of(mark: str, script: str) -> int:
    """The number of the line that ends in a comment of this mark."""
    return next(number for number, line in enumerate(script.splitlines(), 1) if line.endswith(f" {mark}"))
