"""Helpers of the tests: run the installed command, poll, read what it left."""

from __future__ import annotations

import json
import logging
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import msgspec
import pytest

from reprokit.run_files import rundir
from tests.command_server import CommandServer

DIALECT = "https://json-schema.org/draft/2020-12/schema"
COMMAND = str(Path(sys.executable).with_name("reprokit"))
PLAIN_IMPORTS = str(Path(__file__).with_name("plain_imports"))  # for PYTHONPATH: frameworks start in half the time
SERVER = CommandServer(COMMAND)
LIMIT = 180.0  # seconds after which a test gives up, also on a machine with much else to do

Done = subprocess.CompletedProcess[str]


def shipped_schema(name: str) -> Any:
    """A file of reprokit/schemas."""
    return json.loads(resources.files("reprokit").joinpath(f"schemas/{name}.schema.json").read_text())


def schema_of(kind: type, identity: str, **more: str) -> Any:
    """The JSON schema that the code's structs stand for, as reprokit/schemas has it."""
    return json.loads(json.dumps({"$schema": DIALECT, "$id": identity, **more, **msgspec.json.schema(kind)}))


def _told(done: Done) -> Done:
    """The same; pytest shows what was said where the test fails, beside its captured output."""
    logging.getLogger(__name__).warning("exit status %s: %s", done.returncode, done.stderr)
    return done


@dataclass(frozen=True)
class Reprokit:
    """The installed command in one working directory."""

    directory: Path

    def run(
        self,
        *arguments: str | bytes,
        environment: Mapping[str, str] | None = None,
        directory: Path | None = None,
        stdin: str = "",
    ) -> Done:
        """Run it to its end; both outputs are captured. Where a process forked for it will do, it is one."""
        given = {**os.environ, **(environment or {})}
        if not stdin and SERVER.serves(given):
            words = list(map(os.fsdecode, arguments))
            return _told(SERVER.run(words, directory or self.directory, given, 2 * LIMIT))
        done = subprocess.run(
            [COMMAND, *arguments],
            cwd=directory or self.directory,
            env=given,
            input=stdin,
            capture_output=True,
            text=True,
            errors="surrogateescape",
            timeout=2 * LIMIT,
            check=False,
        )
        return _told(done)

    def record(self, *command: str | bytes, **options: Any) -> Done:
        """Record a command in a run directory of its own."""
        return self.run("record", "--", *command, **options)

    def start(self, *arguments: str, **options: Any) -> subprocess.Popen[str]:
        """Start it and go on."""
        return subprocess.Popen(
            [COMMAND, *arguments],
            cwd=self.directory,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            **options,
        )

    @property
    def last(self) -> Path:
        return (self.directory / ".reprokit" / "last").resolve()

    def facts(self, run: Path | str | None = None) -> dict[str, Any]:
        """run.json of a run; of the newest where none is named."""
        directory = self.last if run is None else self.directory / run
        content: dict[str, Any] = json.loads((directory / "run.json").read_text())
        return content

    def script(self, name: str, text: str) -> Path:
        """An executable file in the working directory."""
        path = self.directory / name
        path.write_text(text)
        path.chmod(0o755)
        return path


def rest_slow(values: Iterable[Any], extended: Iterable[Any] = ()) -> list[Any]:
    """The values of a parameter: the first runs in make test, the others in make test-all or make test-extended."""
    first, *slow = values
    marked = ((pytest.mark.slow, slow), (pytest.mark.extended, extended))
    rows = ((mark, value if isinstance(value, tuple) else (value,)) for mark, values in marked for value in values)
    return [first, *(pytest.param(*row, marks=mark) for mark, row in rows)]


def wait_until(condition: Callable[[], Any], what: str) -> None:
    """Poll until the condition holds."""
    deadline = time.monotonic() + LIMIT
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited {LIMIT:.0f} s for {what}")
        time.sleep(0.01)


def imported(name: str) -> Any:
    """Import a framework into the process of the tests; TensorFlow sets variables that other releases of it read."""
    before = dict(os.environ)
    module = pytest.importorskip(name)
    os.environ.clear()
    os.environ.update(before)
    return module


def training_text(name: str, case: str = "") -> str:
    """The text of one of the scripts in tests/trainings, with a case of several chosen."""
    text = (Path(__file__).with_name("trainings") / name).read_text()
    return re.sub(r'(?m)^CASE = ".*"', f'CASE = "{case}"', text) if case else text


def python(code: str) -> list[str]:
    """A command that runs a few lines of Python."""
    return [sys.executable, "-c", code]


def rewrite_environment(run: Path, content: dict[str, Any]) -> None:
    """Put other facts into environment.json, as if the run had written them."""
    rundir.write_json(run / rundir.ENVIRONMENT, content)
    facts = rundir.RunDirectory(run).run
    facts.environment = rundir.seal_file(run / rundir.ENVIRONMENT)
    rundir.write_json(run / rundir.RUN, facts)
