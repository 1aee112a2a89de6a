"""Orders that hashes, addresses and file systems decide: the first two replay, the last one is compared."""

from __future__ import annotations

import os

from tests.support import Reprokit, python

SETS = """
class Plain: pass
texts = {f"text {number}" for number in range(200)}
objects = {Plain(): number for number in range(200)}
print(list(texts), [objects[one] for one in set(objects)])
"""


def test_sets_of_texts_and_of_plain_objects_replay(reprokit: Reprokit) -> None:
    recorded = reprokit.run("record", "-o", "one", "--", *python(SETS))
    again = reprokit.run("record", "-o", "two", "--", *python(SETS))
    replayed = reprokit.run("replay", "one")
    assert recorded.stdout != again.stdout
    assert replayed.stdout == recorded.stdout


def test_the_same_names_in_another_order_are_told(reprokit: Reprokit) -> None:
    """Two directories stand for the one on two file systems, one of which gives its names backwards."""
    code = """
import os, reprokit
reprokit.log(step=0, done=1)
os.chdir("data")
if os.path.exists("../backwards"):
    listdir = os.listdir._original
    os.listdir._original = lambda path: listdir(path)[::-1]
os.listdir("cats"), os.listdir("dogs")
"""
    for name in ("cats/a", "cats/b", "dogs/a"):
        os.makedirs(reprokit.directory / "data" / name)
    reprokit.run("record", "-o", "one", "--", *python(code))
    os.mkdir(reprokit.directory / "data" / "dogs" / "new")
    reprokit.script("backwards", "")
    reprokit.run("replay", "one", "-o", "two")
    done = reprokit.run("verify", "one", "two", "--all")
    assert done.returncode == 0
    lines = done.stdout.splitlines()
    assert "the same names in another order" in next(line for line in lines if "listing of cats" in line)
    assert "other names were listed" in next(line for line in lines if "listing of dogs" in line)
    assert "2 facts could have changed it" in done.stdout
