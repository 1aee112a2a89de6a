"""The environment variables that a script reads, as the agent writes them down."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.agent.training import Training
from tests.support import training_text

SECRET = "hunter2-and-more"

EVERY_WAY = training_text("environ_reads.py")

COPIES = """
import copy, os, subprocess, sys
taken = [dict(os.environ), {**os.environ}, os.environ.copy(), dict(os.environ.items())]
assert all(one["ASKED"] == "1" for one in taken), "copies"
copy.copy(os.environ)
(lambda **names: None)(**os.environ)
list(os.environ), len(os.environ), os.environ == {}, repr(os.environ)
os.environ.update({"SET": "1"})
del os.environ["SET"]
subprocess.check_call([sys.executable, "-S", "-E", "-c", "pass"], env={**os.environ, "MORE": "1"})
os.environ = dict(os.environ)
os.environ["ASKED"], os.environ.get("ASKED")
"""

# What of a caller and its value is remembered is not asked for again in a child that has it from its parent.
PROCESSES = """
import multiprocessing, os
def read(name):
    os.environ.get(name)
if __name__ == "__main__":
    read("PARENT")
    for method in ("fork", "spawn"):
        for name in ("PARENT", "CHILD"):
            child = multiprocessing.get_context(method).Process(target=read, args=(name,))
            child.start()
            child.join()
            assert child.exitcode == 0
"""

CLICK = """
import click
@click.command()
@click.option("--rate", envvar="RATE", type=float)
def main(rate):
    print(rate)
main()
"""

COMPILED = training_text("environ_compiled.py")


def test_each_way_to_read_is_seen_once(any_training: Training) -> None:
    set_ones = ("SUBSCRIPT", "GET", "PRESENCE", "GETENV", "BYTES", "GETENVB", "POP")
    any_training.write("train.py", EVERY_WAY)
    environment = {**any_training.environment(), **dict.fromkeys(set_ones, SECRET)}
    outcome = any_training.command([any_training.python, "train.py"], environment)
    assert (outcome.status, outcome.output) == (0, "True\n('MISSING',)\n"), outcome.errors
    lines = outcome.of("variable")
    facts = [(line["name"], line["set"], "digest" in line) for line in lines]
    names = ("SUBSCRIPT", "GET", "GET_UNSET", "PRESENCE", "GETENV", "BYTES", "GETENVB", "POP")
    expected = [(name, name in set_ones, name in set_ones and name != "PRESENCE") for name in names]
    expected += [("SETDEFAULT", False, False), ("SETDEFAULT", True, True), ("MISSING", False, False)]
    assert facts == expected
    assert [line["where"] for line in lines[:3]] == ["train.py:5", "train.py:6", "train.py:7"]
    assert not outcome.of("warning")


def test_no_value_is_written_anywhere(training: Training) -> None:
    outcome = training.run("import os\nos.environ['A'], os.environ['B']", A=SECRET, B=SECRET)
    digests = [line["digest"] for line in outcome.of("variable")]
    assert digests[0] != digests[1], "nobody sees that two variables have the same value"
    for path in training.run_directory.rglob("*"):
        assert path.is_dir() or SECRET.encode() not in path.read_bytes(), path


def test_digests_depend_on_the_key(training: Training) -> None:
    script = "import os\nos.environ['A']"
    training.run(script, A=SECRET)
    training.run(script, A=SECRET)
    training.run(script.replace("os\n", "os\nopen('run/variables.key', 'wb').write(bytes(32))\n"), A=SECRET)
    lines = [line for line in training.lines() if line["k"] == "variable"]
    digests, keys = [line["digest"] for line in lines], [line["key"] for line in lines]
    assert digests[0] == digests[1] != digests[2]
    assert keys[0] == keys[1] != keys[2]


def test_copies_are_no_reads(any_training: Training) -> None:
    outcome = any_training.run(COPIES, ASKED="1")
    assert outcome.status == 0, outcome.errors
    assert not outcome.of("variable")
    assert not outcome.of("warning")


def test_reads_of_packages_are_no_reads_of_the_script(training: Training, tmp_path: Path) -> None:
    package = tmp_path / "site-packages"
    training.write("site-packages/other.py", "import os\nos.environ.get('OF_A_PACKAGE')\n")
    outcome = training.run("import other, os, tempfile\ntempfile.gettempdir()", python_path=[package])
    assert outcome.status == 0, outcome.errors
    assert not outcome.of("variable")


def test_processes_write_what_they_read_first(any_training: Training) -> None:
    outcome = any_training.run(PROCESSES, PARENT="1", CHILD="1")
    assert outcome.status == 0, outcome.errors
    names = sorted((line["name"], line["set"]) for line in outcome.of("variable"))
    assert names == [("CHILD", True)] * 2 + [("PARENT", True)] * 2, "the parent, each child by spawn, one by fork"


def test_names_that_a_script_gives_to_click(training: Training) -> None:
    pytest.importorskip("click")
    outcome = training.run(CLICK, RATE="0.5")
    assert outcome.output.strip() == "0.5", outcome.errors
    (line,) = outcome.of("variable", name="RATE")
    assert line["where"] == "train.py:7"


@pytest.mark.slow
def test_torch_compile_does_not_see_it(training: Training) -> None:
    pytest.importorskip("torch")
    outcome = training.run(COMPILED, SCALE="2")
    assert outcome.output.strip() == "2.0", outcome.errors
