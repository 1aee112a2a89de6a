"""Broken and hostile run directories: one clear error each, never a traceback, never 'identical'."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from reprokit import entropy
from reprokit.core.errors import (
    ReprokitError,
    RunDamaged,
    RunError,
    RunInProgress,
    RunNotFound,
    RunNotReadable,
    RunTooNew,
)
from reprokit.model.run import FORMAT, NO_END, RUNNING, timestamp
from reprokit.run_files import rundir
from reprokit.run_files.rundir import RunDirectory
from reprokit.verify.runs import compare
from reprokit.verify.show.summary import summarize
from tests.support import rest_slow

from .profiles import Writing
from .runs import recording, replayed


@pytest.fixture
def small(tmp_path: Path) -> tuple[Path, Path]:
    """Two small runs on disk that are identical; metrics.jsonl is not sealed, as in a crashed run."""
    left = recording(tmp_path / "left")
    left.start()
    left.losses(0.5, 0.25)
    left.add("end")
    right = replayed(left, tmp_path / "right")
    paths = left.write(sealed=False), right.write(sealed=False)
    assert compare(*paths).identical
    return paths


def refused(paths: tuple[Path, Path], error: type[ReprokitError], words: str) -> None:
    """Both verify and show refuse the second run with one line that names it."""
    for attempt in (lambda: compare(*paths), lambda: summarize(paths[1])):
        with pytest.raises(error, match=words) as caught:
            attempt()
        assert "\n" not in str(caught.value)
        assert str(paths[1]) in str(caught.value)


def replace(path: Path, write: Callable[[Path], object]) -> None:
    path.unlink()
    write(path)


def test_missing(small: tuple[Path, Path]) -> None:
    refused((small[0], small[1] / "nowhere"), RunNotFound, "does not exist")


def test_not_a_directory(small: tuple[Path, Path]) -> None:
    refused((small[0], small[1] / rundir.RUN), RunNotFound, "not a directory")


def test_below_a_file(small: tuple[Path, Path]) -> None:
    refused((small[0], small[1] / rundir.RUN / "x"), RunNotFound, "Not a directory")


def test_a_directory_without_a_run(small: tuple[Path, Path]) -> None:
    (small[1] / rundir.RUN).unlink()
    refused(small, RunNotFound, r"holds no run\.json")


@pytest.mark.parametrize("name", ["x\0y", "x" * 5000])
def test_impossible_names(small: tuple[Path, Path], name: str) -> None:
    with pytest.raises(RunNotFound):
        compare(small[0], Path(name))


def test_a_name_that_leads_in_a_circle(small: tuple[Path, Path], tmp_path: Path) -> None:
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    refused((small[0], loop), RunNotFound, "symbolic links")


@pytest.mark.parametrize("name", rest_slow([rundir.OUTPUTS, rundir.RUN, rundir.ENVIRONMENT]))
def test_truncated_at_every_byte(small: tuple[Path, Path], name: str) -> None:
    path = small[1] / name
    data = path.read_bytes()
    for size in range(len(data)):
        path.write_bytes(data[:size])
        with pytest.raises(RunDamaged, match=name):
            compare(*small)


@pytest.mark.parametrize("name", rest_slow([rundir.OUTPUTS, rundir.RUN, rundir.ENVIRONMENT]))
def test_a_flipped_bit_at_every_byte(small: tuple[Path, Path], name: str) -> None:
    path = small[1] / name
    data = path.read_bytes()
    for position in range(len(data)):
        path.write_bytes(flipped(data, position))
        with pytest.raises((RunDamaged, RunTooNew)):
            compare(*small)


def flipped(data: bytes, position: int) -> bytes:
    changed = data[position] ^ (1 << position % 8)
    return data[:position] + bytes([changed]) + data[position + 1 :]


@pytest.mark.slow
def test_metrics_truncated_at_every_byte(small: tuple[Path, Path]) -> None:
    path = small[1] / rundir.METRICS
    data = path.read_bytes()
    for size in range(len(data)):
        path.write_bytes(data[:size])
        assert not never_identical(small)


@pytest.mark.slow
def test_metrics_with_a_flipped_bit_at_every_byte(small: tuple[Path, Path]) -> None:
    """Without a seal a flipped digit is just another value; it must only never end in a traceback."""
    path = small[1] / rundir.METRICS
    data = path.read_bytes()
    for position in range(len(data)):
        path.write_bytes(flipped(data, position))
        never_identical(small)


def never_identical(paths: tuple[Path, Path]) -> bool:
    try:
        return compare(*paths).identical
    except RunError:
        return False


def test_sealed_metrics_with_a_flipped_bit_at_every_byte(tmp_path: Path) -> None:
    left = recording(tmp_path / "left")
    left.losses(0.5)
    right = replayed(left, tmp_path / "right")
    paths = left.write(), right.write()
    path = paths[1] / rundir.METRICS
    data = path.read_bytes()
    for position in range(len(data)):
        path.write_bytes(flipped(data, position))
        with pytest.raises(RunError):
            compare(*paths)
    path.unlink()
    refused(paths, RunDamaged, r"metrics\.jsonl is missing")


def test_a_newer_format(small: tuple[Path, Path]) -> None:
    newer = {"format": FORMAT + 1, "runs": ["everything is different now"]}
    rundir.write_json(small[1] / rundir.RUN, newer)
    refused(small, RunTooNew, "upgrade reprokit")


@pytest.mark.parametrize("name", [rundir.RUN, rundir.METRICS, rundir.OUTPUTS, rundir.ENVIRONMENT])
class TestNotAFile:
    def test_symbolic_link(self, small: tuple[Path, Path], name: str) -> None:
        replace(small[1] / name, lambda path: path.symlink_to(small[0] / name))
        refused(small, RunDamaged, "symbolic link")

    def test_dangling_symbolic_link(self, small: tuple[Path, Path], name: str) -> None:
        replace(small[1] / name, lambda path: path.symlink_to("nowhere"))
        refused(small, RunDamaged, "symbolic link")

    def test_fifo_does_not_hang(self, small: tuple[Path, Path], name: str) -> None:
        replace(small[1] / name, os.mkfifo)
        refused(small, RunDamaged, "not a regular file")

    def test_directory(self, small: tuple[Path, Path], name: str) -> None:
        replace(small[1] / name, Path.mkdir)
        refused(small, RunDamaged, "not a regular file")

    def test_endless_device(self, small: tuple[Path, Path], name: str) -> None:
        replace(small[1] / name, lambda path: path.symlink_to("/dev/zero"))
        refused(small, RunDamaged, "symbolic link")

    @pytest.mark.parametrize("data", [b"", b"\n", b"[]\n", b"null\n", b'"x"\n', b"\xff\n", b"{}{}\n", b"{\n", b"\0\n"])
    def test_no_json_object(self, small: tuple[Path, Path], name: str, data: bytes) -> None:
        (small[1] / name).write_bytes(data)
        if not (name == rundir.METRICS and not data):  # no lines at all are no damage, but a difference
            refused(small, RunDamaged, name)
        assert not never_identical(small)

    @pytest.mark.parametrize("opening", [b"[", b'{"a":'])
    def test_deep_nesting(self, small: tuple[Path, Path], name: str, opening: bytes) -> None:
        (small[1] / name).write_bytes(b'{"a":' + opening * 200_000 + b"\n")
        refused(small, RunDamaged, name)

    def test_huge_number(self, small: tuple[Path, Path], name: str) -> None:
        (small[1] / name).write_bytes(b'{"format":' + b"9" * 100_000 + b"}\n")
        refused(small, RunDamaged, name)


@pytest.mark.parametrize("name", [rundir.RUN, rundir.OUTPUTS, rundir.ENVIRONMENT])
def test_a_sparse_gigabyte_is_not_read(small: tuple[Path, Path], name: str) -> None:
    os.truncate(small[1] / name, 1 << 30)
    refused(small, RunDamaged, "is larger than")


def test_metrics_of_terabytes(small: tuple[Path, Path]) -> None:
    os.truncate(small[1] / rundir.METRICS, 8 << 40)
    refused(small, RunDamaged, "is larger than")


def test_an_endless_line(small: tuple[Path, Path]) -> None:
    os.truncate(small[1] / rundir.METRICS, 100 << 20)
    refused(small, RunDamaged, "is longer than")


def test_more_series_than_any_training_has(small: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    from reprokit.verify.read import scan

    monkeypatch.setattr(scan, "MAX_SERIES", 1)
    log = {"k": "log", "p": "0", "t": 0, "value": {"dtype": "int", "decimal": 1}}
    lines = [json.dumps({**log, "n": number, "name": f"\x1b[31m{number}"}) for number in range(3)]
    (small[1] / rundir.METRICS).write_text("\n".join(lines) + "\n")
    refused(small, RunDamaged, r"more than 1 series, like \\x1b\[31m1")


@pytest.mark.parametrize(
    "line",
    [
        '{"k": "loss"}',
        '{"k": 7, "p": "0", "n": 0, "t": 0}',
        '{"k": null, "p": "0", "n": 0, "t": 0, "name": {"a": 1}}',
        '{"k": ["loss"], "p": "0", "n": 0, "t": 0}',
        '{"k": "future", "p": 7, "n": 0, "t": 0}',
        '{"k": "future", "p": "0", "n": -1, "t": 0}',
        '{"k": "end", "p": "0", "n": 1e999, "t": 0}',
        '{"k": "weights", "p": "0", "n": 0, "t": 0, "at": "noon", "object": "m", "digest": "sha256:0"}',
    ],
)
def test_lines_that_lack_what_their_kind_must_hold(small: tuple[Path, Path], line: str) -> None:
    with (small[1] / rundir.METRICS).open("a") as file:
        file.write(line + "\n")
    with pytest.raises(RunDamaged, match="line 5: "):
        compare(*small)


def test_in_progress(tmp_path: Path) -> None:
    building = recording(tmp_path / "run")
    building.losses(0.5)
    building.run.status, building.run.exit_code = RUNNING, None
    building.run.host = os.uname().nodename
    building.run.launcher_pid, building.run.launcher_started = os.getpid(), psutil.Process().create_time()
    path = building.write(sealed=False)
    with pytest.raises(RunInProgress, match=f"process {os.getpid()}; wait for it to end"):
        compare(path, path)
    assert summarize(path).state == f"in progress (process {os.getpid()})"


def test_a_launcher_that_ended_and_that_nobody_waits_for(tmp_path: Path) -> None:
    building = recording(tmp_path / "run")
    building.losses(0.5)
    building.run.status, building.run.exit_code, building.run.host = RUNNING, None, os.uname().nodename
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as launcher:
        building.run.launcher_pid = launcher.pid
        building.run.launcher_started = psutil.Process(launcher.pid).create_time()
        path = building.write(sealed=False)
        assert rundir.RunDirectory(path).in_progress
        launcher.kill()
        os.waitid(os.P_PID, launcher.pid, os.WEXITED | os.WNOWAIT)  # it stays a zombie
        assert not rundir.RunDirectory(path).in_progress
        assert NO_END in summarize(path).state


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("launcher_pid", -1),
        ("launcher_pid", 1 << 63),
        ("exit_code", 256),
        ("exit_code", -9),
        ("signal", "SIGKILL\nfaked"),
        ("started", "yesterday"),
        ("ended", "2026-01-01T00:00:00+02:00"),
        ("duration", -0.5),
        ("duration", 1e300),
        ("environment_size", -1),
        ("key", "0" * 63),
        ("fidelity", {"exact": -1}),
        ("metrics", {"size": -1, "digest": "sha256:" + "0" * 64}),
        ("metrics", {"size": 1, "digest": "sha256:0"}),
        ("host", "h" * ((1 << 20) + 1)),
        ("command", ["c" * ((1 << 20) + 1)]),
    ],
)
def test_values_that_no_launcher_writes(small: tuple[Path, Path], key: str, value: object) -> None:
    content = json.loads((small[0] / rundir.RUN).read_text())
    del content["check"]
    rundir.write_json(small[0] / rundir.RUN, {**content, key: value})
    with pytest.raises(RunDamaged, match=key):
        compare(*small)


@pytest.mark.parametrize("pid", [0, -1, 1 << 40, 1 << 80])
def test_launchers_that_cannot_be(pid: int) -> None:
    assert not rundir.process_alive(pid, 0.0)


def test_half_a_last_line_of_a_crashed_run_is_left_out(small: tuple[Path, Path]) -> None:
    for path in small:
        run = RunDirectory(path).run
        run.status, run.exit_code = RUNNING, None
        rundir.write_json(path / rundir.RUN, run)
    with (small[1] / rundir.METRICS).open("a") as file:
        file.write('{"k": "loss", "p": "0", "n"')
    assert compare(*small).identical


AS_SOMEBODY_ELSE = """
    import os, sys
    from pathlib import Path
    from reprokit.core.errors import ReprokitError
    from reprokit.verify.runs import compare
    left, right, bad = (Path(name) for name in sys.argv[1:])
    assert compare(left, right).identical
    bad.chmod(0)
    if os.geteuid() == 0:
        os.setegid(65534)
        os.seteuid(65534)
    try:
        compare(left, right)
    except ReprokitError as error:
        print(error.slug, error)
"""


@pytest.mark.parametrize("name", [".", rundir.RUN, rundir.METRICS, rundir.OUTPUTS, rundir.ENVIRONMENT])
def test_what_belongs_to_somebody_else(small: tuple[Path, Path], open_directory: Path, name: str) -> None:
    left, right = (shutil.copytree(path, open_directory / path.name) for path in small)
    for path in (left, right, *left.iterdir(), *right.iterdir()):
        path.chmod(0o755)
    script = textwrap.dedent(AS_SOMEBODY_ELSE)
    done = subprocess.run([sys.executable, "-c", script, left, right, right / name], capture_output=True, text=True)
    (right / name).chmod(0o700)
    assert done.stderr == ""
    assert done.stdout.startswith("run-not-readable ")
    assert "may not be read by this user" in done.stdout


@pytest.fixture
def open_directory() -> object:
    """A directory that every user may enter, unlike pytest's own."""
    import tempfile

    with tempfile.TemporaryDirectory() as name:
        os.chmod(name, 0o755)
        yield Path(name)


def test_file_names_that_are_no_utf8(tmp_path: Path) -> None:
    building = recording(tmp_path / "run")
    building.run.command.append(os.fsdecode(b"caf\xe9"))
    building.add("log", name=os.fsdecode(b"\xff"), step=0, epoch=None, value={"dtype": "str", "text": "\ud800"})
    path = building.write()
    assert RunDirectory(path).run.command[-1] == os.fsdecode(b"caf\xe9")
    assert compare(path, path).identical


def test_a_run_of_an_earlier_format_is_refused(tmp_path: Path) -> None:
    path = Path(recording(tmp_path / "run").write())
    content = json.loads((path / rundir.RUN).read_text())
    rundir.write_json(path / rundir.RUN, {**content, "format": 7})
    with pytest.raises(RunNotReadable, match=r"run.json has format 7 of an earlier reprokit.*; record the run again"):
        RunDirectory(path)


def test_errors_that_no_system_has(tmp_path: Path) -> None:
    Writing(gave_up=(1, 2**32 - 1)).write(tmp_path / "0000000000000000-0.entropy")
    (tmp_path / f"0000000000000000-1-2-{10**80}.lost").touch()
    given_up, lost = entropy.gave_up(tmp_path)
    assert "(error 4294967295)" in given_up
    assert f"(error {10**80})" in lost


def test_a_time_that_no_calendar_has_is_none() -> None:
    assert timestamp("1970-01-01T00:01:00Z") == 60
    assert [timestamp(time) for time in ("", "2026-19-39T29:59:69Z")] == [None, None]
