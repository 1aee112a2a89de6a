"""Numbers of steps in trainings of several optimizers."""

from __future__ import annotations

import pytest

from reprokit.agent.core.step_window import TrainingSteps


class Optimizer:
    def __init__(self, name: str) -> None:
        self.name = name


def numbers(order: str, created: str = "") -> list[int]:
    """Return the step of each update; a dot is a backward pass, a letter an update by the optimizer of this name."""
    optimizers = {name: Optimizer(name) for name in sorted({*order, *created} - {"."})}
    steps = TrainingSteps()
    for name in created:
        steps.expect(optimizers[name])
    places = []
    for event in order:
        if event == ".":
            steps.begin_backward()
        else:
            steps.updated(optimizers[event])
            places.append(steps.step)
    return places


@pytest.mark.parametrize(
    ("order", "created", "expected"),
    [
        (".a.a.a", "a", [0, 1, 2]),
        ("....a....a", "a", [0, 1]),  # gradients of several batches are accumulated
        (".ab.ab", "", [0, 0, 1, 1]),  # both update after one backward pass
        (".a.b.a.b", "ab", [0, 0, 1, 1]),  # in turn
        (".a.a.b.b", "a", [0, 1, 2, 3]),  # the second is created later
        (".a.a.a.b.a.a.a.b", "", [0, 1, 2, 3, 4, 5, 6, 7]),
        (".a.a.a", "ab", [0, 1, 2]),  # the other never updates
        (".a.a.b.a.b.a.b", "ab", [0, 1, 2, 3, 4, 5, 6]),  # one begins alone
        (".a.b.a.b.a.a.a", "ab", [0, 0, 1, 1, 2, 3, 4]),  # one stops
        ("aaa", "", [0, 1, 2]),  # no backward pass is seen
    ],
)
def test_optimizers_that_update_in_turn_share_steps_and_others_do_not(
    order: str, created: str, expected: list[int]
) -> None:
    assert numbers(order, created) == expected


def test_the_number_of_updates_and_the_first_steps_of_optimizers_are_told_to_the_proof() -> None:
    steps, first, second = TrainingSteps(), Optimizer("optimizer#0"), Optimizer("optimizer#1")
    for optimizer in (first, first, second):
        steps.begin_backward()
        steps.updated(optimizer)
    assert steps.summary() == {"steps": 3, "updates": 3, "first": {"optimizer#0": 0, "optimizer#1": 2}}
