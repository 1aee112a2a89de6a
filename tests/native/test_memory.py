"""What long runs cost: memory that does not grow with the recording, in whichever order it is asked for."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.native.harness import Shim
from tests.support import rest_slow

FEW, MANY = "10000", "3000000"
MOST = 8 << 10  # KiB that three million requests, 63 MB of recording, may add


@pytest.mark.parametrize("other", rest_slow([[], ["thread"]]), ids=["exact", "moved"])
def test_the_memory_of_a_replay_does_not_grow_with_the_recording(
    other: list[str], shim: Shim, build: Callable[..., str]
) -> None:
    """Replayed in the thread it was recorded in, and in another one, which takes every event out of its stream."""
    program, most = build("amounts.c"), {}
    for count in (FEW, MANY):
        recorded = shim.record([program, count, "16", *other], count).stdout.split()
        replayed = shim.replay([program, count, "16"], profile=count).stdout.split()
        assert replayed[0] == recorded[0]
        fidelity = shim.fidelity(profile=count)
        assert (fidelity.moved if other else fidelity.exact) == int(count)
        most[count] = int(replayed[1])
    assert most[MANY] - most[FEW] < MOST


def test_the_memory_of_a_recording_does_not_grow_with_it(shim: Shim, build: Callable[..., str]) -> None:
    program = build("amounts.c")
    few, many = (int(shim.record([program, count, "16"]).stdout.split()[1]) for count in (FEW, MANY))
    assert many - few < MOST


def test_events_of_many_sizes_and_threads_are_found_wherever_they_moved(shim: Shim, build: Callable[..., str]) -> None:
    sizes = [str(1 + 37 * i % 200) for i in range(100)]
    program = build("requests.c")
    recorded = shim.record([program, *sizes, *(f"t{size}" for size in sizes)])
    again = shim.replay([program, *(f"t{size}" for size in sizes), *sizes])
    assert sorted(again.stdout.split()) == sorted(recorded.stdout.split())
    fidelity = shim.fidelity()
    assert (fidelity.exact + fidelity.moved, fidelity.derived, fidelity.unused) == (200, 0, 0)


def test_what_was_never_asked_for_is_not_looked_for_again_and_again(shim: Shim, build: Callable[..., str]) -> None:
    """A class of events that is not there is answered without a pass through the file for each request."""
    program = build("amounts.c")
    shim.record([program, MANY, "16"])
    shim.replay([program, "20000", "17"])
    fidelity = shim.fidelity()
    assert (fidelity.derived, fidelity.unused) == (20_000, int(MANY))
