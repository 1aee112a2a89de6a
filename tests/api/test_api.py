"""The Python interface: real runs by its functions, which print nothing to stdout and raise reprokit's errors."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import reprokit
from reprokit.api.commands import option_words
from reprokit.core import errors
from reprokit.model.states import off_in
from tests.support import python, wait_until

TRAININGS = Path(__file__).parents[1] / "trainings"
DRAWS = python("import random; print('drawn', random.random()); open('drawn', 'w').write(str(random.random()))")
UNLIKE = python("import os, time; open('out', 'w').write(str(time.perf_counter_ns()) + os.environ.get('MORE', ''))")


@pytest.fixture(autouse=True)
def _directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.slow
def test_a_killed_recording_goes_on(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    killing = "import os; draw = os.urandom(4).hex(); open('draw', 'a').write(draw + '.')"
    (tmp_path / "fate").write_text("DIES")
    killed = reprokit.record(python(f"{killing}; 'LIVES' in open('fate').read() or os.kill(os.getpid(), 9)"), "first")
    (drawn,) = re.findall("([0-9a-f]{8})[.]", (tmp_path / "draw").read_text())
    (tmp_path / "fate").write_text("LIVES")
    with pytest.raises(errors.NotContinued, match="it has no keyframe"):
        killed.continue_(silent=True)
    run = killed.continue_("second", from_start=True)
    assert (killed.signal, run.exit_code, run.path) == ("SIGKILL", 0, tmp_path / "second")
    assert run.facts.continues is not None
    assert run.facts.continues.run_id == killed.facts.run_id
    assert drawn in (tmp_path / "draw").read_text()
    assert reprokit.verify(run, run.replay())
    assert capfd.readouterr().out == ""


def test_a_command_is_recorded_replayed_and_verified_without_a_word_on_stdout(
    capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    recording = reprokit.record(DRAWS, name="first")
    replay = recording.replay("second")
    verdict = reprokit.verify(recording, replay)
    assert verdict
    assert (verdict.state, verdict.differences, verdict.not_compared) == ("identical", (), ())
    assert verdict.document["verdict"] == "identical"
    assert "identical: everything" in verdict._repr_html_()
    assert (recording.path, replay.path) == (tmp_path / ".reprokit" / "first", tmp_path / "second")
    assert (recording.exit_code, recording.signal, recording.command, recording.recording) == (0, None, DRAWS, None)
    assert replay.recording == recording == reprokit.Run("first")
    assert reprokit.runs() == [recording]
    assert reprokit.runs(tmp_path) == [replay]
    assert "exit code 0" in recording._repr_html_()
    printed = capfd.readouterr()
    assert printed.out == ""
    assert printed.err.count("drawn 0.") == 2
    assert "next:" not in printed.err


def test_what_differs_is_listed_and_what_was_asked_to_be_ignored_is_not(capfd: pytest.CaptureFixture[str]) -> None:
    left, right = (reprokit.record(UNLIKE, silent=True, console=False) for _ in range(2))
    verdict = reprokit.verify(left, right)
    assert not verdict
    assert verdict.state == "different"
    assert [leaf.name.partition(":")[0] for leaf in verdict.differences] == ["out"]
    assert verdict.sentence.startswith("different: out")
    assert [option.option for option in off_in(left.facts.switched_off)] == ["--no-console"]
    with pytest.raises(errors.ReprokitError):
        reprokit.verify(left, right, ignore=["out"], rtol="losses=1")
    assert capfd.readouterr() == ("", "")


def test_how_a_command_ended_is_a_fact_and_no_error() -> None:
    failed = reprokit.record(python("raise SystemExit(3)"), silent=True)
    killed = reprokit.record("sh -c 'kill -9 $$'", silent=True)
    assert (failed.exit_code, failed.signal) == (3, None)
    assert (killed.exit_code, killed.signal) == (None, "SIGKILL")


def drawing() -> None:
    import random

    print(__name__, random.random())


def needs(argument: object) -> None:
    print(argument)


def test_a_function_of_a_module_is_recorded_in_a_process_of_its_own(capfd: pytest.CaptureFixture[str]) -> None:
    run = reprokit.record(drawing)
    assert run.exit_code == 0
    assert reprokit.verify(run, run.replay())
    printed = re.findall(r"^tests\.api\.test_api (0\.\d+)$", capfd.readouterr().err, re.MULTILINE)
    assert len(printed) == 2
    assert len(set(printed)) == 1


def test_a_function_of_a_script_is_recorded_by_that_script(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import reprokit\n\ndef train():\n    print('trained in', __name__)\n\n"
        "if __name__ == '__main__':\n    run = reprokit.record(train)\n    print(run.exit_code, run.command[-1])\n"
    )
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "0 train\n"), done.stderr
    assert "trained in __mp_main__\n" in done.stderr


def test_a_script_that_records_a_function_while_it_is_imported_is_told_where_to(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("import reprokit\n\ndef train():\n    pass\n\nprint(reprokit.record(train).exit_code)\n")
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "1\n"), done.stderr
    assert "below `if __name__ == '__main__':` of a script" in done.stderr


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: reprokit.record(["no-such-program"]), errors.CommandNotFound, "no such program"),
        (lambda: reprokit.record(["true"], keyd=True), errors.UsageError, "'keyd'; did you mean keyed"),
        (lambda: reprokit.record(["true"], seed=True), errors.UsageError, "give a value"),
        (lambda: reprokit.record(["true"], keyed="x"), errors.UsageError, "give True"),
        (lambda: reprokit.record("'"), errors.UsageError, "no sequence of words"),
        (lambda: reprokit.record([]), errors.UsageError, "the command is empty"),
        (lambda: reprokit.record(["a\0b"]), errors.UsageError, "a zero byte"),
        (lambda: reprokit.record(lambda: 1), errors.UsageError, "cannot be found by another process"),
        (lambda: reprokit.record(needs), errors.UsageError, "needs arguments"),  # type: ignore[arg-type]
        (lambda: reprokit.replay("absent"), errors.RunNotFound, "absent does not exist"),
        (lambda: reprokit.verify("absent"), errors.RunNotFound, "absent does not exist"),
        (lambda: reprokit.verify(right="absent"), errors.UsageError, "the left run"),
        (lambda: reprokit.verify(3), errors.UsageError, "3 is neither a name nor a path"),  # type: ignore[arg-type]
        (lambda: reprokit.ask("last", ["w"]), errors.UsageError, "['w'] is neither"),  # type: ignore[arg-type]
        (lambda: reprokit.gate(["true"], update_golden=True), errors.UsageError, "--golden DIR"),
        (lambda: reprokit.gate(["true"], pairs="x"), errors.UsageError, "'x' is not a valid whole number"),
    ],
)
def test_what_cannot_be_done_raises_an_error_of_its_class(
    call: Callable[[], object], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=re.escape(words)) as raised:
        call()
    assert type(raised.value) is error


def test_a_gate_is_true_if_everything_passed() -> None:
    passed = reprokit.gate(DRAWS, silent=True)
    assert passed
    assert {case.outcome for case in passed.trainings[0].cases} == {"passed"}


@pytest.mark.slow
def test_a_gate_is_false_if_anything_differs() -> None:
    failed = reprokit.gate(UNLIKE, "runs", silent=True, pairs=1)
    assert not failed
    assert failed.exit_status == 1
    assert [Path(run).name for run in failed.trainings[0].runs] == ["recording-1", "replay-1"]


def test_an_interruption_ends_the_training_once_and_then_the_caller(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        "import time\nends = []\nopen('begun', 'w').close()\nwhile len(ends) < 5:\n"
        "    try:\n        time.sleep(0.1)\n        ends.extend(ends[:1])\n"
        "    except KeyboardInterrupt:\n        ends.append('once')\n        print('interrupted', flush=True)\n"
    )
    code = "import reprokit, sys; reprokit.record([sys.executable, 'train.py'], 'run')"
    caller = subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.PIPE, text=True, start_new_session=True)
    wait_until(Path("begun").exists, "the training")
    os.killpg(caller.pid, signal.SIGINT)
    assert caller.stderr is not None
    printed = caller.stderr.read()
    assert caller.wait() == -signal.SIGINT
    assert printed.count("interrupted\n") == 1
    assert "KeyboardInterrupt" in printed
    run = reprokit.Run("run")
    assert (run.facts.status, run.exit_code) == ("finished", 0)


def test_options_become_words_of_the_command_line() -> None:
    words = option_words("record", {"keyed": True, "clock": False, "tensors": ["a", "b 1"], "console": False})
    assert words == ["--keyed", "--tensors=a", "--tensors=b 1", "--no-console"]
    assert option_words("record", {"console": True, "output": Path("x"), "seed": None}) == ["--output=x"]
    assert option_words("gate", {"vary": ["locale", "cores"], "pairs": 2}) == ["--vary=locale,cores", "--pairs=2"]
    assert option_words("gate", {"vary": True}) == ["--vary"]


def test_the_package_stays_light_and_its_functions_stay_functions() -> None:
    code = (
        "import sys, reprokit; light = set(sys.modules); import reprokit.verify.runs, reprokit.gate.results;"
        "from reprokit.verify import hosts; print(callable(reprokit.verify), callable(reprokit.gate), hosts.__name__,"
        " *sorted({'msgspec', 'click', 'reprokit.api'} & light))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "True True reprokit.verify.hosts\n"
    assert set(reprokit.__all__) <= set(dir(reprokit))
    with pytest.raises(AttributeError, match="no attribute 'absent'"):
        getattr(reprokit, "absent")  # noqa: B009


class Shell:
    """What of an IPython shell the magic needs."""

    def __init__(self) -> None:
        self.magics: dict[str, Callable[[str, str], Any]] = {}

    def register_magic_function(self, function: Callable[[str, str], Any], magic_kind: str) -> None:
        assert magic_kind == "cell"
        self.magics[function.__name__] = function


def test_a_cell_is_recorded(capfd: pytest.CaptureFixture[str]) -> None:
    shell = Shell()
    reprokit.load_ipython_extension(shell)
    run = shell.magics["reprokit"]("--name cell --no-calendar", "import random\nprint('cell', random.random())\n")
    assert (run.path.name, run.exit_code, run.facts.calendar) == ("cell", 0, False)
    assert reprokit.verify(run, run.replay())
    assert len(set(re.findall(r"^cell 0\.\d+$", capfd.readouterr().err, re.MULTILINE))) == 1
    with pytest.raises(errors.UsageError, match="more than 100 KiB"):
        shell.magics["reprokit"]("", "#" * (101 << 10))


@pytest.mark.slow
def test_a_recording_is_asked_and_a_divergence_located() -> None:
    command = [sys.executable, str(TRAININGS / "pytorch_masked_gradient.py")]
    left, right = (reprokit.record([*command, number], silent=True) for number in ("-1", "3"))
    answer = reprokit.ask(left, "weights", steps="0-3", silent=True)
    assert answer
    assert answer.added > 0
    assert answer.steps == [0, 1, 2, 3]
    assert reprokit.trial(left.path).tensor_names()
    assert not reprokit.ask(left, "no_such_tensor", silent=True)
    located = reprokit.locate(left, right, pairs=1, silent=True)
    assert (located.verdict, located.differs, located.pairs) == ("same", False, 1)


@pytest.mark.slow
def test_a_resumed_training_is_compared() -> None:
    script = TRAININGS / "pytorch_resumed.py"
    Path("train.py").write_bytes(script.read_bytes())
    finding = reprokit.resume([sys.executable, "train.py"], at=12, silent=True)
    assert finding
    assert (finding.verdict, finding.interrupted_at, finding.runs) == ("exact", 12, {})
