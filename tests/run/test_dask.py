"""Dask: each task is given to the worker that had it in the recording, and nobody is waited for without end."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.run.test_orders import recorded_and_replayed
from tests.support import Reprokit

TRAININGS = Path(__file__).parent.parent / "trainings"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(find_spec("distributed") is None, reason="Dask's distributed is not installed"),
]


@pytest.mark.parametrize("kind", ["processes", "threads"])
def test_tasks_draw_what_they_drew(reprokit: Reprokit, kind: str) -> None:
    command = [sys.executable, str(TRAININGS / "dask_draws.py"), kind]
    # In one process two threads shut the workers' pools, in either order: docs/limitations.md.
    recorded_and_replayed(reprokit, *command, exact=kind == "processes")
    assert reprokit.run("verify", "recorded", "replayed1").returncode == 0
    fidelity = [reprokit.facts(name)["fidelity"] for name in ("replayed0", "replayed1")]
    assert [(each["moved"], each["derived"], each["live"]) for each in fidelity] == [(0, 0, 0)] * 2


# Size estimates come with each message that is large; what the training draws follows from its own seed alone.
SIZES = """
import random
from dask.sizeof import sizeof
random.seed(1)
sizes = {sizeof(list(range(10_000))) for _ in range(3)}
print(len(sizes), random.random() == random.Random(1).random(), sizeof([b"x" * 1000] * 100) > 100_000)
"""


def test_sizes_are_estimated_without_the_trainings_generator(reprokit: Reprokit) -> None:
    script = str(reprokit.script("train.py", SIZES))
    assert subprocess.check_output([sys.executable, script], text=True).split()[1] == "False"
    recorded = reprokit.record(sys.executable, script)
    assert recorded.stdout == "1 True True\n", recorded.stderr
