"""What scripts read from the environment, in real runs: compared by name and digest, never by value."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from reprokit.core.difference import Difference, Verdict
from reprokit.run_files import rundir
from reprokit.verify.comparison import Comparison
from reprokit.verify.runs import compare
from reprokit.verify.show.comparison import causes
from tests.support import Reprokit

from .runs import Building

SCRIPT = """
import os
rate = float(os.environ.get("RATE", "1"))
if "FAST" in os.environ:
    rate *= 2
open("out.txt", "w").write(str(rate))
"""
SECRET = "0.1234567"


@pytest.fixture
def recorded(reprokit: Reprokit) -> Reprokit:
    """A recording, a, of the script with a rate."""
    reprokit.script("train.py", SCRIPT)
    run(reprokit, "record", "-o", "a", "--", sys.executable, "train.py", RATE=SECRET)
    return reprokit


def run(reprokit: Reprokit, *command: str, **environment: str) -> str:
    done = reprokit.run(*command, environment=environment)
    assert done.returncode in (0, 1), done.stderr
    return done.stdout


def replayed(reprokit: Reprokit, **environment: str) -> Comparison:
    run(reprokit, "replay", "-o", "b", "a", **environment)
    return compare(reprokit.directory / "a", reprokit.directory / "b")


def leaves(comparison: Comparison) -> list[Difference]:
    return [leaf for leaf in comparison.tree.leaves() if leaf.name.startswith("script variable")]


def test_another_value_is_a_likely_cause_with_its_place(recorded: Reprokit) -> None:
    comparison = replayed(recorded, RATE="0.7")
    meaning = "can change results: the script reads it at train.py:3"
    assert next(causes(comparison)) == f"script variable RATE: set against set to another value ({meaning})"
    assert not comparison.identical


def test_a_name_that_is_set_in_one_run_only(recorded: Reprokit) -> None:
    comparison = replayed(recorded, RATE=SECRET, FAST="1")
    (leaf,) = (leaf for leaf in leaves(comparison) if leaf.can_change_results)
    assert (leaf.name, leaf.left, leaf.right) == ("script variable FAST", "unset", "set")


def test_the_same_values_are_counted(recorded: Reprokit) -> None:
    comparison = replayed(recorded, RATE=SECRET)
    (leaf,) = leaves(comparison)
    assert (leaf.verdict, leaf.left) == (Verdict.IDENTICAL, "2 the same")
    assert comparison.identical


def test_two_recordings_are_not_comparable(recorded: Reprokit) -> None:
    run(recorded, "record", "-o", "b", "--", sys.executable, "train.py", RATE=SECRET)
    (same, leaf) = leaves(compare(recorded.directory / "a", recorded.directory / "b"))
    assert same.left == "1 the same", "FAST, which is set in neither"
    assert (leaf.name, leaf.left) == ("script variables that are not comparable", "1, first RATE")
    assert not leaf.can_change_results


def test_a_value_is_nowhere_and_the_key_only_with_entropy(recorded: Reprokit) -> None:
    directory = recorded.directory
    assert (directory / "a" / "variables.key").stat().st_mode & 0o777 == 0o600
    for options, has_key in ((), False), (("--with-entropy",), True):
        for path in directory.glob("a.*"):
            path.unlink()
        run(recorded, "bundle", *options, "-o", "a.bundle", "a")
        place = f"unpacked{has_key}"
        run(recorded, "unpack", "-o", place, "a.bundle")
        assert (directory / place / "variables.key").exists() is has_key
        for file in (directory / place).rglob("*"):
            assert file.is_dir() or file.parent.name == "outputs" or SECRET.encode() not in file.read_bytes(), file
    for file in (directory / "a").rglob("*"):
        assert file.is_dir() or file.parent.name == "outputs" or SECRET.encode() not in file.read_bytes(), file


def test_a_replay_of_an_unpacked_run_compares(recorded: Reprokit) -> None:
    run(recorded, "bundle", "--with-entropy", "-o", "a.bundle", "a")
    run(recorded, "unpack", "-o", "c", "a.bundle")
    run(recorded, "replay", "-o", "b", "c", RATE=SECRET)
    (leaf,) = leaves(compare(recorded.directory / "c", recorded.directory / "b"))
    assert leaf.left == "2 the same"


def test_show_lists_them(recorded: Reprokit) -> None:
    shown = run(recorded, "show", "a")
    assert "RATE (set), at train.py:3" in shown
    assert "FAST (unset), at train.py:4" in shown
    listed = json.loads(run(recorded, "show", "--json", "a"))["script_variables"]
    assert listed[1] == {"name": "RATE", "where": "train.py:3", "state": "set"}


def test_a_damaged_key_makes_nothing_different(recorded: Reprokit) -> None:
    (recorded.directory / "a" / "variables.key").write_bytes(b"short")
    names = [leaf.name for leaf in leaves(replayed(recorded, RATE="0.7"))]
    assert "script variables that are not comparable" in names


def test_a_variable_that_frameworks_obey_is_told_once(reprokit: Reprokit) -> None:
    reprokit.script("train.py", "import os\nopen('out', 'w').write(os.environ['OMP_NUM_THREADS'])")
    for name, count in ("a", "1"), ("b", "2"):
        run(reprokit, "record", "-o", name, "--", sys.executable, "train.py", OMP_NUM_THREADS=count)
    comparison = compare(reprokit.directory / "a", reprokit.directory / "b")
    told = [leaf.name for leaf in comparison.tree.leaves() if leaf.can_change_results and "OMP_NUM" in leaf.name]
    assert told == ["variables.OMP_NUM_THREADS"]


def test_values_of_ranks_are_compared_as_a_set(bare: tuple[Building, Building], compared: object) -> None:
    for building, order in zip(bare, ("01", "10"), strict=True):
        for rank in order:
            building.start(f"rank{rank}")
            digest = rank * 32
            building.add("variable", f"rank{rank}", name="RANK", where="t.py:1", set=True, digest=digest, key="0" * 16)
        building.losses(0.5, process="rank0")
    (leaf,) = leaves(compared(bare))  # type: ignore[operator]
    assert leaf.verdict is Verdict.IDENTICAL


@pytest.mark.parametrize("digest", ["0" * 31, "x" * 32, 5])
def test_a_digest_that_is_none_is_damage(reprokit: Reprokit, tmp_path: Path, digest: object) -> None:
    from reprokit.core.errors import RunDamaged

    from .runs import recording

    building = recording(tmp_path / "run")
    building.start()
    building.add("variable", name="A", where="t.py:1", set=True, digest=digest, key="0" * 16)
    with pytest.raises(RunDamaged):
        compare(building.write(), building.path)


def test_a_value_without_a_digest_is_not_the_same(recorded: Reprokit) -> None:
    """The value differs, and the run that read it could not open its key."""
    run(recorded, "replay", "a", "-o", "b", RATE=SECRET)
    comparison = compare(recorded.directory / "a", recorded.directory / "b")
    assert "2 the same" in {leaf.left for leaf in leaves(comparison)}
    metrics = recorded.directory / "b" / "metrics.jsonl"
    lines = [json.loads(line) for line in metrics.read_text().splitlines()]
    for line in lines:
        if line["k"] == "variable" and line["name"] == "RATE":
            del line["digest"], line["key"]
            line["undigested"] = True
    metrics.write_text("".join(json.dumps(line) + "\n" for line in lines))
    facts = json.loads((recorded.directory / "b" / "run.json").read_text())
    del facts["check"]
    sealed = rundir.seal_file(metrics)
    assert sealed is not None
    facts["metrics"] = {"size": sealed.size, "digest": sealed.digest}
    rundir.write_json(recorded.directory / "b" / "run.json", facts)
    texts = {leaf.name: leaf.left for leaf in leaves(compare(recorded.directory / "a", recorded.directory / "b"))}
    assert texts["script variables that are not comparable"] == "1, first RATE"
    assert texts["script variables"] == "1 the same"
