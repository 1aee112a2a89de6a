"""Files of a run that are missing, or another run's, are damage: neither differences nor silently absent."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support import Reprokit, python


def exchange(first: Path, _: Path) -> None:
    """By what another run left, which is whole."""
    shutil.copy(first.parent.parent / "other" / first.name, first)


def remove(*paths: Path) -> None:
    for path in paths:
        path.unlink()


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("recorded")
    reprokit = Reprokit(place)
    code = "open('model', 'w').write('weights')"
    assert reprokit.run("record", "-o", "first", "--", *python(code)).returncode == 0
    assert reprokit.run("record", "-o", "other", "--", "true").returncode == 0
    assert reprokit.run("replay", "first", "-o", "second").returncode == 0
    assert reprokit.run("verify", "first", "second").returncode == 0
    return place


@pytest.mark.parametrize("name", ["environment.json", "outputs.json"])
@pytest.mark.parametrize("harm", [lambda first, _: remove(first), remove, exchange], ids=["one", "both", "exchanged"])
def test_what_a_run_has_written_and_is_not_there_any_more_is_damage(
    recorded: Path, tmp_path: Path, name: str, harm: Callable[[Path, Path], None]
) -> None:
    reprokit = Reprokit(tmp_path)
    for run in "first", "second", "other":
        shutil.copytree(recorded / run, tmp_path / run)
    harm(tmp_path / "first" / name, tmp_path / "second" / name)
    commands = [["verify", "first", "second"]]
    if (tmp_path / "second" / name).exists() and not (tmp_path / "first" / name).exists():
        commands += [["show", "first"], ["report", "first", "second"]]
    for command in commands:
        done = reprokit.run(*command)
        assert (done.returncode, done.stdout) == (2, ""), command
        assert done.stderr.startswith(f"reprokit: run-damaged: first/{name} ")
    if len(commands) > 1 and name == "environment.json":
        assert reprokit.run("replay", "first").returncode == 125


@pytest.mark.parametrize("harm", [Path.unlink, lambda path: path.write_text("altered")], ids=["missing", "altered"])
def test_show_says_which_kept_output_is_not_what_it_was(
    recorded: Path, tmp_path: Path, harm: Callable[[Path], None]
) -> None:
    shutil.copytree(recorded / "first", tmp_path / "first")
    harm(tmp_path / "first" / "outputs" / "0")
    done = Reprokit(tmp_path).run("show", "first")
    assert done.returncode == 0
    assert "warning      first/outputs/0 is " in done.stdout


UNUSED = """
import os
run, key = os.environ["REPROKIT_RUN"], "0123456789abcdef"
names = ["trail/%s.9.new", "samples/%s-0.samples", "samples/%s-0.tail", "tensors/%s-0.partial", "console/%s-0.console"]
os.umask(0o077)
for number, name in enumerate(names):
    path = f"{run}/{name % key}"
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "wb") as file:
        file.write(bytes(4096 * (number % 2)))
print("loss 0.5")
"""


def test_files_that_were_never_begun_are_no_damage(tmp_path: Path) -> None:
    reprokit = Reprokit(tmp_path)
    reprokit.run("record", "-o", "1", "--", *python(UNUSED))
    checked = reprokit.run("check", "1")
    assert checked.returncode == 0, checked.stdout
    verified = reprokit.run("verify", "1", "1")
    assert verified.returncode == 0, verified.stderr
    assert "the text of 1 process is not kept" in verified.stdout
    assert "of the left run, ledgers are empty" in verified.stdout
    assert "there was no room on the disk to begin it" in reprokit.run("ledger", "1").stderr
