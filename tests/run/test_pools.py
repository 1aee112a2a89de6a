"""Pools of two or more workers: which of them takes which task is as recorded, so what tasks draw is too."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest

from tests.interpreters import interpreter
from tests.run.test_orders import bare_runs_differ, recorded_and_replayed
from tests.support import Reprokit

TRAINING = str(Path(__file__).parent.parent / "trainings" / "pool_tasks.py")
KINDS = [
    ("mapped", "fork"),
    ("threads", "fork"),
    *(
        pytest.param(*kind.split(), marks=pytest.mark.slow)
        for kind in (
            "processes spawn",
            "unordered fork",
            "renewed fork",
            "died fork",
            "processes forkserver",
            "broken fork",
            "thread_pool fork",
        )
    ),
    *(
        pytest.param(kind, form, marks=pytest.mark.extended)
        for kind, form in (
            ("mapped", "spawn"),
            ("processes", "fork"),
            ("broken", "spawn"),
            ("joblib", "loky"),
            ("joblib", "threading"),
            ("joblib", "multiprocessing"),
            ("search", ""),  # GridSearchCV and cross_val_score
        )
    ),
]


@pytest.mark.parametrize(("kind", "form"), KINDS)
def test_pools(reprokit: Reprokit, monkeypatch: pytest.MonkeyPatch, kind: str, form: str) -> None:
    monkeypatch.chdir(reprokit.directory)
    command = [sys.executable, TRAINING, kind, form]
    assert bare_runs_differ(command)
    # How far a pool gets before it learns that a worker died is a race, of which nothing is left.
    recorded_and_replayed(reprokit, *command, exact=kind != "broken")
    for replayed in ("replayed0", "replayed1"):
        assert reprokit.run("verify", "recorded", replayed).returncode == 0
    assert not list(reprokit.directory.glob("re*/turns"))
    metrics = (reprokit.directory / "recorded" / "metrics.jsonl").read_text().splitlines()
    assert not [line for line in metrics if '"listing"' in line and "/turns" in line], "no directory of the training's"


@pytest.mark.slow
@pytest.mark.parametrize("version", ["3.8", pytest.param("3.10", marks=pytest.mark.extended), "3.13"])
@pytest.mark.parametrize(
    "kind",
    [
        "mapped fork",
        "processes spawn",
        *(pytest.param(kind, marks=pytest.mark.extended) for kind in ("threads fork", "thread_pool fork", "died fork")),
    ],
)
def test_pools_in_other_pythons(reprokit: Reprokit, version: str, kind: str) -> None:
    path = interpreter(version)
    if path is None:
        pytest.skip(f"no CPython {version} here")
    recorded_and_replayed(reprokit, path, TRAINING, *kind.split(), replays=1)


@pytest.mark.slow
def test_task_that_never_ends(reprokit: Reprokit) -> None:
    """In the replay alone: the other worker gives up its turn, and does all that is left."""
    recorded = reprokit.run("record", "-o", "recorded", "--", sys.executable, TRAINING, "stuck")
    assert recorded.returncode == 0, recorded.stderr
    (reprokit.directory / "stuck").touch()
    began = time.monotonic()
    replayed = reprokit.run("replay", "recorded", "-o", "replayed")
    assert replayed.returncode == 0, replayed.stderr
    assert time.monotonic() - began < 60
    assert " moved" in next(line for line in replayed.stderr.splitlines() if "orders: " in line)
    compared = reprokit.run("verify", "recorded", "replayed")
    assert compared.returncode == 1
    assert "replay of orders" in compared.stdout
