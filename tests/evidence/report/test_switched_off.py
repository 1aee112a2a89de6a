"""What a user switched off is said where a verdict is given: no reader takes it for a training that shows nothing."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from reprokit.evidence.attest.statement import statement
from reprokit.evidence.report.gather import gather
from reprokit.model.plan import RECORD, RUN, Plan
from reprokit.model.states import SWITCHES
from reprokit.verify.runs import compare
from reprokit.verify.verdict import verdict_line
from tests.support import Reprokit

SCRIPT = 'import random; print("loss 0.5"); open("m.bin", "w").write(str(random.random()))'
COMMAND = ("--", sys.executable, "-c", SCRIPT)


def test_each_switch_is_one_of_the_plan() -> None:
    plan = Plan(mode=RECORD, command=("x",), working_directory=__import__("pathlib").Path())
    assert plan.switched_off == []
    changes: dict[str, Callable[[Plan], Plan]] = {
        name: lambda plan, name=name: msgspec.structs.replace(plan, **{name: False})  # type: ignore[misc]
        for name in ("console", "orders", "calendar", "supervisor")
    }
    assert [change(plan).switched_off for change in changes.values()] == [[name] for name in changes]
    assert msgspec.structs.replace(plan, mode=RUN, console=False).switched_off == []
    assert {*changes, "trail"} == SWITCHES.keys()


@pytest.mark.parametrize("is_replay", [True, False])
def test_a_run_without_its_console_and_trail_says_so_everywhere(reprokit: Reprokit, is_replay: bool) -> None:
    switches = ("--no-trail", "--no-console", "--no-orders", "--no-calendar", "--no-supervisor")
    reprokit.run("record", "-o", "a", *(switches if is_replay else ()), *COMMAND)
    again = ("replay", "a", "--no-supervisor") if is_replay else ("record", *switches)
    done = reprokit.run(*again, "-o", "b", *(() if is_replay else COMMAND))
    assert done.returncode == 0, done.stderr
    paths = [reprokit.directory / "a", reprokit.directory / "b"]
    comparison = compare(*paths)
    if is_replay:
        assert verdict_line(comparison).startswith("identical: ")
    assert verdict_line(comparison).endswith(f"; switched off: {', '.join(switches)}")
    for option in SWITCHES.values():
        assert option.sentence in comparison.notes
    facts = gather(paths)
    who = "Both runs lack" if is_replay else "The second run lacks"
    for option in SWITCHES.values():
        assert f"{who} {option.lost}: it was switched off by {option.option}." in facts.attention
    assert any(SWITCHES["console"].sentence in limit for limit in facts.limits)
    if is_replay:
        content = json.dumps(msgspec.to_builtins(statement(facts, "bitwise-rerun")))
        assert "console: neither run recorded any" not in content
        assert "trail: what each step of the training was made of: switched off by --no-trail" in content
    shown = reprokit.run("show", "b").stdout
    assert "what was printed: switched off by --no-console" in shown


def test_a_silent_run_is_not_said_to_be_switched_off(reprokit: Reprokit) -> None:
    reprokit.run("record", "-o", "a", "--", sys.executable, "-c", 'open("m.bin", "w").write("1")')
    reprokit.run("replay", "a", "-o", "b")
    comparison = compare(reprokit.directory / "a", reprokit.directory / "b")
    assert "switched off" not in verdict_line(comparison) + " ".join(comparison.notes)
    content = statement(gather([reprokit.directory / "a", reprokit.directory / "b"]), "bitwise-rerun")
    assert "console: neither run recorded any" in content["predicate"]["notCompared"]


def test_nothing_to_compare_is_said_with_what_was_switched_off(reprokit: Reprokit) -> None:
    for name in ("a", "b"):
        reprokit.run("record", "-o", name, "--no-console", "--", sys.executable, "-c", 'print("loss 0.5")')
    done = reprokit.run("verify", "a", "b")
    assert done.returncode == 2
    assert "what was printed: switched off by --no-console" in done.stderr


def test_a_gate_says_what_was_switched_off(reprokit: Reprokit) -> None:
    done = reprokit.run("gate", "--json", "--no-console", "--no-calendar", *COMMAND)
    assert done.returncode == 0, done.stdout
    content: dict[str, Any] = json.loads(done.stdout)
    assert content["trainings"][0]["switched_off"] == ["calendar", "console"]
    done = reprokit.run("gate", "--no-console", *COMMAND)
    assert "gate passed: every training is bitwise identical; switched off: --no-console" in done.stdout.splitlines()
