"""Helpers that the run itself ends: whether they came to their own end first is no outcome."""

from __future__ import annotations

import json

import pytest

from tests.support import Reprokit, python

CLIENT = """
import os, signal, subprocess, sys
helper = '''
import os, random, sys, reprokit
random.seed(3)
reprokit.log(loss=random.random())
print("trained", flush=True)
if sys.stdin.readline() == "die":
    os.kill(os.getpid(), 9)
'''
child = subprocess.Popen([sys.executable, "-c", helper], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    start_new_session=True)
child.stdout.readline()
end = {"close": child.stdin.close, "kill": child.kill, "terminate": child.terminate,
    "group": lambda: os.killpg(child.pid, signal.SIGTERM), "die": lambda: child.communicate("die")}
end[os.environ["END"]]()
child.wait()
"""


@pytest.mark.parametrize("clock", [(), ("--clock",)], ids=["plain", "clock"])
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
