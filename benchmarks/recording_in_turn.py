"""What recording costs the steps of a training: bare, wrappers alone, recorded without and with the trail, in turn.

    reprokit record [--trail-every 1] -- python -m benchmarks.recording_in_turn KIND [ROUNDS]

Whole trainings (recording.py) differ by more than recording costs where others use the machine. Here steps are made
as PyTorch has its functions, then as the recording has them. What counts is the time of all processors: of a round's
steps the mean, as with a stride few of them are looked at, and of the rounds the median.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import time
from collections.abc import Iterator
from typing import Any

import torch
from torch.optim import optimizer
from torch.utils.data import DataLoader, dataloader

from benchmarks.recording_training import KINDS, steps_of

SIDES = ("bare", "wrappers alone", "without the trail", "recorded")
STEPS, WARM, ROUNDS = 64, 8, 40  # of a side in a round, those before them, rounds


def part_of(name: str) -> Any:
    """The part of this process' agent that is of this class."""
    return next(one for one in gc.get_objects() if type(one).__name__ == name)


class Recording:
    """What the agent has put around PyTorch's functions, and who listens."""

    def __init__(self) -> None:
        self._hooks, self._trail = part_of("EventHooks"), part_of("StepTrail")
        self._listeners = self._hooks.events._listeners
        iterator = dataloader._BaseDataLoaderIter
        places = [(torch.autograd, "backward"), (torch.nn.Module, "__call__"), (optimizer.Optimizer, "zero_grad")]
        places += [(iterator, name) for name in ("__next__", "__init__", "_reset")]
        self._wrappers = [(owner, name, vars(owner)[name]) for owner, name in [*places, (DataLoader, "__iter__")]]
        hooks = optimizer._global_optimizer_pre_hooks, optimizer._global_optimizer_post_hooks
        self._step_hooks = [(known, dict(known)) for known in hooks]

    def use(self, side: str) -> None:
        """Take the steps from now on as this side takes them."""
        self._trail._wait_for_all()
        is_bare, has_trail = side == SIDES[0], side == SIDES[3]
        for owner, name, wrapper in self._wrappers:
            setattr(owner, name, wrapper.__wrapped__ if is_bare else wrapper)
        for known, hooks in self._step_hooks:
            known.clear()
            known.update({} if is_bare else hooks)
        events, of_trail = self._hooks.events, ("StepTrail", "TrailStride", "SampleLedger")
        heard = () if side == SIDES[1] else self._listeners
        events._listeners = tuple(one for one in heard if has_trail or type(one).__name__ not in of_trail)
        events.arrange()
        self._hooks.wants_indices = has_trail


def step_time(training: Iterator[None]) -> float:
    """Microseconds of all processors that a step of a round takes."""
    for _ in range(WARM):
        next(training)
    begin = time.process_time()
    for _ in range(STEPS):
        next(training)
    return 1e6 * (time.process_time() - begin) / STEPS


def main(kind: str, rounds: int) -> None:
    """Train, and say what a step of each side took."""
    training = steps_of(kind)
    for _ in range(2 * STEPS):
        next(training)
    recording = Recording()
    times: dict[str, list[float]] = {side: [] for side in SIDES}
    for number in range(rounds):
        for side in SIDES[number % 4 :] + SIDES[: number % 4]:
            recording.use(side)
            times[side].append(step_time(training))
    bare = statistics.median(times[SIDES[0]])
    print(f"{kind}: a bare step {bare:.0f} us")
    for side in SIDES[1:]:
        added = [one - other for one, other in zip(times[side], times[SIDES[0]], strict=True)]
        low, middle, high = statistics.quantiles(added, n=4)
        print(f"  {side}: + {middle:.0f} us ({low:.0f} to {high:.0f}, the middle half), {100 * middle / bare:.1f} %")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m benchmarks.recording_in_turn")
    parser.add_argument("kind", choices=list(KINDS))
    parser.add_argument("rounds", type=int, nargs="?", default=ROUNDS)
    main(**vars(parser.parse_args()))
