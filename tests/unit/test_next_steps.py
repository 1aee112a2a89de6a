"""What verify says to do next: what cures the difference, where that is known."""

from __future__ import annotations

import re
import subprocess
import sys
from functools import cache
from importlib import metadata
from pathlib import Path

import pytest
from msgspec import structs

from reprokit.cli.next_steps import NextStep, VerdictFacts, chosen, words
from reprokit.model.states import Uncovered
from reprokit.verify.runs import compare
from tests.verify.runs import Building, float32, recording, replayed, training

CLOCK = frozenset(["clock"])
TABLE = [
    (VerdictFacts(differs=False), NextStep.REPORT),
    (VerdictFacts(differs=False, sources=CLOCK, is_separate=True), NextStep.REPORT),
    (VerdictFacts(), NextStep.REPRODUCE),
    (VerdictFacts(category="outputs"), NextStep.REPRODUCE),
    (VerdictFacts(category="console", sources=frozenset(["memory", "program"])), NextStep.REPRODUCE),
    (VerdictFacts(category="outputs", sources=CLOCK), NextStep.CLOCK),
    (VerdictFacts(category="outputs", sources=CLOCK, has_clock=True), NextStep.REPRODUCE),
    (VerdictFacts(sources=frozenset(["instructions"])), NextStep.HIDE_RDRAND),
    (VerdictFacts(sources=frozenset(["instructions", "clock"])), NextStep.CLOCK),
    (VerdictFacts(sources=frozenset(["instructions"]), hides_rdrand=True), NextStep.REPRODUCE),
    (VerdictFacts(category="trail", quantity="gradients", is_locatable=True), NextStep.LOCATE),
    (VerdictFacts(category="trail", quantity="gradients", is_locatable=True, sources=CLOCK), NextStep.LOCATE),
    (VerdictFacts(category="trail", quantity="batch", is_locatable=True), NextStep.LOCATE),
    (VerdictFacts(category="trail", quantity="batch", is_locatable=True, sources=CLOCK), NextStep.CLOCK),
    (VerdictFacts(category="trail", quantity="batch", sources=CLOCK, is_separate=True), NextStep.REPLAY),
    (VerdictFacts(category="command"), NextStep.REPLAY),
    (VerdictFacts(category="process metrics", is_separate=True), NextStep.REPLAY),
    (VerdictFacts(category="outputs", shares_state=True), NextStep.CLEAN),
    (VerdictFacts(category="outputs", shares_state=True, sources=CLOCK), NextStep.CLEAN),
    (VerdictFacts(category="exit status", ended_early=True, is_locatable=True), NextStep.SHOW),
]


@pytest.mark.parametrize(("facts", "step"), TABLE)
def test_the_next_step_follows_from_the_facts(facts: VerdictFacts, step: NextStep) -> None:
    assert chosen(facts) is step


def hint(left: Building, right: Building) -> str:
    return " ".join(words(compare(left.write(), right.write()), ["L", "R"]))


def test_a_pair_that_is_equal_is_reported(tmp_path: Path) -> None:
    left = training(tmp_path / "left")
    assert hint(left, replayed(left, tmp_path / "right")) == "reprokit report L R -o report.html"


def test_each_step_is_a_command(tmp_path: Path) -> None:
    command = "-- python train.py --rate 0.1"
    left = training(tmp_path / "left")
    right = replayed(left, tmp_path / "right")
    right.lines[next(n for n, line in enumerate(right.lines) if line["k"] == "log")]["value"] = float32(9.0)
    left.run.uncovered.append(Uncovered(source="clock", text="native code reads the clock"))
    assert hint(left, right) == f"reprokit record --clock {command}"
    for run, name in ((left, "l"), (right, "r")):
        run.path, run.run.clock = tmp_path / name, True
    assert hint(left, right) == f"reprokit reproduce {command}"


def test_two_recordings_are_first_replayed(tmp_path: Path) -> None:
    left, right = recording(tmp_path / "left"), recording(tmp_path / "right")
    left.losses(1.0)
    right.losses(2.0)
    assert right.run.profile is not None
    right.run.profile = structs.replace(right.run.profile, digest="sha256:" + "0" * 64)
    assert hint(left, right) == "reprokit replay L"


def test_a_run_that_ended_early_is_shown(tmp_path: Path) -> None:
    left = training(tmp_path / "left")
    right = replayed(left, tmp_path / "right")
    right.run.exit_code = 1
    assert hint(left, right) == "reprokit show R"


# Runs a command where only the modules of sys.argv[1] and the standard library can be imported.
PLAIN = """
import sys
allowed = {*sys.argv[1].split(","), *sys.stdlib_module_names, "reprokit"}

class Refusing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] not in allowed:
            raise ModuleNotFoundError(name, name=name)

sys.meta_path.insert(0, Refusing())
from reprokit.cli.main import main
main(sys.argv[2:])
"""


@cache
def plainly_installed() -> frozenset[str]:
    """Return the top modules of what pyproject.toml names as dependencies, and of theirs."""
    text = (Path(__file__).parents[2] / "pyproject.toml").read_text()
    listed = re.search(r"^dependencies = \[(.*?)^\]", text, re.DOTALL | re.MULTILINE)
    assert listed
    waiting = [name for name in re.findall(r'^    "([\w-]+)[^"]*"', listed[1], re.MULTILINE) if name != "numpy"]
    names: set[str] = set()
    while waiting:
        name = re.sub(r"[-_.]+", "-", waiting.pop()).lower()
        if name not in names:
            names.add(name)
            try:
                needs = metadata.requires(name) or []
            except metadata.PackageNotFoundError:  # of another Python
                continue
            waiting += [re.split(r"[^\w.-]", need, maxsplit=1)[0] for need in needs if "extra ==" not in need]
    tops = metadata.packages_distributions()
    return frozenset(
        top for top, owners in tops.items() if any(re.sub(r"[-_.]+", "-", one).lower() in names for one in owners)
    )


def test_a_plain_installation_can_follow_the_hint_of_verify_and_pack_a_bundle(tmp_path: Path) -> None:
    left = training(tmp_path / "left")
    right = replayed(left, tmp_path / "right")
    step = " ".join(words(compare(left.write(), right.write()), ["left", "right"]))
    assert step == "reprokit report left right -o report.html"
    modules = ",".join(plainly_installed())
    for command in (step, "reprokit bundle left -o left.tar.zst", "reprokit unpack left.tar.zst -o unpacked"):
        line = [sys.executable, "-c", PLAIN, modules, *command.split()[1:]]
        done = subprocess.run(line, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
    assert "<h1" in (tmp_path / "report.html").read_text()


def test_what_needs_more_says_so_before_it_reads_a_run(tmp_path: Path) -> None:
    modules = ",".join(plainly_installed())
    for command, name in (("report absent --format cyclonedx", "cyclonedx"), ("export mlflow absent", "mlflow-skinny")):
        line = [sys.executable, "-c", PLAIN, modules, *command.replace("absent", "./absent").split()]
        done = subprocess.run(line, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 2
        assert done.stderr.startswith("reprokit: extra-missing: ")
        assert name in done.stderr
