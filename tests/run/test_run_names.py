"""Runs are found by name, from anywhere below their .reprokit, and removed by name; nothing else is."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from reprokit.model.run import ReplayOf
from tests.support import Reprokit, wait_until
from tests.verify.runs import recording, replayed


def named(reprokit: Reprokit, name: str, *options: str, status: int = 0) -> None:
    """Record a command under a name."""
    assert reprokit.run("record", "--name", name, *options, "--", "sh", "-c", f"exit {status}").returncode == status


def shown(reprokit: Reprokit, run: str, directory: Path | None = None) -> str:
    """The name of the run that a text stands for; what was said where it stands for none."""
    done = reprokit.run("show", run, directory=directory)
    return Path(done.stdout.split(":")[0].split()[-1]).name if done.stdout else done.stderr


def test_names_beginnings_and_positions(reprokit: Reprokit) -> None:
    named(reprokit, "baseline")
    assert reprokit.record("true").returncode == 0
    stamped = reprokit.last.name
    named(reprokit, "base-2")
    assert shown(reprokit, "last") == shown(reprokit, "base-2") == shown(reprokit, "last~0") == "base-2"
    assert shown(reprokit, "last~1") == shown(reprokit, stamped[-4:]) == shown(reprokit, stamped[:-1]) == stamped
    assert shown(reprokit, "last~2") == shown(reprokit, "basel") == "baseline"
    assert shown(reprokit, "base").startswith("reprokit: run-not-found: base names 2 runs: base-2, baseline; give more")
    assert "there is no last~3" in shown(reprokit, "last~3")
    assert "run-not-found: other does not exist" in shown(reprokit, "other")
    listed = reprokit.run("ls").stdout.splitlines()
    assert [line.split()[0] for line in listed[2:]] == ["base-2", stamped[-4:], "baseline"]


def test_the_nearest_place_above_is_used_by_all_commands(reprokit: Reprokit) -> None:
    named(reprokit, "first")
    below = reprokit.directory / "src" / "deep"
    below.mkdir(parents=True)
    assert shown(reprokit, "first", directory=below) == "first"
    assert reprokit.run("record", "--name", "second", "--", "true", directory=below).returncode == 0
    assert not (below / ".reprokit").exists()
    assert shown(reprokit, "last") == "second"
    assert "2 runs" in reprokit.run("ls", directory=below).stdout
    (below / "first").mkdir()
    assert shown(reprokit, "first", directory=below) == "first", "a directory that is no run hides none"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give a directory away")
def test_another_user_s_place_above_is_not_used(reprokit: Reprokit) -> None:
    named(reprokit, "first")
    os.chown(reprokit.directory / ".reprokit", 12345, 12345)
    below = reprokit.directory / "below"
    below.mkdir()
    assert reprokit.run("record", "--name", "second", "--", "true", directory=below).returncode == 0
    assert (below / ".reprokit" / "second").is_dir()


@pytest.mark.parametrize("name", ["last", "gates", "../up", "a/b", ".hidden", "a b", "", "n" * 41])
def test_names_that_would_mean_something_else_are_refused(reprokit: Reprokit, name: str) -> None:
    done = reprokit.run("record", "--name", name, "--", "touch", "started")
    assert (done.returncode, done.stderr.split()[1]) == (125, "usage:")
    assert os.listdir(reprokit.directory) == []


def test_a_name_is_not_taken_twice(reprokit: Reprokit) -> None:
    named(reprokit, "first")
    assert "run-exists" in reprokit.run("record", "--name", "first", "--", "true").stderr
    named(reprokit, "first", "--overwrite", status=3)
    both = reprokit.run("record", "--name", "first", "-o", "other", "--", "true")
    assert "choose one" in both.stderr


def test_verify_finds_the_pair(reprokit: Reprokit) -> None:
    assert "there is no replay" in reprokit.run("verify").stderr
    assert reprokit.run("record", "--name", "first", "--", "sh", "-c", "echo 1 > out").returncode == 0
    assert "no replay of" in reprokit.run("verify", "first").stderr
    assert reprokit.run("replay", "first", "--name", "again").returncode == 0
    named(reprokit, "unrelated")
    assert shown(reprokit, "again:recording") == shown(reprokit, "first:recording") == "first"
    for arguments in ([], ["first"], ["again"], ["first", "again"]):
        done = reprokit.run("verify", *arguments)
        assert done.returncode == 0
        left, right = (line for line in done.stdout.splitlines() if line.startswith(("left: ", "right: ")))
        assert "/first, a recording" in left
        assert "/again, a replay" in right
    assert [line.split()[-2] for line in reprokit.run("ls").stdout.splitlines() if "again" in line] == ["identical"]
    shutil.rmtree(reprokit.directory / ".reprokit" / "first")
    assert "the recording of" in reprokit.run("verify").stderr


def test_another_run_in_the_recording_s_place_is_not_its_recording(reprokit: Reprokit) -> None:
    home = reprokit.directory / ".reprokit"
    home.mkdir()
    first, other = recording(home / "first"), recording(home / "other")
    replay = replayed(first, home / "again")
    first.write()
    other.write()
    replay.run.replay_of = ReplayOf(path=str(home / "other"), run_id=first.run.run_id, profile_digest="")
    replay.write()
    assert "is not at" in reprokit.run("verify", "again").stderr


def test_what_is_kept_of_verdicts_may_be_anything(reprokit: Reprokit) -> None:
    named(reprokit, "first")
    for content in ("{", "[]", '{"a": 1}', "[" * 100_000):
        (reprokit.directory / ".reprokit" / "verdicts.json").write_text(content)
        assert reprokit.run("ls").returncode == 0


# Removal


def test_rm_removes_by_name_and_last_names_the_newest_that_is_left(reprokit: Reprokit) -> None:
    for name in ("first", "second", "third"):
        named(reprokit, name)
    assert reprokit.run("rm", "third", "first").returncode == 0
    assert reprokit.last.name == "second"
    assert shown(reprokit, "last") == "second"
    shutil.rmtree(reprokit.last)
    assert "there is no last run" in shown(reprokit, "last")


def test_rm_says_which_replay_stays_without_its_recording(reprokit: Reprokit) -> None:
    named(reprokit, "first")
    assert reprokit.run("replay", "first", "--name", "again").returncode == 0
    assert "again stays without its recording first" in reprokit.run("rm", "first").stdout
    assert "not here" in reprokit.run("ls").stdout
    assert "stays without" not in reprokit.run("rm", "again").stdout


def test_rm_removes_all_or_nothing_and_only_runs(reprokit: Reprokit) -> None:
    named(reprokit, "first")
    outside = reprokit.directory / "outside"
    shutil.copytree(reprokit.last, outside)
    (reprokit.directory / "link").symlink_to(outside)
    (reprokit.directory / "thesis").mkdir()
    (reprokit.directory / ".reprokit" / "foreign").mkdir()
    (reprokit.directory / ".reprokit" / "foreign" / "run.json").touch()
    (reprokit.directory / ".reprokit" / "foreign" / "thesis.tex").touch()
    for wrong in ("link", ".reprokit/last", "thesis", ".", ".reprokit", "foreign"):
        done = reprokit.run("rm", "first", wrong)
        assert (done.returncode, "removed" in done.stdout) == (2, False), wrong
        assert done.stderr.count("\n") == 1
    assert outside.is_dir()
    assert shown(reprokit, "first") == "first"
    assert reprokit.run("rm", "outside").returncode == 0
    assert not outside.exists()


def test_a_run_in_progress_is_not_removed(reprokit: Reprokit) -> None:
    with reprokit.start("record", "--name", "busy", "--", "sleep", "100") as process:
        wait_until((reprokit.directory / ".reprokit" / "busy" / "run.json").exists, "the run")
        assert "run-in-progress" in reprokit.run("rm", "busy").stderr
        assert reprokit.run("gc", "--older", "0s").stdout == "0 of 1 runs removed\n"
        process.terminate()
    assert shown(reprokit, "busy") == "busy"


def test_gc_keeps_the_newest_and_recordings_of_kept_replays(reprokit: Reprokit) -> None:
    for name in ("first", "second"):
        named(reprokit, name)
    assert reprokit.run("replay", "first", "--name", "again").returncode == 0
    home = reprokit.directory / ".reprokit"
    linked = reprokit.directory / "linked"
    shutil.copytree(home / "second", linked)
    (home / "link").symlink_to(linked)
    before = sorted(os.listdir(home))
    dry = reprokit.run("gc", "--keep", "1", "--dry-run").stdout
    assert dry.splitlines() == [
        "kept first: again is a replay of it",
        "would remove .reprokit/second",
        "1 of 3 runs would be removed",
    ]
    assert sorted(os.listdir(home)) == before
    assert "0 of 3 runs removed" in reprokit.run("gc", "--older", "1h").stdout
    assert "removed .reprokit/second" in reprokit.run("gc", "--keep", "1").stdout
    assert sorted(set(before) - set(os.listdir(home))) == ["second"]
    assert linked.is_dir()
    assert "say which runs to keep" in reprokit.run("gc").stderr


def test_gc_removes_by_age(reprokit: Reprokit) -> None:
    home = reprokit.directory / ".reprokit"
    home.mkdir()
    old = recording(home / "old")
    old.run.started = "2020-01-01T00:00:00Z"
    old.write()
    named(reprokit, "new")
    assert reprokit.run("gc", "--older", "30d").stdout.splitlines()[0] == "removed .reprokit/old"
    assert not (home / "old").exists()
    assert (home / "new").is_dir()
