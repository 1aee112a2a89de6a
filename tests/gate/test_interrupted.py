"""A gate that somebody ends: what was not checked is said to be so, by a status and in every report."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from reprokit.run.stragglers import processes
from tests.support import LIMIT, Reprokit, rest_slow, wait_until

WAITS = """
import os, subprocess
subprocess.Popen(["sleep", "300"])  # does not end with its parent
open("started", "w").close()
os.read(0, 1)
"""
TRAININGS = f"""
[[training]]
name = "a"
command = [{json.dumps(sys.executable)}, "waits.py"]
[[training]]
name = "b"
command = [{json.dumps(sys.executable)}, "waits.py"]
"""


@pytest.mark.parametrize("number", rest_slow([signal.SIGINT, signal.SIGTERM, signal.SIGHUP]))
def test_every_report_says_not_checked(number: signal.Signals, reprokit: Reprokit) -> None:
    here = reprokit.directory
    (here / "runs").mkdir()
    (here / "waits.py").write_text(WAITS)
    (here / "reprokit.toml").write_text(TRAININGS)
    reports = ["--junit", "j.xml", "--sarif", "s.sarif", "--gitlab", "q.json", "--summary", "m.md", "--json"]
    gate = reprokit.start("gate", *reports, stdin=subprocess.PIPE, env={**os.environ, "TMPDIR": str(here / "runs")})
    wait_until((here / "started").exists, "the training")
    (run,) = (here / "runs").glob("*/a/recording-1")
    wait_until(lambda: len(list(processes(run))) == 2, "the training's helper, whose environment is seen once it runs")
    gate.send_signal(number)
    out, err = gate.communicate(timeout=LIMIT)
    assert gate.returncode == 128 + number, err
    assert "reprokit" not in err.partition("Traceback")[2].partition("KeyboardInterrupt")[0]
    assert not list((here / "runs").iterdir())
    assert not list(processes(run))
    found = json.loads(out)
    assert (found["outcome"], found["interrupted"]) == ("not checked", number)
    assert [one["outcome"] for one in found["trainings"]] == ["not checked"] * 2
    errors = ET.parse(here / "j.xml").getroot().findall(".//error")
    assert [(error.get("type"), error.get("message")) for error in errors] == [
        ("not checked", f"interrupted by {number.name}")
    ] * 2
    (logged,) = json.loads((here / "s.sarif").read_text())["runs"]
    assert logged["invocations"][0]["exitSignalName"] == number.name
    assert (logged["invocations"][0]["executionSuccessful"], len(logged["results"])) == (False, 2)
    assert "reprokit gate: not checked" in (here / "m.md").read_text()


@pytest.mark.slow
def test_a_bare_run_is_ended_too(reprokit: Reprokit) -> None:
    script = "import os\nif 'REPROKIT_RUN' in os.environ: open('model.bin', 'w').close()\nelse:\n"
    (reprokit.directory / "waits.py").write_text(script + " open('started', 'w').close()\n os.read(0, 1)\n")
    command = ["gate", "--max-overhead", "9", "--", sys.executable, "waits.py"]
    gate = reprokit.start(*command, stdin=subprocess.PIPE)
    wait_until((reprokit.directory / "started").exists, "the bare run")
    gate.send_signal(signal.SIGTERM)
    out, err = gate.communicate(timeout=LIMIT)
    assert gate.returncode == 128 + signal.SIGTERM, err
    assert "paired not checked" in out


@pytest.mark.slow
def test_of_a_marked_test_too(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(
        "import pytest, time\n@pytest.mark.reproducible\ndef test_waits():\n"
        "    open('started', 'w').close()\n    time.sleep(300)\n"
    )
    (tmp_path / "runs").mkdir()
    pytest_of_user = subprocess.Popen(
        [sys.executable, "-m", "pytest", "-q", "-p", "reprokit.pytest_plugin", "--rootdir=."],
        cwd=tmp_path,
        env={**os.environ, "TMPDIR": str(tmp_path / "runs"), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    wait_until((tmp_path / "started").exists, "the test")
    pytest_of_user.send_signal(signal.SIGTERM)
    out, _ = pytest_of_user.communicate(timeout=LIMIT)
    assert pytest_of_user.returncode == 128 + signal.SIGTERM, out
    assert "reprokit: interrupted by SIGTERM" in out
    assert not list((tmp_path / "runs").glob("reprokit-pytest-*"))


def test_where_reports_cannot_go_is_said_before_the_training(reprokit: Reprokit) -> None:
    for option in ("--junit", "--sarif", "--gitlab", "--summary"):
        done = reprokit.run("gate", option, "nowhere/report", "--", "touch", "started")
        assert (done.returncode, "cannot-write-report" in done.stderr) == (2, True)
    assert not (reprokit.directory / "started").exists()
