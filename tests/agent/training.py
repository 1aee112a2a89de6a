"""Runs small trainings under the agent alone, without the shim, and reads what it wrote."""

from __future__ import annotations

import hashlib
import json
import os
import struct
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests import number_files
from tests.interpreters import ROOT
from tests.support import PLAIN_IMPORTS

BOOTSTRAP = ROOT / "reprokit" / "agent" / "bootstrap"
Line = dict[str, Any]


@dataclass(frozen=True)
class Outcome:
    """How a training ended and what the agent wrote of it."""

    status: int
    output: str
    errors: str
    lines: list[Line]

    def of(self, kind: str, **fields: object) -> list[Line]:
        """The lines of a kind with these fields, in the order written."""
        found = [line for line in self.lines if line["k"] == kind]
        return [line for line in found if all(line[key] == value for key, value in fields.items())]

    def one(self, kind: str, **fields: object) -> Line:
        (line,) = self.of(kind, **fields)
        return line


@dataclass(frozen=True)
class Training:
    """A directory in which scripts run, with a run directory below it."""

    directory: Path
    python: str = sys.executable
    patches: Sequence[Line] = ()  # as plan.json has them
    profiling: Line | None = None  # likewise

    @property
    def run_directory(self) -> Path:
        return self.directory / "run"

    def write(self, name: str, text: str) -> Path:
        path = self.directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def environment(self, python_path: Sequence[Path] = (), **variables: str) -> dict[str, str]:
        """The environment as the launcher makes it, but for the shim."""
        self.run_directory.mkdir(exist_ok=True)
        plan = {"format": 1, "mode": "record", "shim": str(self.directory / "no-shim.so")}
        patches = {"patches": list(self.patches)} if self.patches else {}
        profiling = {} if self.profiling is None else {"profiling": self.profiling}
        (self.run_directory / "plan.json").write_text(json.dumps({**plan, **patches, **profiling}))
        (self.run_directory / "variables.key").write_bytes(bytes(range(32)))
        return {
            **self.bare_environment([BOOTSTRAP, *python_path]),
            "REPROKIT_RUN": str(self.run_directory).rjust(512, "/"),
            "REPROKIT_ID": "0",
            **variables,
        }

    def bare_environment(self, python_path: Sequence[Path] = ()) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "REPROKIT"))}
        path = os.pathsep.join([*map(str, python_path), PLAIN_IMPORTS])
        quiet = {"PYTHONDONTWRITEBYTECODE": "1", "TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": ""}
        return {**kept, **quiet, "PYTHONPATH": path}

    def run(
        self,
        script: str,
        *arguments: str,
        options: Sequence[str] = (),
        python_path: Sequence[Path] = (),
        **variables: str,
    ) -> Outcome:
        """Run a script under the agent."""
        self.write("train.py", script)
        command = [self.python, *options, "train.py", *arguments]
        return self.command(command, self.environment(python_path, **variables))

    def run_bare(self, script: str, python_path: Sequence[Path] = ()) -> Outcome:
        """Run a script without the agent."""
        self.write("train.py", script)
        return self.command([self.python, "train.py"], self.bare_environment(python_path))

    def command(self, command: Sequence[str], environment: dict[str, str]) -> Outcome:
        done = subprocess.run(
            command, cwd=self.directory, env=environment, capture_output=True, text=True, timeout=300, check=False
        )
        return Outcome(done.returncode, done.stdout, done.stderr, self.lines())

    def start(self, script: str) -> subprocess.Popen[bytes]:
        """Start a script under the agent and leave it running."""
        self.write("train.py", script)
        return subprocess.Popen([self.python, "train.py"], cwd=self.directory, env=self.environment())

    def lines(self) -> list[Line]:
        """All whole lines so far, and numbers as lines; what is being written may end within one."""
        return number_files.of_run(self.run_directory)

    def observed(self) -> list[Line]:
        """All lines of what was observed, in all processes; each has the name of its file."""
        files = sorted((self.run_directory / "profile").glob("*.jsonl"))
        return [{**json.loads(line), "file": file.name} for file in files for line in file.read_text().splitlines()]

    def observed_of(self, kind: str, name: str | None = None) -> list[Line]:
        """Those of a kind and name."""
        lines = [line for line in self.observed() if line["kind"] == kind]
        return [line for line in lines if name is None or line["name"] == name]


def tensor_digest(array: Any) -> str:
    """The digest of an array of NumPy, computed from the definition and by other means than the agent's."""
    shape = ",".join(str(size) for size in array.shape)
    data = array.astype(array.dtype.newbyteorder("<")).tobytes(order="C")
    head = b"reprokit-tensor-1\0" + array.dtype.name.encode() + b"\0" + shape.encode() + b"\0"
    return "sha256:" + hashlib.sha256(head + data).hexdigest()


def object_digest(tensors: dict[str, str]) -> str:
    """The digest of named digests."""
    text = "".join(f"{name}\0{tensors[name]}\n" for name in sorted(tensors))
    return "sha256:" + hashlib.sha256(b"reprokit-object-1\0" + text.encode()).hexdigest()


def float_value(dtype: str, number: float) -> Line:
    """The VALUE of a float."""
    form = {"float16": ">e", "float32": ">f", "float64": ">d"}[dtype]
    return {"dtype": dtype, "bits": struct.pack(form, number).hex(), "decimal": number}


def digests(line: Line) -> dict[str, str]:
    """The digests of a full weights line by name of the tensor."""
    return {name: digest for name, _, _, digest in line["tensors"]}
