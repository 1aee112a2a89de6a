"""Rules that judge a training while it goes on, beside it."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.rules import large_gradient
from tests.support import Reprokit

TRAINING = str(Path(__file__).parents[1] / "trainings" / "judged_meanwhile.py")
OWN = large_gradient.__file__


def findings(run: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((run / "findings.json").read_text())
    return content


@pytest.mark.slow
@pytest.mark.torch
def test_an_alarm_stops_the_training_in_good_order(reprokit: Reprokit) -> None:
    rules = reprokit.directory / "rules.toml"
    rules.write_text('rules = ["exploding-tensor", "Overfit=patience=2"]\n')
    options = ("-o", "run", "--rules", str(rules), "--on-rule", "stop")
    done = reprokit.run("record", *options, "--", sys.executable, TRAINING, "5000")
    assert done.returncode == 122, done.stderr
    assert done.stdout == "saved a checkpoint\nexit handlers ran\n"
    assert "Traceback" not in done.stderr
    said = [line for line in done.stderr.splitlines() if line.startswith("reprokit: warning: ExplodingTensor")]
    more = "(and 1 more: gradient/param_groups.0.params.0)"
    assert said[0] == f"reprokit: warning: ExplodingTensor at step 3: loss: it holds NaN {more} [alarm]"
    facts = reprokit.facts("run")
    assert (facts["exit_code"], facts["signal"], facts["status"]) == (122, None, "finished")
    assert any(
        "the training was stopped (exit status 122): ExplodingTensor" in each["text"] for each in facts["warnings"]
    )
    kept = findings(reprokit.directory / "run")
    assert {one["rule"] for one in kept["findings"]} == {"ExplodingTensor"}
    assert any("Overfit" in note for note in kept["rule_notes"])
    assert reprokit.run("check", "run").returncode == 0
    shown = reprokit.run("show", "--findings", "run")
    assert "ExplodingTensor: loss at step 3: it holds NaN" in shown.stdout
    assert "known to vary" not in shown.stdout


@pytest.mark.torch
@pytest.mark.parametrize(
    "command", [pytest.param("record", marks=pytest.mark.slow), pytest.param("run", marks=pytest.mark.extended)]
)
def test_a_rule_that_crashes_does_not_touch_the_training(reprokit: Reprokit, command: str) -> None:
    options = ("-o", "run", "--rules", f"{OWN}:Crash", "--tensors", "losses")
    done = reprokit.run(command, *options, "--", sys.executable, TRAINING, "20")
    assert (done.returncode, done.stdout) == (0, "saved a checkpoint\nexit handlers ran\n")
    assert "what a rule prints is no report" in done.stderr
    assert "--rules: their process ended early, by signal 11" in done.stderr
    assert [one["rule"] for one in findings(reprokit.directory / "run")["findings"]] == ["Crash"]


@pytest.mark.torch
@pytest.mark.extended
def test_an_alarm_starts_a_command(reprokit: Reprokit) -> None:
    options = ("-o", "run", "--rules", "auto", "--on-rule", "sh -c 'echo $REPROKIT_FINDING >> alarms; exit 3'")
    done = reprokit.run("record", *options, "--", sys.executable, TRAINING, "10")
    assert done.returncode == 0
    alarms = [json.loads(line) for line in (reprokit.directory / "alarms").read_text().splitlines()]
    assert {"rule": "ExplodingTensor", "subject": "loss", "step": 3}.items() <= max(
        alarms, key=lambda alarm: alarm["subject"] == "loss"
    ).items()
    assert "--on-rule: sh ended with status 3 for ExplodingTensor" in done.stderr
    reprokit.run("report", "run", "-o", "report.html")
    assert "ExplodingTensor: loss" in (reprokit.directory / "report.html").read_text()


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--rules", "VanishingGradients"], "near ones: VanishingGradient"),
        (["--rules", "nowhere.toml"], "nowhere.toml: No such file"),
        (["--rules", "broken.py"], "broken.py is no Python"),
        (["--on-rule", "stop"], "--on-rule needs --rules too"),
        (["--rules", "auto", "--on-rule", "'"], "--on-rule: No closing quotation"),
        (["--batch-digests", "--no-trail"], "--batch-digests is about the trail, which --no-trail leaves out"),
    ],
)
def test_what_cannot_be_meant_is_said_before_the_training(reprokit: Reprokit, words: list[str], text: str) -> None:
    (reprokit.directory / "broken.py").write_text("class A(")
    done = reprokit.run("record", *words, "--", "touch", "started")
    assert done.returncode == 125
    assert text in done.stderr
    assert done.stderr.count("\n") == 1
    assert not (reprokit.directory / "started").exists()
