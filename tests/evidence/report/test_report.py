"""What a report says of runs, in every format, and that hostile runs mean nothing to who reads it."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from importlib import resources
from itertools import starmap
from pathlib import Path
from typing import Any

import jsonschema
import msgspec
import psutil
import pytest
import yaml
from markdown_it import MarkdownIt

from reprokit.core.pages.environment import MOST_ROWS
from reprokit.evidence.attest import predicate, statement
from reprokit.evidence.export import cyclonedx
from reprokit.evidence.report import facts as audit
from reprokit.evidence.report import html, markdown
from reprokit.evidence.report.facts import AuditFacts, CurvePoint
from reprokit.evidence.report.gather import gather
from reprokit.evidence.report.sections.curves import POINTS, ThinnedCurve
from reprokit.evidence.report.text import print_report
from reprokit.model.outputs import OutputFile
from reprokit.model.run import FINISHED, RUNNING, Bundled
from reprokit.model.run_warning import RunWarning
from reprokit.model.states import Uncovered
from reprokit.run_files.console import PrintedPiece
from reprokit.run_files.rundir import RUN, write_json
from reprokit.verify.ignores import declared
from tests.support import COMMAND, Reprokit, rest_slow, schema_of, wait_until
from tests.verify.runs import Building, digest, float32, recording, replayed, tensor, training

Pair = tuple[Building, Building]
HOSTILE = "<script>alert(1)</script><img src=x onerror=alert(2)> [x](javascript:alert(3)) `| \x1b]0;owned\x07 \u202e"
DOCS = Path(__file__).parents[3] / "docs"
CODE = re.compile("`([^`]+)`")
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
            is_inner = name == "href" and (value or "").startswith("#")
            if name in ("src", "href", "action", "data", "srcset", "poster") and not is_inner:
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
    title = "Audit facts, as reprokit report --format json writes them"
    assert schema("report") == schema_of(AuditFacts, f"urn:reprokit:report:{audit.FORMAT}", title=title)
    assert schema("rerun") == schema_of(predicate.Rerun, predicate.RERUN)
    assert schema("test-result") == schema_of(predicate.TestResult, predicate.TEST_RESULT)


def test_each_fact_says_for_what_it_is_evidence() -> None:
    """The first column of the table names facts of the schema, and every one of them."""
    text = (DOCS / "evidence.md").read_text()
    table = text.partition("## The facts")[2].partition("## The sources")[0]
    named = [name for row in table.splitlines() if row.startswith("| `") for name in CODE.findall(row.split("|")[1])]
    definitions = schema("report")["$defs"]
    for name in named:
        parts = [part for part in name.split(".") if not part.startswith("--")]
        properties = definitions["AuditFacts"]["properties"]
        for part in parts:
            found = properties[part]
            kind = (found.get("items") or found).get("$ref", "").rpartition("/")[2]
            properties = definitions.get(kind, {}).get("properties", {})
    stated = {name.partition(".")[0] for name in (*named, *CODE.findall(table))}
    assert definitions["AuditFacts"]["properties"].keys() <= stated
    assert "compliant with" not in text


def test_the_page_of_statements_has_every_key() -> None:
    table = (DOCS / "attestations.md").read_text().partition("| key | meaning |")[2].split("\n\n")[0]
    rows = [row.split("|") for row in table.splitlines() if row.startswith("| `")]
    definitions = schema("rerun")["$defs"]
    properties = definitions["Rerun"]["properties"]
    assert [CODE.findall(row[1])[0] for row in rows] == list(properties)
    for row in rows:
        inner = properties[CODE.findall(row[1])[0]]
        kind = (inner.get("items") or inner).get("$ref", "").rpartition("/")[2]
        keys = definitions.get(kind, {}).get("properties", {}).keys() - {"sha256"}
        assert keys <= set(CODE.findall(row[2])), row


def test_the_facts_fit_their_schema(pair: Pair) -> None:
    found = msgspec.to_builtins(facts_of(pair))
    jsonschema.validate(json.loads(json.dumps(found)), schema("report"))
    assert found["verdict"]["outcome"] == "identical"
    assert "command" in {category["name"] for category in found["categories"]}
    assert [run["kind"] for run in found["runs"]] == ["recording", "replay"]
    assert found["runs"][1]["replay_of"] == found["runs"][0]["run_id"]
    assert found["entropy"]["fidelity"] == {"exact": 9, "moved": 0, "derived": 0, "live": 0, "unused": 0}


def test_what_was_ignored_stands_in_every_format(pair: Pair, capsys: pytest.CaptureFixture[str]) -> None:
    for run, text in zip(pair, "ab", strict=True):
        run.outputs.append(OutputFile(path="a.log", size=3, digest=digest(text)))
    paths = [building.write() for building in pair]
    facts = gather(paths, ignores=declared(["*.log", "stale.txt"], ()))
    assert facts.verdict.outcome == "identical"
    assert facts.verdict.counts["ignored"] == 1
    assert facts.verdict.sentence.endswith("; 1 file was ignored as declared.")
    jsonschema.validate(json.loads(json.dumps(msgspec.to_builtins(facts))), schema("report"))
    print_report(facts)
    line = "--ignore '*.log' (the command line): 1 difference"
    stale = "--ignore stale.txt (the command line): 0 differences"
    for text in (capsys.readouterr().out, "".join(Page(html.page(facts)).texts), cyclonedx.document(facts)):
        assert line in text
        assert stale in text
    assert "1 difference" in markdown.page(facts)
    assert "Identical, but for what was declared" in markdown.model_card(facts)
    tests = statement.statement(facts, "test-result")["predicate"]
    assert (tests["result"], tests["warnedTests"]) == ("WARNED", ("outputs: a.log",))
    assert "ignored" not in statement.statement(gather(paths), "bitwise-rerun")["predicate"]


def test_a_difference_is_the_verdict_and_stands_with_its_artifact(pair: Pair) -> None:
    pair[1].outputs[0] = OutputFile(path="model.pt", size=640, digest=digest("another"))
    found = facts_of(pair)
    assert found.verdict.outcome == "different"
    assert "model.pt" in found.verdict.first_difference
    assert [item.name for item in found.digests if item.verdict == "different"] == ["model.pt"]


def test_another_command_is_a_row(pair: Pair) -> None:
    pair[1].run.command = [*pair[1].run.command, "--rate", "0.2"]
    facts = facts_of(pair)
    (row,) = (category for category in facts.categories if category.name == "command")
    assert (facts.verdict.outcome, row.verdict) == ("different", "different")
    assert "--rate" in row.summary
    assert facts.verdict.counts["different"] == 1


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


def ending(real: Reprokit, name: str, code: str) -> tuple[str, str, str]:
    """The beginnings of three reports of a run that ends in its own way, each without marks."""
    process = real.start("record", "-o", name, "--", sys.executable, "-c", code, stdin=subprocess.PIPE)
    orphans: list[psutil.Process] = []
    if "killed" in name:
        wait_until((real.directory / name / "began").exists, "the training")
        orphans = psutil.Process(process.pid).children()
        process.kill()
    process.communicate("\n")  # which ends a training that waits for it
    wait_until(lambda: all(map(is_over, orphans)), "the training's end, which comes after that of its output")
    found = gather([real.directory / name])
    shown = real.run("report", name)
    assert shown.returncode == 0
    texts = [text.strip() for text in Page(html.page(found).partition("<main>")[2]).texts]
    return shown.stdout.splitlines()[0], markdown.page(found).splitlines()[0].strip("*"), next(filter(None, texts))


def is_over(process: psutil.Process) -> bool:
    try:
        return bool(process.status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True


@pytest.mark.slow
def test_a_run_that_failed_or_whose_launcher_was_killed_says_so_first(real: Reprokit) -> None:
    began = "import os; open(os.path.join(os.environ['REPROKIT_RUN'], 'began'), 'w'); input()"
    for name, code, said in [
        ("failed", "raise SystemExit(3)", "This run failed: exit code 3"),
        ("aborted", "import os; os.abort()", "This run failed: killed by SIGABRT"),
        ("killed", began, "This run did not come to its end: its launcher died"),
    ]:
        for line in ending(real, name, code):
            assert line.replace("\\", "").startswith(said[:24]), (name, line)
    card = markdown.model_card(gather([real.directory / "failed"]))
    assert "This run failed" in card.partition("## Reproducibility\n\n")[2].splitlines()[0]


def test_a_run_with_no_metrics_has_a_report_in_every_format(real: Reprokit) -> None:
    assert real.run("record", "-o", "bare", "--", "true").returncode == 0
    assert real.run("replay", "bare", "-o", "bare-again").returncode == 0
    for runs in (["bare"], ["bare", "bare-again"]):
        found = gather([real.directory / name for name in runs])
        assert (found.verdict.outcome, found.curves, found.verdict.counts) == ("not-compared", (), {})
        assert "No loss or metric was recorded" in html.page(found)
        for presenter in (markdown.page, markdown.model_card, cyclonedx.document):
            assert presenter(found)
    done = real.run("report", "bare", "bare-again")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("Not compared. Nothing was compared")


def test_much_that_a_run_prints_is_kept_in_part_and_nowhere_in_its_page(real: Reprokit) -> None:
    """Of a hundred megabytes of stdout the run keeps 16 MiB at most."""
    code = "import sys\nfor _ in range(100): sys.stdout.write('x' * (1 << 20))"
    with open("/dev/null", "wb") as nowhere:
        command = [COMMAND, "record", "-o", "loud", "--", sys.executable, "-c", code]
        assert subprocess.run(command, cwd=real.directory, stdout=nowhere, stderr=nowhere).returncode == 0
    sizes = {path.parent.name: path.stat().st_size for path in (real.directory / "loud").rglob("*.console")}
    assert sizes.keys() == {"console"}
    assert 8 << 20 < sizes["console"] <= 16 << 20
    assert len(html.page(gather([real.directory / "loud"]))) < 1 << 20


def test_a_report_that_was_written_is_a_success_whatever_it_says(real: Reprokit) -> None:
    """verify and gate turn verdicts into exit statuses."""
    assert real.run("report", "first", "other").returncode == 0
    assert real.run("verify", "first", "other").returncode == 1
    assert real.run("report", "first").returncode == 0


def test_what_differs_stands_first_among_thousands(tmp_path: Path) -> None:
    left = training(tmp_path / "left")
    end: dict[str, Any] = {"at": "end", "epoch": None, "object": "model#1", "class": "Net"}
    names = [f"layer{number}.weight" for number in range(1000)]
    left.add("weights", **end, digest=digest("all"), tensors=[tensor(name, name) for name in names])
    right = replayed(left, tmp_path / "right")
    right.lines[-1]["tensors"][777] = tensor(names[777], "changed")
    right.lines[-1]["digest"] = digest("changed")
    found = facts_of((left, right))
    text = html.page(found)
    assert text.index('id="artifacts"') < text.index("layer777.weight", text.index('id="artifacts"'))
    assert text.index("layer777.weight", text.index("<h3>Weights")) < text.index("layer0.weight")
    assert found.verdict.counts["different"] == 2
    assert f"{sum(found.verdict.counts.values()):,} things were compared" in text


def test_bookkeeping_is_counted_apart_and_passes(tmp_path: Path) -> None:
    left = training(tmp_path / "left")
    left.printed["0"] = [PrintedPiece(0, "m", b"loss 0.75\nsaving took 3 s\n")]
    right = replayed(left, tmp_path / "right")
    right.printed["0"] = [PrintedPiece(0, "m", b"loss 0.75\nsaving took 4 s\n")]
    found = facts_of((left, right))
    assert (found.verdict.outcome, found.verdict.counts["bookkeeping"]) == ("identical", 1)
    assert "the training and its results, bit for bit; 1 duration differs (listed)" in found.verdict.sentence.lower()
    (category,) = [category for category in found.categories if category.name == "console"]
    assert [(item.verdict, item.left, item.right) for item in category.items if item.verdict == "bookkeeping"] == [
        ("bookkeeping", "3 s", "4 s")
    ]
    assert "the same but for bookkeeping" in html.page(found)


def test_how_to_check_it_names_only_what_can_be_done(pair: Pair) -> None:
    left, right = pair
    commands = [step.value for step in facts_of(pair).check_it]
    assert f"reprokit verify {left.path} {right.path}" in commands
    assert f"reprokit replay {left.path} -o rerun" in commands
    left.run.bundled = Bundled(entropy=False, original=digest("run.json"))
    shutil.rmtree(left.path)
    found = gather([left.write()])
    assert (found.runs[0].original, found.runs[0].original in html.page(found)) == (digest("run.json"), True)
    commands = [step.value for step in found.check_it]
    assert not [command for command in commands if command.startswith("reprokit replay")]
    assert f"sha256sum {left.path}/run.json" in commands


def test_secrets_of_the_command_line_are_not_reported(pair: Pair) -> None:
    for building in pair:
        building.run.command = [
            "python",
            "train.py",
            "--api-key",
            "hunter2",
            "s3://ann:hunter2@place/x",
            "a.token=hunter2",
        ]
    found = facts_of(pair)
    assert found.runs[1].command[-1] == "a.token=left-out"
    presenters = (html.page, markdown.page, markdown.model_card, cyclonedx.document)
    shown = [present(found) for present in presenters]
    shown += [json.dumps(msgspec.to_builtins(found)), json.dumps(statement.statement(found, "bitwise-rerun"))]
    assert not [text for text in shown if "hunter2" in text]


def test_a_page_answers_in_order_and_needs_nothing(pair: Pair) -> None:
    text = html.page(facts_of(pair))
    page = Page(text)
    assert [one for one in page.ids if one in ORDER] == ORDER
    assert page.outside == page.handlers == []
    paper = text.partition("<style>@page")[2].partition("</style>")[0]
    assert all(building.run.run_id in paper for building in pair)
    assert "counter(page)" in text
    assert page.tags.count("a") == page.tags.count("details") == len(ORDER)
    assert not {"script", "iframe", "object", "embed", "form", "link", "base"} & set(page.tags)
    assert page.tags.count("h1") == page.tags.count("main") == 1


def test_hostile_texts_are_texts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    left = training(tmp_path / "left")
    left.run.command = ["python", HOSTILE]
    left.run.uncovered = [Uncovered(source="program", text=HOSTILE)]
    left.run.warnings = [RunWarning(HOSTILE, HOSTILE)]
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
    print_report(found)
    documents = (json.dumps(msgspec.to_builtins(found)), cyclonedx.document(found))
    for shown in (text, markdown.page(found), markdown.model_card(found), capsys.readouterr().out, *documents):
        assert "\x1b" not in shown
        assert "\x07" not in shown
        assert "\u202e" not in shown
    for shown in (markdown.page(found), markdown.model_card(found).partition("\n---\n")[2]):
        page = Page(MarkdownIt("commonmark", {"html": True}).enable("table").render(shown))
        assert page.handlers == page.outside == []
        assert not {"script", "img", "a"} & set(page.tags)
        assert "table" in page.tags


def test_a_model_card_begins_with_what_hubs_read(pair: Pair) -> None:
    """The block is found and read as by huggingface_hub's RepoCard, and no text gets out of it."""
    left, _ = pair
    left.environment |= {"packages": {"transformers": "4", "torch": "2"}, "imported": ["transformers", "torch"]}
    address = "https://host.example/\U0001f600#\n---\nlicense: mit"
    left.environment["git"] = {"commit": "ab" * 20, "repository": address, "used": {"same": 1}}
    card = markdown.model_card(facts_of((left, replayed(left, left.path.with_name("again")))))
    block = re.search(r"^(\s*---[\r\n]+)([\S\s]*?)([\r\n]+---(\r\n|\n|\r)?)", card)
    assert block is not None
    metadata = yaml.safe_load(block[2])
    assert metadata.keys() == {"library_name", "tags", "reprokit"}
    assert metadata["library_name"] == "transformers"
    assert metadata["tags"] == ["reprokit", "reproducibility"]
    assert metadata["reprokit"]["verdict"] == "identical"
    assert metadata["reprokit"]["commit"] == "ab" * 20
    assert "/\U0001f600#" in metadata["reprokit"]["repository"]
    assert "license: mit" in metadata["reprokit"]["repository"]
    assert card[block.end() :].lstrip().startswith("## Reproducibility")


@pytest.mark.parametrize("count", rest_slow([10, 10_000]))
def test_many_tensors_are_counted_and_all_in_the_facts(count: int, tmp_path: Path) -> None:
    left = training(tmp_path / "left")
    tensors = [tensor(f"layer{number}.weight", str(number)) for number in range(count)]
    end: dict[str, Any] = {"at": "end", "epoch": None, "object": "model#1", "class": "Net"}
    left.add("weights", **end, digest=digest("all"), tensors=tensors)
    found = facts_of((left, replayed(left, tmp_path / "right")))
    text = html.page(found)
    assert all(f"layer{number}.weight" in text for number in (0, min(count, MOST_ROWS) // 2))
    assert ("more rows, none of which differs, are not shown here" in text) == (count > MOST_ROWS)
    assert len(text) < 100_000 + MOST_ROWS * 600
    assert sum("layer" in item.name for item in found.digests) == count


def test_curves_of_any_length_keep_their_extremes() -> None:
    curve = ThinnedCurve()
    for step in range(1_000_000):
        curve.add(step, 100.0 if step == 654_321 else -7.0 if step == 77 else None if step == 5 else step % 13 + 1)
    points = curve.points()
    assert (curve.count, curve.not_finite) == (1_000_000, 1)
    assert len(points) <= POINTS + 4
    assert [points[0], points[-1]] == [CurvePoint(0, 1.0), CurvePoint(999_999, 999_999 % 13 + 1)]
    assert {point.value for point in points} >= {100.0, -7.0}
    assert [point.step for point in points] == sorted(point.step for point in points)


@pytest.mark.parametrize("values", [[2.0, 1.0], [2.0], [None, 1.0], [2.0, None], [None], [1.0, 1.0]])
def test_a_curve_ends_with_its_last_value_be_it_finite_or_not(values: list[float | None]) -> None:
    curve = ThinnedCurve()
    for step, value in enumerate(values):
        curve.add(step, value)
    assert curve.points() == tuple(starmap(CurvePoint, enumerate(values)))


@pytest.mark.slow
def test_the_command_writes_what_the_name_says(real: Reprokit) -> None:
    for name, start in [("r.html", "<!DOCTYPE html>"), ("r.md", "# Identical"), ("r.json", "{"), ("r.cdx.json", "{")]:
        done = real.run("report", "first", "second", "-o", name)
        assert (done.returncode, done.stdout) == (0, ""), done.stderr
        assert (real.directory / name).read_text().startswith(start)
    facts = json.loads((real.directory / "r.json").read_text())
    assert facts["verdict"]["outcome"] == "identical"
    assert facts["curves"][0]["values"] == [40, 40]
    assert facts["entropy"]["fidelity"]["exact"] == facts["entropy"]["requests"] > 0
    for output in ([], ["-o", "-"]):
        assert real.run("report", "first", "other", *output).stdout.startswith("Different.")
    assert not (real.directory / "-").exists()


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


@pytest.mark.slow
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


def test_a_bill_of_materials_of_many_files_says_what_it_leaves_out(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cyclonedx, "MAX_FILES", 10)
    pair[0].outputs = [OutputFile(path=f"part-{number}", size=1, digest=digest(str(number))) for number in range(12)]
    content = json.loads(cyclonedx.document(gather([pair[0].write()])))
    assert len([one for one in content["components"] if one["type"] == "file"]) == 10
    properties = content["metadata"]["component"]["modelCard"]["properties"]
    assert {"name": "reprokit:outputs-left-out", "value": "2"} in properties


def posing(recorded: Path, copy: Path, **changes: Any) -> Path:
    """A copy of a run directory whose run.json is altered and sealed again."""
    shutil.copytree(recorded, copy)
    content = json.loads((copy / RUN).read_text())
    content.pop("check")
    write_json(copy / RUN, {**content, **changes})
    return copy


@pytest.mark.slow
def test_a_copy_is_no_second_execution(real: Reprokit, tmp_path: Path) -> None:
    """The run itself, a copy, a bundle unpacked, and a copy that poses as the replay: none of them is evidence."""
    first = real.directory / "first"
    assert real.run("bundle", "first", "-o", str(tmp_path / "packed")).returncode == 0
    assert real.run("unpack", str(tmp_path / "packed"), "-o", str(tmp_path / "unpacked")).returncode == 0
    origin = real.facts("second")["replay_of"]
    as_replay = {
        "run_id": "f" * 32,
        "kind": "replay",
        "replay_of": origin,
        "fidelity": real.facts("second")["fidelity"],
    }
    no_launcher = {"launcher_pid": 0, "launcher_started": 0.0, "started": "2026-01-02T03:04:05Z"}
    copies = [
        first,
        tmp_path / "unpacked",
        posing(first, tmp_path / "replay", **as_replay),
        posing(first, tmp_path / "elsewhere", **as_replay, **no_launcher),
    ]
    for copy in copies:
        signing = ["--format", "test-result", "-o", str(tmp_path / "statement.json")]
        done = real.run("report", "first", str(copy), *signing)
        assert (done.returncode, (tmp_path / "statement.json").exists()) == (2, False), copy
        assert "nothing-to-attest" in done.stderr
        assert "the same run" in done.stderr
        assert "Not compared." in real.run("report", "first", str(copy)).stdout
        verified = real.run("verify", "first", str(copy))
        assert verified.stdout.startswith("identical: this is one run compared with itself, which proves nothing")
    assert "with itself" not in real.run("verify", "first", "second").stdout


def test_equal_runs_that_failed_are_no_success(pair: Pair) -> None:
    for end in ({"exit_code": 3}, {"exit_code": None, "signal": "SIGKILL"}, {"exit_code": None, "status": RUNNING}):
        for building in pair:
            shutil.rmtree(building.path, ignore_errors=True)
            building.run.signal, building.run.status = None, FINISHED
            for name, value in end.items():
                setattr(building.run, name, value)
        found = facts_of(pair)
        assert found.verdict.outcome == "failed"
        assert statement.statement(found, "test-result")["predicate"]["result"] == "FAILED"
        assert statement.statement(found, "bitwise-rerun")["predicate"]["verdict"] == "failed"
        assert "# Failed" in markdown.page(found)
        assert len(found.attention) == 2


def test_two_replays_are_no_recording_and_its_replay(pair: Pair, tmp_path: Path) -> None:
    found = facts_of((pair[1], replayed(pair[0], tmp_path / "again")))
    assert found.compared_how[0].startswith("The runs are no recording and its replay")
    assert "can agree and be wrong alike" in found.notes[0]
    assert "can agree" in statement.statement(found, "bitwise-rerun")["predicate"]["notes"][0]
