"""What a launcher prints for its ranks: compared rank by rank, whatever came first."""

from __future__ import annotations

import pytest

from tests.support import Reprokit, python, training_text

LAUNCHER = training_text("merging_launcher.py")


@pytest.fixture
def recorded(reprokit: Reprokit) -> Reprokit:
    assert reprokit.run("record", "-o", "one", "--", *python(LAUNCHER)).returncode == 0
    return reprokit


@pytest.mark.parametrize(
    ("variables", "words"),
    [
        ({"FIRST": "1"}, ""),
        ({"OTHER": "1"}, "stdout of process rank1: only the right run printed line 1, 'rank 1 loss"),
        ({"FIRST": "1", "ENDS": "1"}, "stdout: absent against "),
    ],
    ids=["order", "lines", "launcher"],
)
def test_ranks_are_compared_and_the_order_in_which_they_are_merged_is_not(
    recorded: Reprokit, variables: dict[str, str], words: str
) -> None:
    recorded.run("replay", "one", "-o", "two", environment=variables)
    assert (recorded.directory / "one" / "console").exists()
    done = recorded.run("verify", "one", "two")
    assert done.returncode == (1 if words else 0), done.stdout
    if words:
        assert done.stdout.startswith(f"different: {words}")
    else:
        assert "note: stdout: it is what the ranks printed, merged by their launcher" in done.stdout
        assert "stdout of process rank1: line 3" in done.stdout
