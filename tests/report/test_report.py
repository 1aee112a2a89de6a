"""What a report says of runs, in every format, and that hostile runs mean nothing to who reads it."""

from __future__ import annotations

import json
import subprocess
from html.parser import HTMLParser
from importlib import resources
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from markdown_it import MarkdownIt

from reprokit.report import facts as audit
from reprokit.report import html, markdown, statement
from reprokit.report.curves import POINTS, Thinned
from reprokit.report.facts import AuditFacts, document
from reprokit.report.gather import gather
from reprokit.rundir import RUN, RUNNING, OutputFile
from tests.support import Reprokit, wait_until
from tests.verify.runs import Building, digest, float32, recording, replayed, tensor, training

Pair = tuple[Building, Building]
HOSTILE = "<script>alert(1)</script><img src=x onerror=alert(2)> [x](javascript:alert(3)) `| \x1b]0;owned\x07 \u202e"
ORDER = ["trained", "how", "artifacts", "curves", "entropy", "findings", "environment", "limits", "check"]


def facts_of(pair: Pair) -> AuditFacts:
    return gather([building.write() for building in pair])


class Page(HTMLParser):
    """The elements of a page, the texts in them, and what refers to something outside."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.outside: list[str] = []
        self.handlers: list[str] = []
        self.texts: list[str] = []
        self.ids: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        for name, value in attrs:
            if name in ("src", "href", "action", "data", "srcset", "poster"):
                self.outside.append(f"{tag} {name}={value}")
            if name.startswith("on"):
                self.handlers.append(name)
            if name == "id":
                self.ids.append(value or "")

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def schema(name: str) -> Any:
    return json.loads(resources.files("reprokit").joinpath(f"schemas/{name}.schema.json").read_text())


def test_the_published_schemas_are_those_of_the_code() -> None:
    assert schema("report") == json.loads(json.dumps(audit.schema()))
    assert schema("rerun") == json.loads(json.dumps(statement.schema()))


def test_the_facts_fit_their_schema(pair: Pair) -> None:
    found = document(facts_of(pair))
    jsonschema.validate(json.loads(json.dumps(found)), schema("report"))
    assert found["verdict"]["outcome"] == "identical"
    assert [run["kind"] for run in found["runs"]] == ["recording", "replay"]
    assert found["runs"][1]["replay_of"] == found["runs"][0]["run_id"]
    assert found["entropy"]["fidelity"] == {"exact": 9, "moved": 0, "derived": 0, "live": 0, "unused": 0}


def test_a_difference_is_the_verdict_and_stands_with_its_artifact(pair: Pair) -> None:
    pair[1].outputs[0] = OutputFile(path="model.pt", size=640, digest=digest("another"))
    found = facts_of(pair)
    assert found.verdict.outcome == "different"
    assert "model.pt" in found.verdict.first_difference
    assert [item.name for item in found.digests if item.verdict == "different"] == ["model.pt"]


def test_one_run_alone_is_never_called_reproducible(pair: Pair) -> None:
    found = gather([pair[0].write()])
    assert found.verdict.outcome == "not-compared"
    verdicts = {item.verdict for category in found.categories for item in category.items}
    assert verdicts <= {"not-compared", "information", "not-recorded"}
    assert found.compared_how == found.excluded == ()


def test_runs_with_nothing_in_common_are_not_compared(tmp_path: Path) -> None:
    left = recording(tmp_path / "left")
    found = facts_of((left, replayed(left, tmp_path / "right")))
    assert found.verdict.outcome == "not-compared"
    assert found.verdict.sentence.startswith("Nothing was compared")
    assert "Nothing was compared" in html.page(found)


def test_a_run_that_goes_on_or_was_killed_says_so_first(real: Reprokit, tmp_path: Path) -> None:
    crashed = training(tmp_path / "crashed")
    crashed.run.status, crashed.run.exit_code, crashed.run.host = RUNNING, None, "elsewhere"
    found = gather([crashed.write(sealed=False)])
    assert "did not come to its end" in found.attention[0]
    process = real.start("record", "-o", "going", "--", "python3", "-c", "input()", stdin=subprocess.PIPE)
    wait_until((real.directory / "going" / RUN).exists, "the run")
    shown = real.run("report", "going")
    process.communicate("\n")
    assert shown.returncode == 0
    assert "still in progress" in shown.stdout.splitlines()[0]


def test_a_page_answers_in_order_and_needs_nothing(pair: Pair) -> None:
    page = Page(html.page(facts_of(pair)))
    assert [one for one in page.ids if one in ORDER] == ORDER
    assert page.outside == page.handlers == []
    assert not {"script", "iframe", "object", "embed", "form", "link", "base"} & set(page.tags)
    assert page.tags.count("h1") == page.tags.count("main") == 1


def test_hostile_texts_are_texts(tmp_path: Path) -> None:
    left = training(tmp_path / "left")
    left.run.command = ["python", HOSTILE]
    left.run.uncovered = [HOSTILE]
    left.run.warnings = [HOSTILE]
    left.environment["packages"] = {HOSTILE: HOSTILE}
    left.environment["code"] = {HOSTILE: digest("code")}
    left.add("log", name=HOSTILE, step=1, epoch=None, value=float32(1.0))
    left.outputs.append(OutputFile(path=HOSTILE, size=1, digest=digest("x")))
    found = facts_of((left, replayed(left, tmp_path / "right")))
    text = html.page(found)
    page = Page(text)
    assert page.handlers == page.outside == []
    assert "script" not in page.tags
    assert "img" not in page.tags
    assert sum("<script>alert(1)" in one for one in page.texts) >= 5
    for shown in (text, markdown.page(found), markdown.model_card(found)):
        assert "\x1b" not in shown
        assert "\u202e" not in shown
    for shown in (markdown.page(found), markdown.model_card(found)):
        page = Page(MarkdownIt("commonmark", {"html": True}).enable("table").render(shown))
        assert page.handlers == page.outside == []
        assert not {"script", "img", "a"} & set(page.tags)
        assert "table" in page.tags


@pytest.mark.parametrize("count", [10, 10_000])
def test_many_tensors_are_all_there(count: int, tmp_path: Path) -> None:
    left = training(tmp_path / "left")
    tensors = [tensor(f"layer{number}.weight", str(number)) for number in range(count)]
    end: dict[str, Any] = {"at": "end", "epoch": None, "object": "model#1", "class": "Net"}
    left.add("weights", **end, digest=digest("all"), tensors=tensors)
    text = html.page(facts_of((left, replayed(left, tmp_path / "right"))))
    assert all(f"layer{number}.weight" in text for number in (0, count // 2, count - 1))
    assert len(text) < 100_000 + count * 600


def test_curves_of_any_length_keep_their_extremes() -> None:
    curve = Thinned()
    for step in range(1_000_000):
        curve.add(step, 100.0 if step == 654_321 else -7.0 if step == 77 else None if step == 5 else step % 13)
    points = curve.points()
    assert (curve.count, curve.not_finite) == (1_000_000, 1)
    assert len(points) <= POINTS + 2
    assert {point.value for point in points} >= {100.0, -7.0}
    assert [point.step for point in points] == sorted(point.step for point in points)


def test_the_command_writes_what_the_name_says(real: Reprokit) -> None:
    for name, start in [("r.html", "<!DOCTYPE html>"), ("r.md", "# Identical"), ("r.json", "{"), ("r.cdx.json", "{")]:
        done = real.run("report", "first", "second", "-o", name)
        assert (done.returncode, done.stdout) == (0, ""), done.stderr
        assert (real.directory / name).read_text().startswith(start)
    facts = json.loads((real.directory / "r.json").read_text())
    assert facts["verdict"]["outcome"] == "identical"
    assert facts["curves"][0]["values"] == [40, 40]
    assert facts["entropy"]["fidelity"]["exact"] == facts["entropy"]["requests"] > 0
    shown = real.run("report", "first", "other")
    assert shown.stdout.startswith("Different.")


def test_what_is_asked_wrongly_is_said_in_a_line(real: Reprokit) -> None:
    wrong = [
        ["report", "first", "-o", "report.pdf"],
        ["report", "first", "second", "--sign", "key"],
        ["report", "nowhere"],
        ["report", "first", "-o", "missing/r.html"],
        ["report", "first", "--format", "bitwise-rerun"],
        ["report", "first", "-o", "r.txt", "--format", "text"],
    ]
    for arguments in wrong:
        done = real.run(*arguments)
        assert done.returncode == 2, arguments
        assert len(done.stderr.splitlines()) == 1
        assert not list(real.directory.glob(".*.partial"))


def test_a_bill_of_materials_is_valid_and_the_same_twice(real: Reprokit) -> None:
    """The library's own strict validator holds it against the schema; reprokit asks it before it writes."""
    from cyclonedx.schema import SchemaVersion
    from cyclonedx.validation.json import JsonStrictValidator

    fixed = {"SOURCE_DATE_EPOCH": "1700000000"}
    texts = [real.run("report", "first", "second", "--format", "cyclonedx", environment=fixed).stdout for _ in range(2)]
    assert texts[0] == texts[1]
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(texts[0]) is None
    content = json.loads(texts[0])
    assert content["metadata"]["component"]["type"] == "machine-learning-model"
    assert [one["name"] for one in content["components"] if one["type"] == "file"] == ["model.bin"]
