"""Forked, spawned and killed processes."""

from __future__ import annotations

import signal

import pytest

from tests.agent.training import Training
from tests.support import wait_until

FORK = """
import os, random, reprokit
reprokit.log(parent=1)
child = os.fork()
if child == 0:
    reprokit.log(child=2)
    random.seed(7)
    raise SystemExit
os.waitpid(child, 0)
reprokit.log(parent=3)
"""

POOL = """
import multiprocessing, random, reprokit, sys

def work(number):
    if number:
        reprokit.log(worked=number)

if __name__ == "__main__":
    context = multiprocessing.get_context(sys.argv[1])
    for number in (0, 5):
        worker = context.Process(target=work, args=(number,))
        worker.start()
        worker.join()
    print("done")
"""

ENDLESS = """
import reprokit, itertools, time
for step in itertools.count():
    reprokit.log(loss=step / 8, step=step)
    time.sleep(0.001)
"""


def test_a_forked_child_writes_lines_of_its_own(any_training: Training) -> None:
    outcome = any_training.run(FORK)
    assert outcome.status == 0
    assert [line["value"]["decimal"] for line in outcome.of("log", p="0")] == [1, 3]
    child = [line for line in outcome.lines if line["p"] == "0/?"]
    numbered = [line["n"] for line in child if "n" in line]  # a number is a record where it can be one
    assert numbered == list(range(len(numbered)))
    assert [line["k"] for line in child] == ["log", "seed", "random_state", "end"]
    assert outcome.one("end", p="0")["n"] == max(
        line["n"] for line in outcome.lines if line["p"] == "0" and "n" in line
    )


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_multiprocessings_workers_report_and_end(any_training: Training, method: str) -> None:
    outcome = any_training.run(POOL, method)
    assert (outcome.status, outcome.output, outcome.errors) == (0, "done\n", "")
    line = outcome.one("log", name="worked")
    assert line["value"] == {"dtype": "int", "decimal": 5}
    if method == "fork":  # a child with nothing to say stays silent
        others = [line["k"] for line in outcome.lines if line["p"] == "0/?"]
        assert others == ["log", "random_state", "end"]


def test_what_was_logged_survives_a_kill(training: Training) -> None:
    process = training.start(ENDLESS)
    wait_until(lambda: len(training.lines()) > 50, "lines")
    process.send_signal(signal.SIGKILL)
    process.wait()
    lines = training.lines()
    assert [line["n"] for line in lines] == list(range(len(lines)))
    assert [line["step"] for line in lines[1:]] == list(range(len(lines) - 1))
    assert lines[-1]["k"] == "log"


def test_ctrl_c_reaches_the_training(training: Training) -> None:
    process = training.start(ENDLESS)
    wait_until(lambda: len(training.lines()) > 5, "lines")
    process.send_signal(signal.SIGINT)
    assert process.wait() == -signal.SIGINT
    assert training.lines()[-1]["k"] == "end"


def test_threads_do_not_mix_their_lines(training: Training) -> None:
    outcome = training.run(
        """
import threading, reprokit
def log(name):
    for step in range(200):
        reprokit.log(step=step, **{name: "x" * 3000})
threads = [threading.Thread(target=log, args=(name,)) for name in "abcd"]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
"""
    )
    for name in "abcd":
        assert [line["step"] for line in outcome.of("log", name=name)] == list(range(200))
    assert sorted(line["n"] for line in outcome.lines) == list(range(len(outcome.lines)))


POOLED = """
import multiprocessing, random
from concurrent.futures import ProcessPoolExecutor

def work(number):
    random.seed(number)
    return random.random()

if __name__ == "__main__":
    with multiprocessing.get_context("fork").Pool(2) as pool:
        pool.map(work, range(8))
        pool.close()
        pool.join()
    with ProcessPoolExecutor(2) as pool:
        list(pool.map(work, range(8)))
"""


def test_workers_of_pools_tell_no_random_state(any_training: Training) -> None:
    """It would be that of the task which the worker had last, if it had any."""
    outcome = any_training.run(POOLED)
    assert (outcome.status, outcome.errors) == (0, "")
    assert {line["argument"] for line in outcome.of("seed") if line["p"] != "0"} == {str(part) for part in range(8)}
    assert {line["p"] for line in outcome.of("random_state")} == {"0"}


USES = {
    "module": "import frames",
    "alias": "import frames.parts as parts",
    "class": "from frames import Frame",
    "value": "import frames\ntable = frames.Frame()\ndel frames",
    "in a function": "def run():\n    import frames\nrun()",
    "in a method": "class Model:\n    def fit(self):\n"
    "        def inner():\n            import frames\n        inner()\nModel().fit()",
    "own module": "import helpers",
    "other package": "import other",
    "text": "import other\nname = 'frames'",
    "lazy": "import other\nclass Lazy:\n"
    "    def __getattr__(self, name):\n        raise RuntimeError(name)\nlazy = Lazy()",
}


@pytest.mark.parametrize("use", USES)
def test_the_end_tells_what_the_script_s_own_code_names(any_training: Training, use: str) -> None:
    any_training.write("site-packages/frames/__init__.py", "class Frame:\n    pass\n")
    any_training.write("site-packages/frames/parts.py", "")
    any_training.write("site-packages/other.py", "import frames\n")
    any_training.write("helpers.py", "from frames import Frame\n")
    outcome = any_training.run(USES[use], python_path=[any_training.directory / "site-packages"])
    assert (outcome.status, outcome.errors) == (0, "")
    end = outcome.one("end")
    assert "frames" in end["packages"]
    assert end["used"] == (["other"] if USES[use].startswith("import other") else ["frames"])
    assert not outcome.of("warning")
