"""Real trainings, profiled by the installed command: what is found in them, and what is cleared."""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support import Reprokit, rest_slow, training_text

TRAININGS = Path(__file__).parents[1] / "trainings"

PYTORCH = training_text("pytorch_endless.py")


SINGLE_THREADED = (  # queries of DuckDB in one thread
    "c = duckdb.connect(); c.execute('SET threads = 1'); c.execute('select 1')",
    "duckdb.sql('set threads to 1'); duckdb.sql('select 1')",
    "c = duckdb.connect(config={'threads': 1}); c.execute('select 1')",
)


def profiled(reprokit: Reprokit, *arguments: str) -> dict[str, Any]:
    """The findings by subject and direction."""
    done = reprokit.run("profile", "--json", "-o", "run", *arguments)
    assert done.returncode == 0, done.stderr
    document: dict[str, Any] = json.loads(done.stdout)
    return {f"{one['subject']} {one['direction']}".strip(): one for one in document["findings"]}


@pytest.mark.parametrize(
    ("how", "subject"),
    rest_slow([("threads", "threading.Thread"), ("pool", "ThreadPoolExecutor"), ("asyncio", "ThreadPoolExecutor")]),
)
def test_threads_that_run_beside_each_other_are_suspected(reprokit: Reprokit, how: str, subject: str) -> None:
    training = str(TRAININGS / "racing_threads.py")
    found = profiled(reprokit, "--", sys.executable, training, how)
    finding = found[subject]
    assert (finding["kind"], finding["verdict"], finding["calls"]) == ("order", "suspect", 7)
    (where,) = finding["where"]
    assert (where["file"], where["function"]) == (training, "work")
    assert finding["cures"][0]["does"].startswith("a generator for each task")
    assert found["time.time"]["verdict"] == "setting"
    assert "main" in [place["function"] for place in found["time.time"]["where"]]


@pytest.mark.slow
@pytest.mark.torch
def test_processes_that_update_shared_weights_are_suspected(reprokit: Reprokit) -> None:
    training = TRAININGS / "pytorch_hogwild.py"
    finding = profiled(reprokit, "--", sys.executable, str(training))["torch.nn.Module.share_memory"]
    assert (finding["kind"], finding["verdict"], finding["fact"]) == ("order", "suspect", "pytorch.hogwild")
    assert training.read_text().splitlines()[finding["where"][0]["line"] - 1] == "    model.share_memory()"


def test_queries_of_duckdb_are_reported_with_their_lines(reprokit: Reprokit) -> None:
    """By a stand-in for the library, whose methods are found on connections and on the module."""
    stand_in = "class DuckDBPyConnection:\n    def execute(self, query): return self\n"
    functions = (
        "def connect(name='', read_only=False, config=None): return DuckDBPyConnection()\nsql = connect().execute\n"
    )
    (reprokit.directory / "duckdb.py").write_text(stand_in + functions)
    (reprokit.directory / "train.py").write_text("import duckdb\nduckdb.connect().execute('q')\nduckdb.sql('q')\n")
    finding = profiled(reprokit, "--", sys.executable, "train.py")["duckdb.query"]
    assert (finding["kind"], finding["fact"], finding["calls"]) == ("order", "duckdb.threads", 2)
    assert sorted(place["line"] for place in finding["where"]) == [2, 3]
    for number, text in enumerate(SINGLE_THREADED):
        (reprokit.directory / "train.py").write_text(f"import duckdb\n{text}\n")
        done = reprokit.run("profile", "-o", f"single{number}", "--", sys.executable, "train.py")
        assert "duckdb" not in done.stdout


@pytest.mark.skipif(shutil.which("awk") is None, reason="awk is not installed")
def test_another_program_that_seeds_itself_from_the_clock(reprokit: Reprokit) -> None:
    """The recorded time is given again; without a calendar each run has another one."""
    command = ("--", "awk", "BEGIN { srand(); print rand() }")
    assert profiled(reprokit, *command)["the time of day"]["verdict"] == "covered"
    done = reprokit.run("profile", "--no-calendar", "-o", "other", *command)
    assert "1 suspect  source the clock is read by " in done.stdout
    assert "is known to vary" not in done.stdout


def test_a_function_that_a_library_passes_on_to_its_threads_is_suspected(reprokit: Reprokit) -> None:
    """As optuna does: the threads execute a function of the library, which is given the script's."""
    lines = (
        "from concurrent.futures import ThreadPoolExecutor",
        "def work(number): return number",
        "with ThreadPoolExecutor(2) as pool: print([pool.submit(sorted, [2], key=work).result() for _ in range(3)])",
    )
    (reprokit.directory / "train.py").write_text("\n".join(lines))
    finding = profiled(reprokit, "--", sys.executable, "train.py")["ThreadPoolExecutor"]
    assert (finding["verdict"], finding["calls"], finding["fact"]) == ("suspect", 2, "python.thread-timing")
    assert (finding["where"][0]["line"], finding["where"][0]["function"]) == (2, "work")
    assert any("n_jobs=1" in cure["does"] for cure in finding["cures"])


def test_one_thread_races_with_nobody(reprokit: Reprokit) -> None:
    found = profiled(reprokit, "--", sys.executable, str(TRAININGS / "racing_threads.py"), "one")
    assert not [one for one in found.values() if one["kind"] == "order"]


@pytest.mark.extended
@pytest.mark.torch
@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="a race needs two processors")
def test_a_pytorch_training_without_end(reprokit: Reprokit) -> None:
    reprokit.script("train.py", PYTORCH)
    found = profiled(reprokit, "--steps", "3", "--confirm", "--", sys.executable, "train.py")
    assert reprokit.facts("run")["profiling"]["ended"] == "3 steps"
    guilty = next(one for one in found.values() if one["verdict"] == "guilty")
    assert guilty["subject"] in ("aten::index_put", "aten::_index_put_impl_", "aten::index_put_")
    assert (guilty["direction"], guilty["device"], guilty["fact"] is not None) == ("backward", "cpu", True)
    assert [(os.path.basename(place["file"]), place["function"]) for place in guilty["where"]] == [
        ("train.py", "loss_of")
    ]
    assert (
        guilty["where"][0]["line"]
        == PYTORCH.splitlines().index(
            "    return (x[index[0]] - target).square().sum() + net(rows[:, None]).mean() + sums.sum()"
        )
        + 1
    )
    assert guilty["cures"][0]["patch"].startswith("torch-operator=aten::")
    for cleared in (
        "aten::scatter_add forward",
        "aten::convolution forward",
        "aten::embedding_dense_backward backward",
    ):
        assert found[cleared]["verdict"] == "cleared"
        assert found[cleared]["confirmed"]["results"] == 1
    assert found["the clock in seconds as a seed of random.seed"]["where"][0]["line"] == 10


@pytest.mark.slow
def test_results_as_they_come_are_diagnosed_in_a_training_without_a_framework(reprokit: Reprokit) -> None:
    found = profiled(reprokit, "--", sys.executable, str(TRAININGS / "unordered_results.py"))
    one = found["Pool.imap_unordered"]
    assert (one["kind"], one["verdict"], one["cures"][0]["patch"]) == ("order", "suspect", "imap-ordered")
    assert os.path.basename(one["where"][0]["file"]) == "unordered_results.py"
    assert [other["subject"] for other in found.values() if other["verdict"] in ("guilty", "suspect")] == [
        "Pool.imap_unordered"
    ]
