"""Two keyed runs: told apart by their keys, which are never shown, and by how much they asked for."""

from __future__ import annotations

import itertools

from reprokit.core.difference import Difference, Verdict
from reprokit.model.run import ProfileFacts, RunFile
from reprokit.verify.categories import entropy
from tests.verify.runs import digest

NUMBERS = itertools.count()


def keyed(key: str, events: int = 7) -> RunFile:
    # A head holds the time and a process id: no two files are equal.
    facts = ProfileFacts(digest=digest(str(next(NUMBERS))), processes=2, threads=3, events=events, entropy=16 * events)
    return RunFile(
        run_id=key, kind="record", reprokit="0.1.0", command=["true"], working_directory="/", key=key, keyed=True,
        profile=facts,
    )  # fmt: skip


def profile(left: RunFile, right: RunFile) -> Difference:
    return entropy.origin(left, right)


def test_one_key_is_the_same_entropy() -> None:
    found = profile(keyed("ab" * 32), keyed("ab" * 32))
    assert found.verdict is Verdict.IDENTICAL
    assert found.left == found.right == "keyed: 7 requests, 112 bytes for 2 processes and 3 threads"


def test_one_key_and_another_number_of_requests_can_change_results() -> None:
    found = profile(keyed("ab" * 32), keyed("ab" * 32, events=8))
    assert (found.verdict, found.can_change_results) == (Verdict.INFORMATION, True)
    assert found.detail == "both runs were answered from the same key, and did not ask for as much"


def test_another_key_is_another_entropy() -> None:
    found = profile(keyed("ab" * 32), keyed("cd" * 32))
    assert found.verdict is Verdict.INFORMATION
    assert found.detail == "two recordings, each with entropy of its own"
