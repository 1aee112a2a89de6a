"""Helpers that the run itself ends: whether they came to their own end first is no outcome."""

from __future__ import annotations

import json

import pytest

from tests.support import Reprokit, python, training_text

CLIENT = training_text("ended_helpers.py")


@pytest.mark.parametrize("clock", [(), pytest.param(("--clock",), marks=pytest.mark.slow)], ids=["plain", "clock"])
def test_a_helper_that_its_parent_ends_is_no_outcome(reprokit: Reprokit, clock: tuple[str, ...]) -> None:
    done = reprokit.run("record", *clock, "-o", "close", "--", *python(CLIENT), environment={"END": "close"})
    assert done.returncode == 0, done.stderr
    for end in ("kill", "group", "die") if not clock else ("terminate",):
        assert reprokit.run("replay", "close", "-o", end, environment={"END": end}).returncode == 0
        for pair in (("close", end), ("kill", "close")) if end == "kill" else (("close", end),):
            done = reprokit.run("verify", *pair)
            assert done.returncode == (1 if end == "die" else 0), done.stdout
            if end != "die":
                assert "was ended by another process of the run" in done.stdout
                assert "not compared: what process 0/1 of the" in done.stdout
                assert "one fact could have changed it" in done.stdout  # END, which the script reads, and nothing else
    facts = {end: reprokit.facts(end)["signals"] for end in ("kill", "group", "die") if not clock}
    if not clock:
        assert facts["die"] == []
        assert [signal["number"] for end in ("kill", "group") for signal in facts[end]] == [9, 15]
        assert [signal["group"] for end in ("kill", "group") for signal in facts[end]] == [False, True]
        lines = (reprokit.directory / "kill" / "metrics.jsonl").read_text().splitlines()
        pids = {line["p"]: line["pid"] for line in map(json.loads, lines) if line["k"] == "agent"}
        assert facts["kill"][0]["target"] == pids["0/1"]
