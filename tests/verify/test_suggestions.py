"""What verify proposes to declare: what differs by its form, and never what may be a result."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import jsonschema
import numpy as np
import pytest

from reprokit.core.difference import BookkeepingKind
from reprokit.core.toml_text import loads
from reprokit.verify.bookkeeping.recognition import RunContext, ValueName, proposed
from reprokit.verify.comparison import Comparison
from reprokit.verify.ignores import Ignores, declared
from reprokit.verify.suggestions import IgnoreSuggestions, suggest
from tests.diff import samples
from tests.support import shipped_schema
from tests.verify.runs import Building, replayed, training
from tests.verify.test_cli import reprokit
from tests.verify.test_ignores import printed_one, wrote_one

Three = tuple[Building, Building, Building]
STARTED = 1_767_323_045.0  # of the first run that tests.verify.runs builds
RUNS = (
    RunContext(frozenset([4711]), STARTED, directory="/home/a", host="here"),
    RunContext(frozenset([8150]), STARTED, directory="/b", host="there"),
)


@pytest.mark.parametrize(
    ("left", "right", "name", "kind"),
    [
        ("2026-01-02", "2026-01-03", "", BookkeepingKind.DATE),
        ('"2026-01-02T03:04:05.123Z"', '"2026-01-02T03:04:06Z"', "", BookkeepingKind.DATE),
        ("03:04:05", "03:04:06", "", BookkeepingKind.DURATION),
        ("03:04:05", "03:04:06", "loss at", None),
        ("1767323049.25", "1767323100.5", "x", BookkeepingKind.DATE),
        ("1767323049250", "1767323100500", "", BookkeepingKind.DATE),
        ("1767323049", "1767323100", "loss", None),
        ("3.25", "4.5", "train_runtime", BookkeepingKind.DURATION),
        ("3.25", "4.5", "step seconds", BookkeepingKind.DURATION),
        ("3.25", "4.5", "eval samples per second", BookkeepingKind.RATE),
        ("3.25", "4.5", "fps", BookkeepingKind.RATE),
        ("3.25", "4.5", "survival_time", None),
        ("3.25", "4.5", "decay_time", None),
        ("3.25", "4.5", "loss_time", None),
        ("3.25", "4.5", "seconds", BookkeepingKind.DURATION),
        ("3.25", "4.5", "half_life_seconds", None),
        ("3.25", "4.5", "predicted_duration", None),
        ("3.25", "4.5", "time_mae", None),
        ("3.25", "4.5", "best", None),
        ("3.25", "4.5", "", None),
        ("0.5", "0.25", "val_loss", None),
        ("4711", "8150", "", BookkeepingKind.PROCESS_ID),
        ("4711", "8151", "", None),
        ("here", "there", "", BookkeepingKind.HOST),
        ("here", "there", "hostname", BookkeepingKind.HOST),
        ("here", "here", "", None),
        ("/home/a/x", "/b/x", "", BookkeepingKind.PATH),
        ("/tmp/x/a1", "/tmp/y/a1", "", BookkeepingKind.TEMPORARY_NAME),
        ("0x7f0012345678", "0x7fabcdefabcd", "", BookkeepingKind.ADDRESS),
        ("01234567-89ab-cdef-0123-456789abcdef", "fedcba98-89ab-cdef-0123-456789abcdef", "", BookkeepingKind.ID),
        ("3fa85f64", "99ab0cde", "run id", BookkeepingKind.ID),
        ("3fa85f64", "99ab0cde", "user id", BookkeepingKind.ID),
        ("3fa85f64", "99ab0cde", "H", None),
        ("d41d8cd98f00b204e9800998ecf8427e", "9e107d9d372bb6826bd81d3542a419d6", "weights", None),
        ("d41d8cd98f00b204e9800998ecf8427e", "9e107d9d372bb6826bd81d3542a419d6", "H", None),
    ],
)
def test_forms_are_proposed_and_results_are_not(left: str, right: str, name: str, kind: BookkeepingKind | None) -> None:
    assert proposed(ValueName(name), left, right, RUNS) is kind


@pytest.fixture
def three(tmp_path: Path) -> Three:
    left = training(tmp_path / "a")
    left.outputs.clear()
    return left, replayed(left, tmp_path / "b"), replayed(left, tmp_path / "c")


def suggested(runs: Three, ignores: Ignores | None = None) -> IgnoreSuggestions:
    found = suggest(
        [run.path if run.path.joinpath("run.json").exists() else run.write() for run in runs], ignores or Ignores()
    )
    assert isinstance(found, IgnoreSuggestions)
    return found


def of_three(runs: Three, name: str, text: Callable[[int], str | bytes]) -> None:
    for number, run in enumerate(runs):
        wrote_one(run, name, text(number))


def date(number: int) -> str:
    return f"2026-01-0{number + 1}"


def full(runs: Three) -> None:
    """Let the runs differ in all that there is a form for; in log.txt, t.npz and out/ by what is bookkeeping anyway."""
    of_three(
        runs, "m.json", lambda n: json.dumps({"loss": 0.5, "due": f"2026-01-0{n + 1}", "h": [{"t": STARTED + n}] * 2})
    )
    of_three(runs, "m.csv", lambda n: f"step,loss,wall time,note\n1,0.5,{n}.25,{date(n)}\n2,0.4,{n}.5,{date(n)}\n")
    of_three(runs, "t.npz", lambda n: samples.npz({"elapsed": np.array(n + 0.5), "w": np.arange(3.0)}))
    of_three(runs, "log.txt", lambda n: f"[03:04:0{n}] began\nloss 0.5\n")
    for number, run in enumerate(runs):
        wrote_one(run, f"out/events-{int(STARTED) + number}.log", "a")
    for number, run in enumerate(runs):
        printed_one(run, f"loss 0.5\nitem id abcdef1{number} begins\n")


def test_what_differs_by_its_form_is_proposed_and_suffices(three: Three) -> None:
    full(three)
    found = suggested(three)
    assert found.unsuggested == ()
    assert {rule.text: rule.reason for rule in found.rules} == {
        "m.json:due": "a date",
        "m.json:h/*/t": "a date",
        "m.csv:note": "a date",
        r"^item id [A-Za-z\d_-]{6,64}": "an id",
    }
    assert found.suffices


RESULTS: list[tuple[str, Callable[[int], str | bytes], str]] = [
    ("m.json", lambda n: json.dumps({"val_loss": n + 0.5}), "which names a result"),
    ("m.json", lambda n: json.dumps({"best": n + 0.5}), "is not known"),
    ("m.json", lambda n: json.dumps({"digest": f"{n}fa85f6499ab0cde"}), "is not known"),
    ("m.json", lambda n: json.dumps({"id": "x"} if n else {"other": "y"}), "not in all"),
    ("m.csv", lambda n: f"step,accuracy\n1,{n}.5\n", "which names a result"),
    ("t.npz", lambda n: samples.npz({"a": np.full((2, 2), n + 0.5)}), "can be weights"),
    ("x.pt", lambda n: b"\0\1" + bytes([n]), "holds weights"),
    ("x.bin", lambda n: b"\0\1" + bytes([n]), "format is not known"),
    ("log.txt", lambda n: f"03:04:05 loss {n}.5\n", "other results"),
    ("log.txt", lambda n: f"03:04:05 value {n}.5\n", "other results"),
    ("log.txt", lambda n: f"03:04:05 gap {n}.5\n", "is not known"),
]


@pytest.mark.parametrize(("name", "text", "why"), RESULTS)
def test_nothing_is_proposed_for_what_may_be_a_result(
    three: Three, name: str, text: Callable[[int], str | bytes], why: str
) -> None:
    of_three(three, name, text)
    found = suggested(three)
    assert (found.rules, found.suffices) == ((), False)
    assert any(why in left.why for left in found.unsuggested), found.unsuggested


@pytest.mark.parametrize("line", ["loss {}.5", "value {}.5", "H= {}fa85f64c0", "accuracy of run {}.25"])
def test_nothing_is_proposed_for_printed_results(three: Three, line: str) -> None:
    for number, run in enumerate(three):
        printed_one(run, f"begins\n{line.format(number)}\n")
    found = suggested(three)
    assert (found.rules, len(found.unsuggested), found.suffices) == ((), 1, False)


def test_names_from_a_run_become_no_patterns(three: Three) -> None:
    of_three(three, "[x]*:a.json", lambda n: json.dumps({"*?[": date(n)}))
    found = suggested(three)
    assert [rule.text for rule in found.rules] == ["[[]x][*][:]a.json:[*][?][[]"]
    assert found.suffices


def test_what_is_declared_already_is_not_proposed_again(three: Three) -> None:
    full(three)
    found = suggested(three, declared(["m.*", "*.npz:elapsed"], ["item id .*"]))
    assert found.rules == ()
    assert found.suffices


def test_a_pattern_that_would_cover_weights_is_dropped(three: Three) -> None:
    for number, run in enumerate(three):
        wrote_one(run, f"out/2020-03-0{number + 1}.bin", b"\0")
    of_three(three, "out/2019-01-01.bin", lambda _: samples.npz({"a": np.arange(9.0)}))
    found = suggested(three)
    assert found.rules == ()
    assert any("always compared" in left.why for left in found.unsuggested)


def test_trainings_that_differ_get_no_proposal(three: Three) -> None:
    three[2].losses(0.125)
    assert isinstance(suggest([run.write() for run in three], Ignores()), Comparison)
    done = reprokit("verify", "--suggest-ignores", *(run.path for run in three))
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert "nothing is proposed, as " in done.stderr


def test_the_command_writes_a_configuration_that_suffices(three: Three, tmp_path: Path) -> None:
    full(three)
    names = [run.write().name for run in three]
    done = reprokit("verify", "--suggest-ignores", *names, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.endswith("# with these lines the runs are identical\n")
    config = loads(done.stdout)
    assert (len(config["ignore"]), len(config["ignore_console"])) == (3, 1)
    (tmp_path / "reprokit.toml").write_text(done.stdout)
    assert reprokit("verify", "-q", *names[:2], cwd=tmp_path).returncode == 0
    document = json.loads(
        reprokit("verify", "--suggest-ignores", *names, "--no-ignores", "--json", cwd=tmp_path).stdout
    )
    jsonschema.Draft202012Validator(shipped_schema("verify-suggestions")).validate(document)
    assert (document["identical"], len(document["ignore"])) == (True, 3)
    assert reprokit("verify", names[0], "--suggest-ignores", *names, cwd=tmp_path).returncode == 2
