"""The agent's bytecode: reprokit's launcher writes it before a run, and no process of the run does."""

from __future__ import annotations

import marshal
import os
import shutil
import subprocess
import sys
from importlib.util import MAGIC_NUMBER
from pathlib import Path

import pytest

from reprokit.run.environment import agent_directory, complete_bytecode

UNNEEDED = ("capture", "listeners", "operators", "predictions", "pytorch", "state", "tensorflow", "tensors")


@pytest.fixture
def agent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the agent that nobody has compiled."""
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    copy = tmp_path / "reprokit/agent"
    shutil.copytree(agent_directory(), copy, ignore=shutil.ignore_patterns("__pycache__", *UNNEEDED))
    return copy


def bytecode(agent: Path) -> dict[str, int]:
    return {str(file.relative_to(agent)): file.stat().st_mtime_ns for file in agent.rglob("*.pyc")}


def test_what_is_missing_is_compiled_once(agent: Path) -> None:
    complete_bytecode(agent)
    written = bytecode(agent)
    assert len(written) == len(list(agent.rglob("*.py")))
    complete_bytecode(agent)
    assert bytecode(agent) == written
    lost = next(agent.glob("core/__pycache__/journal.*.pyc"))
    lost.unlink()
    complete_bytecode(agent)
    again = bytecode(agent)
    assert again.keys() == written.keys()
    assert [name for name in again if again[name] != written[name]] == [str(lost.relative_to(agent))]


def test_the_start_is_put_into_one_file_when_the_agent_was_installed(agent: Path) -> None:
    complete_bytecode(agent)
    (archive,) = agent.glob("__pycache__/*.archive")
    written = archive.stat().st_ino
    complete_bytecode(agent)
    assert archive.stat().st_ino == written
    installed = archive.stat().st_mtime + 1
    os.utime(agent / "start.py", (installed, installed))
    complete_bytecode(agent)
    assert archive.stat().st_ino != written
    assert archive.stat().st_mode & 0o777 == 0o644
    assert [file.name for file in archive.parent.iterdir() if file.suffix not in (".pyc", ".archive")] == []


def test_who_wants_no_bytecode_gets_none(agent: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    complete_bytecode(agent)
    assert not bytecode(agent)
    assert not list(agent.rglob("*.archive"))


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """The directory of a run whose processes are started here."""
    path = tmp_path / "run"
    path.mkdir()
    (path / "plan.json").write_text('{"format": 1, "mode": "record"}')
    return path


def printed(agent: Path, run: Path, code: str) -> str:
    """What a process of a run prints."""
    environment = {**os.environ, "PYTHONPATH": str(agent / "bootstrap"), "REPROKIT_RUN": str(run), "REPROKIT_ID": "0"}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    command = [sys.executable, "-c", code]
    return subprocess.run(
        command, env=environment, check=True, cwd=run.parent, text=True, stdout=subprocess.PIPE
    ).stdout


def lines_of_agent(agent: Path, run: Path, kind: str = "agent") -> int:
    """How many lines of a kind the agent writes in a process."""
    (run / "metrics.jsonl").unlink(missing_ok=True)
    printed(agent, run, "pass")
    return (run / "metrics.jsonl").read_text().count(f'"k":"{kind}"')


def test_the_file_has_what_each_process_imports(agent: Path, run: Path) -> None:
    complete_bytecode(agent)
    (archive,) = agent.glob("__pycache__/*.archive")
    modules = marshal.loads(archive.read_bytes()[len(MAGIC_NUMBER) :])
    code = "import sys; print(*[name for name in sys.modules if name.startswith('_reprokit_agent')])"
    assert set(printed(agent, run, code).split()) == set(modules)


def test_the_start_comes_from_the_file_as_long_as_that_is_as_its_sources(agent: Path, run: Path) -> None:
    complete_bytecode(agent)
    for file in agent.rglob("*.pyc"):
        file.unlink()
    (archive,) = agent.glob("__pycache__/*.archive")
    source = agent / "start.py"
    before = source.stat()
    source.write_text(source.read_text().replace('journal.write("agent"', 'journal.write("other"'))
    os.utime(source, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert lines_of_agent(agent, run) == 1
    content = archive.read_bytes()
    for damaged in (content[: len(content) // 2], content[:5], b"", b"\0\0\r\n" + content[4:], MAGIC_NUMBER + b"N"):
        archive.write_bytes(damaged)
        assert lines_of_agent(agent, run, "other") == 1
    status = source.stat()
    for entry in ((1, 2), ("start.py", status.st_mtime, status.st_size, "no code")):  # as of another release
        archive.write_bytes(MAGIC_NUMBER + marshal.dumps({"_reprokit_agent.start": entry}))
        assert lines_of_agent(agent, run, "other") == 1
    archive.write_bytes(content)
    os.utime(source, (1, 1))
    assert lines_of_agent(agent, run, "other") == 1


def test_a_process_of_a_run_writes_none_and_takes_no_stale_or_damaged_one(agent: Path, run: Path) -> None:
    assert lines_of_agent(agent, run) == 1
    assert {Path(name).parent.parent.name for name in bytecode(agent)} <= {"bootstrap"}  # by Python's own loader
    complete_bytecode(agent)
    written = bytecode(agent)
    source = agent / "start.py"
    source.write_text(
        source.read_text().replace('journal.write("agent"', 'journal.write("agent", {})\n    journal.write("agent"')
    )
    os.utime(source, (1, 1))
    assert lines_of_agent(agent, run) == 2
    assert bytecode(agent) == written
    for file in agent.rglob("*.pyc"):
        if file.parent.parent.name != "bootstrap":  # which Python's own loader reads
            os.truncate(file, file.stat().st_size // 2)
    written = bytecode(agent)
    assert lines_of_agent(agent, run) == 2
    assert bytecode(agent) == written
