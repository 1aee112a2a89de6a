"""Directory listings: their order is written down, and the program cannot tell that anybody looks."""

from __future__ import annotations

from pathlib import Path

import pytest

from reprokit.agent.surroundings.import_listing import package_names
from tests.agent.training import Line, Training

MAKE = """
import glob, os, pathlib, pickle, shutil
os.makedirs("data/cats"), os.mkdir("data/dogs")
for name in ("b", "a", "\\udcff", "c"): open(os.path.join("data/cats", name), "w").close()
"""
EVERY_WAY = """
print(sorted(os.listdir("data")), sorted(os.listdir(b"data")), os.listdir(path="data/dogs"))
print(sorted(path.name for path in pathlib.Path("data").iterdir()), sorted(pathlib.Path("data").glob("*/a")))
print(sorted(glob.glob("data/*/*", recursive=True)), sorted(name for _, _, names in os.walk("data") for name in names))
print([entry.is_dir() for entry in os.scandir("data/dogs")], next(os.scandir("data")).is_dir())
with os.scandir("data") as entries: print(iter(entries) is entries, next(entries).is_dir())
print(list(entries), sorted(entry.name for entry in os.scandir(b"data")))
for wrong in ("nowhere", 1.5):
    for function in (os.listdir, os.scandir):
        try: function(wrong)
        except Exception as error: print(type(error), error)
print(os.listdir, os.scandir, os.listdir.__name__, os.scandir.__doc__)
print(pickle.loads(pickle.dumps(os.listdir)) is os.listdir, os.listdir in os.supports_fd, os.scandir in os.supports_fd)
class Holder: listing, scanning = os.listdir, os.scandir
print(Holder().listing("data/dogs"), list(Holder().scanning("data/dogs")), shutil.rmtree.avoids_symlink_attacks)
descriptor = os.open("data/dogs", os.O_RDONLY)
print(os.listdir(descriptor), list(os.scandir(descriptor)))
shutil.copytree("data/dogs", "copy"); shutil.rmtree("data"); print(os.path.exists("data"))
"""


def listing(lines: list[Line], name: str) -> Line:
    (line,) = (line for line in lines if line["name"] == name)
    return line


def test_the_program_cannot_tell_that_its_listings_are_seen(any_training: Training) -> None:
    (any_training.directory / "bare").mkdir()
    bare = Training(any_training.directory / "bare", any_training.python).run_bare(MAKE + EVERY_WAY)
    watched = any_training.run(MAKE + EVERY_WAY)
    assert (watched.status, watched.errors, watched.of("warning")) == (0, "", [])
    assert (watched.output, bare.errors) == (bare.output, "")


def test_a_listing_is_written_once_and_again_when_it_changed(any_training: Training) -> None:
    script = """
for _ in range(3): os.listdir("data/cats"), list(os.scandir(b"data/dogs"))
os.rename("data/cats/a", "data/cats/z"); os.listdir("data/cats")
os.listdir("/proc"), os.listdir(os.path.dirname(os.__file__)), os.listdir("/proc/self/fd")
"""
    outcome = any_training.run(MAKE + script)
    assert [(line["name"], line["count"], line["whole"]) for line in outcome.of("listing")] == [
        ("data/cats", 4, True),
        ("data/dogs", 0, True),
        ("data/cats", 4, True),
    ]


def test_order_and_names_are_told_apart(training: Training) -> None:
    script = """
import os
for name, names in ("one", ["a", "b", "c"]), ("other", ["c", "b", "a"]), ("different", ["a", "b", "d"]):
    os.listdir._original = lambda path: names
    os.listdir(name)
"""
    lines = training.run(script).of("listing")
    one, other, different = (listing(lines, name) for name in ("one", "other", "different"))
    assert one["names"] == other["names"] != different["names"]
    assert len({line["order"] for line in lines}) == 3


def test_listing_and_scanning_give_one_digest(training: Training) -> None:
    script = """
for number in range(3000): open(f"data/dogs/{number}", "w").close()
os.listdir("data/dogs"); os.chdir("data"); list(os.scandir("./dogs")); os.chdir("dogs"); list(os.scandir())
"""
    lines = training.run(MAKE + script).of("listing")
    assert [line["count"] for line in lines] == [3000] * 3
    assert {line["name"] for line in lines} == {"data/dogs", "dogs", "."}
    assert len({(line["order"], line["names"]) for line in lines}) == 1


def test_a_scan_that_stops_half_way_says_so(training: Training) -> None:
    script = "with os.scandir('data') as entries: first = next(entries).name\nprint(first)"
    outcome = training.run(MAKE + script)
    line = outcome.one("listing")
    assert (line["count"], line["whole"]) == (1, False)


def test_the_lines_of_a_process_are_bounded(training: Training) -> None:
    script = """
import os
for number in range(1200): os.mkdir(str(number)), os.listdir(str(number))
"""
    assert len(training.run(script).of("listing")) == 1000


def test_a_forked_child_notes_its_own(training: Training) -> None:
    script = """
os.listdir("data")
if os.fork() == 0:
    os.listdir("data"); os._exit(0)
os.wait()
"""
    lines = training.run(MAKE + script).of("listing")
    assert len(lines) == 2
    assert lines[0]["p"] != lines[1]["p"]
    assert lines[0]["order"] == lines[1]["order"]


def test_the_search_for_packages_is_not_noted(training: Training) -> None:
    script = (
        "import importlib.metadata, pkgutil; list(importlib.metadata.distributions()); list(pkgutil.iter_modules())"
    )
    assert training.run(script).of("listing") == []


@pytest.mark.parametrize("name", ["plain", "é x]", "a[b", "a*?", "a\\b"])
def test_packages_are_found_in_any_directory(tmp_path: Path, name: str) -> None:
    directory = tmp_path / name
    directory.mkdir()
    (directory / "checkpoint-1.txt").touch()
    assert package_names(str(directory)) == []
    for found in "One-1.DIST-info", "two.egg", "three.egg-info":
        (directory / found).touch()
        assert found in package_names(str(directory))
    (directory / "four.eggs").touch()
    assert len(package_names(str(directory))) == 3
    for missing in directory / "absent", directory / "two.egg":
        with pytest.raises(OSError, match=missing.name):
            package_names(str(missing))


def test_a_failure_of_ours_leaves_the_listing_alone(training: Training) -> None:
    script = """
import sys
sys.modules["_reprokit_agent.surroundings.directory_order"] = None
print(sorted(os.listdir("data")), sorted(entry.name for entry in os.scandir("data")))
"""
    outcome = training.run(MAKE + script)
    assert (outcome.status, outcome.output) == (0, "['cats', 'dogs'] ['cats', 'dogs']\n")
    assert len(outcome.of("warning")) == 2
