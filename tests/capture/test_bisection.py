"""The smallest part of a batch: what is found, what is tried, and that nothing is tried twice."""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import given
from hypothesis import strategies as st

from reprokit.agent.capture.redo import MAX_TRIALS, SmallestPart, next_part

Samples = tuple[int, ...]


def smallest(
    count: int,
    reproduces: Callable[[Samples], bool],
    known: dict[Samples, bool] | None = None,
    max_trials: int = MAX_TRIALS,
) -> tuple[SmallestPart, list[Samples]]:
    tried: list[Samples] = []
    outcomes = dict(known or {})
    while True:
        part, found = next_part(count, outcomes, max_trials=max_trials)
        if part is None:
            return found, tried
        tried.append(part)
        outcomes[part] = reproduces(part)


def test_one_of_a_thousand_takes_a_bisection() -> None:
    found, tried = smallest(1024, lambda samples: 777 in samples)
    assert (found.samples, found.of, found.smallest, found.only_full) == ((777,), 1024, True, False)
    assert len(tried) == found.trials <= 20


def test_only_the_full_batch_is_a_clear_answer() -> None:
    found, _ = smallest(8, lambda samples: len(samples) == 8)
    assert found.line() == {"samples": list(range(8)), "of": 8, "trials": 26, "smallest": True, "only_full": True}


def test_a_batch_of_one_needs_no_trial() -> None:
    found, tried = smallest(1, lambda samples: True)
    assert (found.samples, found.only_full, tried) == ((0,), True, [])


def test_trials_are_bounded_and_the_best_so_far_is_said() -> None:
    found, tried = smallest(64, lambda samples: {3, 40} <= set(samples), max_trials=5)
    assert len(tried) == 5
    assert not found.smallest
    assert not found.only_full
    assert {3, 40} <= set(found.samples)


@given(
    st.integers(1, 40).flatmap(lambda count: st.tuples(st.just(count), st.sets(st.integers(0, count - 1), min_size=1)))
)
def test_what_is_found_is_minimal_whatever_it_takes(case: tuple[int, set[int]]) -> None:
    count, wanted = case
    found, tried = smallest(count, lambda samples: wanted <= set(samples))
    assert set(found.samples) == wanted
    assert found.smallest
    assert len(tried) == len(set(tried)) == found.trials


def test_a_search_goes_on_where_another_process_ended() -> None:
    whole, tried = smallest(32, lambda samples: {5, 6} <= set(samples))
    known = {samples: {5, 6} <= set(samples) for samples in tried[:4]}
    found, rest = smallest(32, lambda samples: {5, 6} <= set(samples), known=known)
    assert found.line() == whole.line()
    assert rest == tried[4:]
