"""The agent's start: in every supported Python, beside the user's own sitecustomize, and where it must stay away."""

from __future__ import annotations

import json
import subprocess
from ast import literal_eval
from pathlib import Path

import pytest

from reprokit.agent.core import json_text
from tests.agent.training import BOOTSTRAP, Training
from tests.interpreters import ROOT, available, interpreter

FACTS = """
import sys
print(sys.path, [name for name in ("sitecustomize", "usercustomize") if name in sys.modules])
"""


def test_a_plain_script_is_framed_by_agent_and_end(any_training: Training) -> None:
    outcome = any_training.run("import random, sys; print(sys.argv)", "an argument", "x\udcff")
    assert (outcome.status, outcome.errors) == (0, "")
    agent = outcome.one("agent")
    assert agent["argv"] == [any_training.python, "train.py", "an argument", "x\\udcff"]
    assert agent["implementation"] == "cpython"
    assert agent["agent"] == 1
    assert agent["python"].startswith(Path(any_training.python).resolve().name.replace("python", "")[:1])
    assert [line["k"] for line in outcome.lines] == ["agent", "random_state", "end"]
    assert [line["n"] for line in outcome.lines] == [0, 1, 2]
    assert {line["p"] for line in outcome.lines} == {"0"}


def test_the_oldest_python_reads_every_file_of_the_agent() -> None:
    files = [str(file) for file in (ROOT / "reprokit/agent").rglob("*.py")]
    read = "import sys\nfor file in sys.argv[1:]: compile(open(file, encoding='utf-8').read(), file, 'exec')"
    oldest = next(iter(available().values()))
    done = subprocess.run([oldest, "-c", read, *files], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


ROOMS = """
import importlib, sys
for name in sys.argv[1:]:
    importlib.import_module("_reprokit_agent." + name)
print({type(module.__loader__).__name__ for name, module in sys.modules.items() if "_reprokit_agent" in name})
"""


def test_every_room_of_the_agent_is_loaded_by_what_writes_no_bytecode(any_training: Training) -> None:
    agent = ROOT / "reprokit/agent"
    rooms = [".".join(file.parent.relative_to(agent).parts) for file in agent.glob("*/**/__init__.py")]
    assert "questions" in rooms
    outcome = any_training.run(ROOMS, *rooms)
    assert (outcome.status, outcome.output, outcome.errors) == (0, "{'_Loader'}\n", "")


def test_a_feature_that_fails_to_start_leaves_the_plan_and_the_other_features_alone(training: Training) -> None:
    environment = training.environment()
    plan = training.run_directory / "plan.json"
    wrong = {"patches": [{}], "profiling": ["wrong"], "question": "wrong", "quiet": True}
    plan.write_text(json.dumps({**json.loads(plan.read_text()), **wrong}))
    training.write("train.py", "import os, random; print(type(os.listdir).__name__)")
    outcome = training.command([training.python, "train.py"], environment)
    assert (outcome.status, outcome.output, outcome.errors) == (0, "builtin_function_or_method\n", "")
    failed = ["patches.start", "operators.start", "questions.start"]
    assert [line["text"].partition(":")[0] for line in outcome.of("warning")] == failed
    assert [line["k"] for line in outcome.lines] == ["agent", "warning", "warning", "warning"]


def test_the_program_sees_python_as_it_is_without_the_agent(any_training: Training) -> None:
    bare, watched = any_training.run_bare(FACTS), any_training.run(FACTS)
    assert watched.output == bare.output
    assert watched.one("agent")


def test_the_users_own_sitecustomize_takes_the_place(any_training: Training) -> None:
    own = any_training.write("own/sitecustomize.py", "print('own sitecustomize')").parent
    outcome = any_training.run("import sitecustomize; print(sitecustomize.__file__)", python_path=[own])
    assert outcome.output == f"own sitecustomize\n{own / 'sitecustomize.py'}\n"
    assert outcome.one("end")


@pytest.mark.parametrize("failure", ["import no_such_module", "raise ValueError('mine')", "raise SystemExit(3)"])
def test_a_failure_of_the_users_own_sitecustomize_stays_the_users(any_training: Training, failure: str) -> None:
    own = any_training.write("own/sitecustomize.py", failure).parent
    bare = any_training.run_bare("print('trained')", python_path=[own])
    watched = any_training.run("print('trained')", python_path=[own])
    assert (watched.status, watched.output) == (bare.status, bare.output)
    if "SystemExit" not in failure:  # which prints a traceback of the start, with one frame more
        assert watched.errors == bare.errors
        assert watched.one("end")


@pytest.mark.parametrize("option", ["-S", "-I", "-E"])
def test_a_python_that_is_told_to_ignore_us_does(any_training: Training, option: str) -> None:
    outcome = any_training.run("print('trained')", options=[option])
    assert (outcome.status, outcome.output, outcome.lines) == (0, "trained\n", [])


@pytest.mark.parametrize("version", ["2.7", "3.6"])
def test_a_python_too_old_is_left_alone(tmp_path: Path, version: str) -> None:
    python = interpreter(version)
    if python is None:
        pytest.skip(f"no CPython {version} here; newer ones are tested")
    training = Training(tmp_path, python=python)
    own = training.write("own/sitecustomize.py", "print('own sitecustomize')").parent
    outcome = training.run(FACTS, python_path=[own])
    assert (outcome.status, outcome.errors, outcome.lines) == (0, "", [])
    assert outcome.output.startswith("own sitecustomize\n")
    assert str(BOOTSTRAP) not in outcome.output


@pytest.mark.parametrize("missing", ["REPROKIT_RUN", "plan.json"])
def test_outside_a_run_the_bootstrap_does_nothing(training: Training, missing: str) -> None:
    environment = training.environment()
    if missing == "plan.json":
        (training.run_directory / missing).unlink()
    else:
        del environment[missing]
    command = [training.python, "-c", "import sys; print('_reprokit_agent' in sys.modules)"]
    outcome = training.command(command, environment)
    assert (outcome.output, outcome.lines) == ("False\n", [])


def test_a_run_directory_that_went_away_harms_nothing(training: Training) -> None:
    outcome = training.run("import shutil, sys; shutil.rmtree('run'); import random; random.seed(3); print('trained')")
    assert (outcome.status, outcome.output, outcome.errors, outcome.lines) == (0, "trained\n", "", [])


def test_no_descriptor_stays_open(training: Training) -> None:
    script = "import os; print(sorted(os.listdir('/proc/self/fd')))"
    assert training.run(script).output == training.run_bare(script).output


def test_starting_imports_next_to_nothing(any_training: Training) -> None:
    script = "import sys; print(sorted(name for name in sys.modules if not name.startswith('_reprokit_agent')))"
    bare = set(literal_eval(any_training.run_bare(script).output))
    watched = set(literal_eval(any_training.run(script).output))
    cheap = {"__future__", "_functools", "_json", "atexit", "itertools", "time", "types", "warnings"}
    assert {name for name in watched - bare if not name.startswith("importlib")} <= cheap


def test_a_working_directory_that_is_gone_harms_nothing(any_training: Training) -> None:
    script = "import os, subprocess, sys; os.mkdir('gone'); os.chdir('gone'); os.rmdir('../gone')\n"
    script += "subprocess.check_call([sys.executable, '-c', 'print(0)'], env=dict(os.environ, PYTHONPATH=path))"
    own = any_training.write("own/sitecustomize.py", "print('own sitecustomize')").parent
    path = f"{BOOTSTRAP}:{own}"
    outcome = any_training.run(f"path = {path!r}\n{script}")
    assert (outcome.status, outcome.errors) == (0, "")
    assert outcome.output == "own sitecustomize\n0\n"
    assert len(outcome.of("agent")) == 2


PLANS = ['{"a": [1, 2.5, null, true, "\\u00e9\\n"], "b": {}}\n', " [] ", '"\\ud800"']


@pytest.mark.parametrize("text", PLANS)
def test_json_is_read_as_the_module_reads_it(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert json_text.from_json(text) == json.loads(text)
    monkeypatch.setattr(json_text, "_make_scanner", None)  # of a Python without its C accelerator
    assert json_text.from_json(text) == json.loads(text)


@pytest.mark.parametrize("text", ["", "{", "{} 1", "nothing"])
def test_what_is_no_json_is_refused(text: str) -> None:
    with pytest.raises(json.JSONDecodeError):
        json_text.from_json(text)


def test_the_plan_is_read_without_the_json_module(training: Training) -> None:
    assert training.run("import sys; print('json' in sys.modules)").output == "False\n"
