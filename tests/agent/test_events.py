"""Events of trainings: who is told, in which order, and what a failure costs."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from reprokit.agent.events.steps import APPLY, SKIP, BatchFetched, Events, UpdateDue, tell


class Noting:
    """A listener that notes what it is told."""

    def __init__(self, log: list[tuple[str, object]], name: str, answer: Callable[[], object]) -> None:
        self._log, self._name, self._answer = log, name, answer

    def handlers(self) -> dict[type[Any], Callable[[Any], object]]:
        return {UpdateDue: self._update_due}

    def failed(self, error: Exception, _handler: object) -> None:
        self._log.append((self._name, error))

    def _update_due(self, event: UpdateDue) -> object:
        self._log.append((self._name, event.optimizer))
        return self._answer()


def test_an_event_that_nobody_listens_to_has_no_handlers() -> None:
    events = Events()
    counts = [(len(events.update_due), len(events.batch_fetched))]
    listener = Noting([], "one", lambda: None)
    for change in (events.add, events.remove):
        change(listener)
        counts.append((len(events.update_due), len(events.batch_fetched)))
    assert counts == [(0, 0), (1, 0), (0, 0)]


def test_listeners_are_told_in_their_order_and_one_is_enough_to_skip() -> None:
    log: list[tuple[str, object]] = []
    events = Events()
    for name, answer in (("first", APPLY), ("second", SKIP), ("third", None)):
        events.add(Noting(log, name, lambda answer=answer: answer))  # type: ignore[misc]
    assert tell(events.update_due, UpdateDue(7)) is SKIP
    assert log == [("first", 7), ("second", 7), ("third", 7)]
    assert tell(events.batch_fetched, BatchFetched([], None)) is None


def test_a_listener_that_fails_is_told_so_and_the_others_go_on() -> None:
    log: list[tuple[str, object]] = []
    events, error = Events(), ValueError("no")

    def fail() -> object:
        raise error

    events.add(Noting(log, "broken", fail))
    events.add(Noting(log, "whole", lambda: None))
    assert tell(events.update_due, UpdateDue(7)) is None
    assert log == [("broken", 7), ("broken", error), ("whole", 7)]


@pytest.mark.slow
@pytest.mark.torch
def test_pytorch_makes_no_update_that_a_listener_skips() -> None:
    script = Path(__file__).parents[1] / "trainings" / "pytorch_skipped_updates.py"
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [
        "calls are left alone: True backward has handlers: False",
        "asked 4 done 2 changed [True, False, True, False]",
    ]


@pytest.mark.slow
@pytest.mark.tensorflow
def test_tensorflow_makes_no_update_that_a_listener_leaves_out() -> None:
    """Nothing is put in the place of what nobody listens to."""
    script = Path(__file__).parents[1] / "trainings" / "tensorflow_skipped_updates.py"
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["others are left alone: True", "asked 4 changed [True, False, True, False]"]
