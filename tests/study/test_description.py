"""Study files: what they may say, what is refused and how, in which order pairs are made."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reprokit.core.errors import BadStudy, IgnoreRefused
from reprokit.study import description
from reprokit.study.description import Setup, Study, differences, planned, read
from reprokit.verify.ignores import declared
from tests.support import Reprokit

TWO = '[[setup]]\nname = "a"\n[[setup]]\nname = "b"\n'
HEAD = 'name = "x"\ncommand = ["python", "train.py"]\n'


def test_what_may_differ_is_the_study_s_own_and_what_was_added(tmp_path: Path) -> None:
    path = tmp_path / "study.toml"
    path.write_text(HEAD + "ignore = ['a.log']\n" + TWO)
    plain, added = read(path).study, read(path, ignores=declared(["b.log", "a.log"], ["id .*"])).study
    assert (plain.ignore, added.ignore, added.ignore_console) == (("a.log",), ("a.log", "b.log"), ("id .*",))
    assert list(differences(plain, added)) == ["ignore", "ignore_console"]
    with pytest.raises(IgnoreRefused):
        read(path, ignores=declared(["*"], ()))


def problem(directory: Path, text: str) -> str:
    """What is said of a study file, in its one line."""
    path = directory / "study.toml"
    path.write_text(text)
    with pytest.raises(BadStudy) as caught:
        read(path)
    said = str(caught.value)
    assert said.startswith(str(path))
    assert "\n" not in said
    return said


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (HEAD + "runs = 1\n" + TWO, "runs = 1: a study needs pairs"),
        (HEAD + "runs = 3\n" + TWO, "must be even"),
        (HEAD, "no setup"),
        (HEAD + '[[setup]]\nname = "a"\n', "one setup"),
        (HEAD + TWO.replace('"b"', '"A"'), "two setups have the name"),
        ('name = "x"\n' + TWO, "setup a: there is no command"),
        (HEAD + TWO + 'patches = ["tf-dat"]\n', "setup b: there is no patch 'tf-dat'; did you mean tf-data"),
        (HEAD + TWO + 'patches = ["threads"]\n', "patch threads needs a value"),
        (HEAD + TWO + 'patches = ["tf-threads", "threads=1"]\n', "cannot be together"),
        (HEAD + TWO + 'entropy = "replayed"\nseeds = [1]\n', "setup b: seeds need"),
        (HEAD + TWO + 'seeds = [1]\npatches = ["seed=2"]\n', "seeds and the patch seed"),
        (HEAD + TWO + "seeds = [-1]\n", "setup b: "),
        (HEAD + TWO + "clock = true\n", "clock = true needs"),
        (HEAD + TWO + 'observe = false\nentropy = "replayed"\n', "observe = false"),
        (HEAD + TWO + 'directory = "absent"\n', "is no directory"),
        (HEAD + TWO + "sed = [1]\n", "setup b: Object contains unknown field `sed`"),
        (HEAD + "metrics = []\n" + TWO, "unknown field `metrics`"),
        (HEAD + "timeout = inf\n" + TWO, "timeout"),
        (HEAD + 'name = "y"\n' + TWO, "Cannot overwrite a value"),
        (HEAD.replace('"x"', '"../x"') + TWO, "matching regex"),
        (HEAD + '[engine]\nkind = "cloud"\n' + TWO, "engine.kind"),
        (HEAD + "ignore_console = ['(']\n" + TWO, "is not a regular expression"),
    ],
)
def test_what_makes_no_study_is_said_in_one_line(tmp_path: Path, text: str, words: str) -> None:
    assert words in problem(tmp_path, text)


def test_a_file_that_is_not_there_says_what_writes_one(tmp_path: Path) -> None:
    with pytest.raises(BadStudy, match="study init"):
        read(tmp_path / "study.toml")


def test_the_command_line_sets_runs_and_parallel(tmp_path: Path) -> None:
    (tmp_path / "study.toml").write_text(HEAD + TWO)
    study = read(tmp_path / "study.toml", runs=4, parallel=2).study
    assert (study.runs, study.pairs, study.engine.parallel) == (4, 2, 2)


def study(*setups: Setup, runs: int = 16, **values: object) -> Study:
    return Study(name="x", command=("c",), runs=runs, setup=setups, **values)  # type: ignore[arg-type]


def named(count: int, runs: int) -> Study:
    return study(*(Setup(name=f"s{number}") for number in range(count)), runs=runs)


def test_what_a_setup_controls_follows_from_what_it_does() -> None:
    kinds = Setup(name="a"), Setup(name="b", seeds=(1,)), Setup(name="c", patches=("auto",))
    both = Setup(name="d", entropy="replayed", patches=("auto",))
    one = study(*kinds, both)
    assert [one.controls_of(setup) for setup in one.setup] == ["", "software", "hardware", "both"]
    assert [study(*kinds, machine="cpu").controls_of(setup) for setup in kinds] == ["hardware", "both", "hardware"]
    assert one.controls_of(Setup(name="e", controls="software", patches=("auto",))) == "software"


def test_seeds_come_round_again() -> None:
    setup = Setup(name="a", seeds=(7, 8, 9))
    assert [study(setup).seed_of(setup, pair) for pair in (1, 2, 3, 4)] == [7, 8, 9, 7]


def test_differences_are_told_by_the_keys_of_the_file() -> None:
    before = study(Setup(name="a"), Setup(name="b"))
    after = study(Setup(name="b", clock=True, entropy="replayed"), Setup(name="c"), keep="all", variables={"X": "1"})
    assert list(differences(before, after)) == [
        *("keep", "variables.X"),
        *("setup a (removed)", "entropy of setup b", "clock of setup b", "setup c (added)"),
    ]
    assert list(differences(before, study(Setup(name="b"), Setup(name="a")))) == ["the order of the setups"]
    assert list(differences(before, before)) == []


@given(st.integers(2, 9), st.integers(1, 20))
def test_every_setup_makes_one_pair_a_round(count: int, pairs: int) -> None:
    places = planned(named(count, 2 * pairs))
    assert len(places) == count * pairs
    for number in range(pairs):
        row = places[number * count : (number + 1) * count]
        assert {place.pair for place in row} == {number + 1}
        assert len({place.setup for place in row}) == count


@given(st.integers(2, 9))
def test_over_all_rounds_no_place_and_no_neighbor_is_favored(count: int) -> None:
    rounds = count * (1 + count % 2)
    places = planned(named(count, 2 * rounds))
    at = Counter((index % count, place.setup) for index, place in enumerate(places))
    assert set(at.values()) == {rounds // count}
    rows = [places[number * count : (number + 1) * count] for number in range(rounds)]
    behind = Counter((one.setup, other.setup) for row in rows for one, other in pairwise(row))
    assert set(behind.values()) == {rounds // count}
    assert len(behind) == count * (count - 1)


@pytest.mark.parametrize("template", description.TEMPLATES)
def test_templates_are_studies_of_the_command(tmp_path: Path, template: str) -> None:
    done = Reprokit(tmp_path).run("study", "init", "--template", template, "--", "python", "my train.py", '"quoted"')
    assert done.returncode == 0, done.stderr
    one = read(tmp_path / "study.toml").study
    assert one.command == ("python", "my train.py", '"quoted"')
    assert one.name == "my-train"
    assert one.runs == 16
    names = [setup.name for setup in one.setup]
    if template != "plain":
        letter, count = ("C", 6) if template == "cpu" else ("G", 10)
        assert names == [f"{letter}{number}" for number in range(1, count + 1)]
        seeded = [setup for setup in one.setup if setup.seeds]
        assert {setup.seeds for setup in seeded} == {(0, 1, 2, 5, 10, 42, 123, 1234)}
    again = Reprokit(tmp_path).run("study", "init", "--", "true")
    assert again.returncode == 2
    assert "exists already" in again.stderr


def test_a_program_that_is_not_there_is_said_before_the_start(tmp_path: Path) -> None:
    (tmp_path / "study.toml").write_text(HEAD.replace('"python"', '"no-such-program"') + TWO)
    done = Reprokit(tmp_path).run("study", "study.toml")
    assert done.returncode == 2
    assert "setup a: no-such-program" in done.stderr
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / ".reprokit").exists()


def test_a_study_is_the_same_after_its_file_was_written_again() -> None:
    one = study(Setup(name="a", seeds=(1, 2)), Setup(name="b", patches=("auto",)), timeout=2.5)
    assert msgspec.json.decode(msgspec.json.encode(one), type=Study) == one
