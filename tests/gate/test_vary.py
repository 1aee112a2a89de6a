"""The gate in other surroundings: trainings that read one thing of theirs, and one that reads none."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from reprokit.gate import start_conditions
from reprokit.gate.results import FAILED, PASSED, TROUBLE, Case, GateVerdict, TrainingResult
from reprokit.gate.start_conditions import TOGETHER, VARIATIONS, VariedReplay, chosen, other_locale
from reprokit.run.checkout_copy import CheckoutCopy, CopyBounds, CopyTooLarge
from tests.support import Done, Reprokit, training_text

ESTONIAN = "et_EE.utf8"  # where z comes before t

TRAINING = training_text("varied_readings.py")

WITHOUT_NAMESPACES = """
from reprokit.run.kernel import Namespaces
Namespaces.refused = lambda self: "Operation not permitted"
from reprokit.cli.main import main
main()
"""


@pytest.fixture
def project(tmp_path: Path) -> Reprokit:
    """A checkout in whose subdirectory trainings run."""
    subprocess.run(["git", "init", "--quiet", str(tmp_path)], check=True)
    (tmp_path / ".gitignore").write_text("data/\n")
    reprokit = Reprokit(tmp_path / "training")
    (reprokit.directory / "data").mkdir(parents=True)
    for name in ("one", "two", "three"):
        (reprokit.directory / "data" / name).touch()
    reprokit.script("train.py", TRAINING)
    return reprokit


@pytest.fixture(scope="module")
def locales(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with one that orders letters in its own way."""
    directory = tmp_path_factory.mktemp("locales")
    command = ["localedef", "-i", "et_EE", "-f", "UTF-8", str(directory / ESTONIAN)]
    try:
        subprocess.run(command, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("this system has no localedef, or no sources of locales")
    return directory


def gate(
    project: Reprokit, *options: str, starts: Sequence[str] = (), environment: dict[str, str] | None = None
) -> Done:
    return project.run("gate", *options, "--", sys.executable, "train.py", *starts, environment=environment)


def cases(done: Done, suite: str = "varied") -> dict[str, Case]:
    (training,) = json.loads(done.stdout)["trainings"]
    return {case["name"]: Case(**case) for case in training["cases"] if case["suite"] == suite}


def test_what_reads_nothing_of_its_surroundings_passes(project: Reprokit) -> None:
    done = gate(project, "--vary", "--json", "-o", "runs")
    assert done.returncode == 0, done.stdout + done.stderr
    assert {name: case.outcome for name, case in cases(done).items()} == dict.fromkeys(VARIATIONS, PASSED)
    runs = [Path(run) for run in json.loads(done.stdout)["trainings"][0]["runs"]]
    assert [run.name for run in runs[:3]] == ["recording-1", "replay-1", "varied-1-all"]
    made = [words.partition(" on purpose: ")[0] for run in runs[2:] for words in project.facts(run)["changed"]]
    assert sorted(made) == sorted(VARIATIONS)
    directory = project.facts(runs[2])["working_directory"]
    assert directory.endswith("-elsewhere/training")
    assert not Path(directory).exists()


@pytest.mark.slow
def test_each_training_differs_by_what_it_reads_alone(project: Reprokit, locales: Path) -> None:
    """Seven trainings in one script, each begun by one thing: a variation changes the losses of one of them."""
    done = gate(project, "--vary", "--json", starts=list(VARIATIONS), environment={"LOCPATH": str(locales)})
    assert done.returncode == 1
    found = cases(done)
    assert {name: case.outcome for name, case in found.items()} == dict.fromkeys(VARIATIONS, FAILED)
    for name, case in found.items():
        assert f"process metrics: log {name} " in case.message
        assert " more" not in case.message, case.message
    assert {case.outcome for case in cases(done, "paired").values()} == {PASSED}


def test_a_seed_that_the_replay_gives_again_hides_nothing(project: Reprokit) -> None:
    """One by the clock is another one in every replay, and no matter of surroundings."""
    seeded = (
        "import os, random, reprokit, time\nrandom.seed(time.time_ns())\nreprokit.log(step=0, loss=random.random())\n"
    )
    project.script("train.py", seeded)
    assert gate(project, "--no-calendar", "--vary", "working-directory").returncode == 0
    project.script("train.py", seeded + "random.seed(os.getcwd())\n")
    done = gate(project, "--no-calendar", "--vary", "working-directory", "--json")
    assert done.returncode == 1
    message = cases(done)["working-directory"].message
    assert "seeds of process 0: 2 seeds are not as recorded, 1 in the same surroundings" in message


@pytest.mark.slow
def test_where_nothing_can_be_mounted_a_copy_is_made(project: Reprokit) -> None:
    """Its ignored data are reached by a link, its results are called as before."""
    script = project.script("gate.py", WITHOUT_NAMESPACES)
    starts = ["working-directory", "host-name"]
    arguments = ["gate", "--vary", "working-directory,host-name,file-order", "--json", "--", sys.executable, "train.py"]
    done = subprocess.run(
        [sys.executable, str(script), *arguments, *starts], cwd=project.directory, capture_output=True, text=True
    )
    assert done.returncode == 1, done.stdout + done.stderr
    found = cases(done)
    assert {name: case.outcome for name, case in found.items()} == {
        **dict.fromkeys(starts, FAILED),
        "file-order": PASSED,
    }
    assert "a copy (4 files, 2 large, ignored or foreign ones linked)" in found["working-directory"].message
    assert all("outputs" not in case.message for case in found.values())


@pytest.mark.slow
def test_what_cannot_be_varied_is_no_success(project: Reprokit) -> None:
    usable = os.sched_getaffinity(0)
    os.sched_setaffinity(0, [min(usable)])
    try:
        done = gate(project, "--vary", "cores,time-zone", "--json")
    finally:
        os.sched_setaffinity(0, usable)
    assert done.returncode == 2
    found = cases(done)
    assert (found["cores"].outcome, found["time-zone"].outcome) == (TROUBLE, PASSED)
    assert "not varied: only one processor" in found["cores"].message


def test_what_differs_without_is_not_blamed_on_surroundings(project: Reprokit) -> None:
    project.script("train.py", "import reprokit, time\nreprokit.log(step=0, loss=time.time())\n")
    done = gate(project, "--no-calendar", "--vary", "time-zone", "--json")
    assert done.returncode == 1
    assert cases(done)["time-zone"].message.startswith("not tried")
    assert gate(project).returncode == 0


def test_a_list_says_what_is_varied(project: Reprokit) -> None:
    text = f'[[training]]\nname = "a"\ncommand = [{json.dumps(sys.executable)}, "train.py", "time-zone"]\n'
    (project.directory / "reprokit.toml").write_text(text + 'vary = ["time-zone"]\n')
    done = project.run("gate")
    assert done.returncode == 1
    assert "paired passed, varied failed" in done.stdout
    assert "time-zone: this variation makes the training differ (Etc/GMT-14 (+14 hours from UTC))" in done.stdout
    (project.directory / "reprokit.toml").write_text(text + 'vary = ["moon"]\n')
    for done in (project.run("gate"), gate(project, "--vary", "moon")):
        assert (done.returncode, len(done.stderr.splitlines())) == (2, 1)
        assert "moon" in done.stderr


DIFFERENT = Case(suite="varied", name="outputs: a", outcome=FAILED, message="a differs")
SAME = Case(suite="varied", name="outputs: a", outcome=PASSED)


def test_several_that_make_a_difference_only_together() -> None:
    def attempt(names: Sequence[str]) -> VariedReplay:
        return VariedReplay(words=dict.fromkeys(names, "so"), refused={}, cases=[DIFFERENT if len(names) > 1 else SAME])

    found = {case.name: case.outcome for case in start_conditions.search("varied", ["cores", "locale"], attempt)}
    assert found == {"cores": PASSED, "locale": PASSED, TOGETHER: FAILED}


def test_a_replay_that_could_not_be_made_is_no_difference() -> None:
    unknown = Case(suite="varied", name="the replay", outcome=TROUBLE, message="no such program")
    tried = VariedReplay(words={"cores": "1 of 2"}, refused={"locale": "none"}, cases=[unknown])
    found = list(start_conditions.search("varied", ["cores", "locale"], lambda _names: tried))
    assert {case.name: case.outcome for case in found} == {"locale": TROUBLE, "cores": TROUBLE}


def test_a_difference_is_told_before_what_nobody_can_say() -> None:
    trouble = Case(suite="golden", name="golden", outcome=TROUBLE)
    one = TrainingResult(name="a", command=("x",), directory="/", cases=(trouble, DIFFERENT))
    silent = TrainingResult(name="b", command=("x",), directory="/", cases=())
    assert (one.outcome(), one.outcome("golden")) == (FAILED, TROUBLE)
    assert GateVerdict(reprokit="1", started="", machine="", trainings=(one, silent)).exit_status == 1
    assert GateVerdict(reprokit="1", started="", machine="", trainings=(silent,)).exit_status == 2


def test_names_come_in_one_order() -> None:
    assert chosen(["cores", "host-name", "cores"]) == ("host-name", "cores")
    assert chosen(["all"]) == tuple(VARIATIONS)
    assert chosen([]) == ()


@pytest.mark.parametrize(
    ("before", "installed", "expected"),
    [
        ("C.UTF-8", ["C", "C.utf8", "POSIX"], "C"),
        ("", ["C", "C.utf8", "POSIX"], "C.utf8"),
        ("de_DE.UTF-8", ["C", "de_AT.utf8", "de_DE.utf8", "et_EE", "et_EE.utf8"], "et_EE.utf8"),
        ("de_DE.UTF-8", ["C", "C.utf8", "de_DE.utf8"], "C"),
        ("C", ["C", "POSIX"], None),
    ],
)
def test_another_locale(before: str, installed: list[str], expected: str | None) -> None:
    assert other_locale(before, installed) == expected


def test_a_copy_has_bounds(tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "source" / "below" / "target"
    target.mkdir(parents=True)
    (source / "loop").symlink_to(source)
    for name in ("a", "b"):
        (source / name).touch()
    copy = CheckoutCopy(source, target, CopyBounds(files=2))
    copy.make()
    assert sorted(os.listdir(target)) == ["a", "b", "loop"]
    (source / "c").touch()
    (tmp_path / "other").mkdir()
    with pytest.raises(CopyTooLarge):
        CheckoutCopy(source, tmp_path / "other", CopyBounds(files=2)).make()
