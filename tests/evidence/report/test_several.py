"""Reports on several runs, and the page over all runs of a directory."""

from __future__ import annotations

import json
import os
from pathlib import Path
from urllib.parse import unquote

import jsonschema
import msgspec
import pytest
from markdown_it import MarkdownIt

from reprokit.cli.output import write_whole
from reprokit.core.errors import UsageError
from reprokit.core.pages.environment import MOST_ROWS
from reprokit.evidence.report import html, index, several, several_pages
from reprokit.evidence.report.gather import gather
from reprokit.evidence.report.index import IndexFacts, gather_index
from reprokit.evidence.report.several import SeveralFacts, gather_several
from reprokit.model.outputs import OutputFile
from reprokit.verify.ignores import Ignores
from tests.evidence.report.test_report import HOSTILE, Page, schema
from tests.support import Reprokit, schema_of
from tests.verify.runs import Building, digest, replayed, training


@pytest.fixture
def runs(tmp_path: Path) -> list[Building]:
    """A recording, its faithful replay, a replay with another output, and one that failed."""
    first = training(tmp_path / "first")
    same, other, failed = (replayed(first, tmp_path / name) for name in ("same", "other", "failed"))
    other.outputs[0] = OutputFile(path="model.pt", size=640, digest=digest("another"))
    other.environment["cpu"] = {"model": "6502"}
    failed.run.exit_code = 1
    return [first, same, other, failed]


def facts_of(runs: list[Building]) -> SeveralFacts:
    return gather_several([run.write() for run in runs])


def test_each_run_is_compared_with_the_first(runs: list[Building]) -> None:
    facts = facts_of(runs)
    assert facts.outcome == "different"
    verdicts = [None if run.verdict is None else run.verdict.outcome for run in facts.runs]
    assert verdicts == [None, "identical", "different", "different"]
    outputs = next(row for row in facts.differing if row.name == "model.pt")
    assert [item and item.verdict for item in outputs.runs] == ["identical", "different", "identical"]
    assert outputs.runs[1] is not None
    assert outputs.runs[1].right.endswith(digest("another"))
    model = next(row for row in facts.differing if row.category == "environment")
    assert [item and item.right for item in model.runs] == ["Z80", "6502", "Z80"]
    kinds = {row.name: row.verdicts for row in facts.categories}
    assert kinds["outputs"] == ("identical", "different", "identical")
    assert kinds["exit status"] == ("identical", "identical", "different")
    assert facts.attention == ("The run failed failed: exit code 1.",)
    names = [row.category for row in facts.differing]
    assert names.index("environment") < names.index("outputs")  # causes before effects
    assert all(len(set(row.values)) == 1 for row in facts.metrics)
    assert facts.metrics[0].values[0]


def test_the_facts_fit_their_schemas(runs: list[Building], tmp_path: Path) -> None:
    """`reprokit/schemas` has them as the code does."""
    title = "Several runs, as reprokit report A B C --format json writes them"
    assert schema("report-several") == schema_of(SeveralFacts, "urn:reprokit:report-several:1", title=title)
    title = "The runs of a directory, as reprokit report --index DIRECTORY --format json writes them"
    assert schema("report-index") == schema_of(IndexFacts, "urn:reprokit:report-index:1", title=title)
    facts = json.loads(json.dumps(msgspec.to_builtins(facts_of(runs))))
    jsonschema.validate(facts, schema("report-several"))
    jsonschema.validate(json.loads(json.dumps(msgspec.to_builtins(gather_index(tmp_path)))), schema("report-index"))


def test_a_run_that_cannot_be_compared_is_no_success(runs: list[Building]) -> None:
    facts = facts_of(runs[:2])
    again = gather_several([Path(run.run.path) for run in (*facts.runs, facts.runs[0])])
    assert facts.outcome == "identical"
    assert again.outcome == "not-compared"
    assert again.runs[2].verdict is not None
    assert "the same run" in again.runs[2].verdict.sentence
    assert {run.name for run in again.runs} == {"same", again.runs[0].run.path}  # two are named so: by their paths


def test_rows_are_bounded_and_what_is_left_out_is_counted(
    runs: list[Building], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(several, "MAX_ROWS", 9)
    for number in range(5):
        runs[2].outputs.append(OutputFile(path=f"{number}.bin", size=1, digest=digest(str(number))))
    facts = facts_of(runs)
    assert len(facts.differing) == 3
    assert facts.differing_left_out >= 4
    assert f"{facts.differing_left_out} more things that differ are not shown" in several_pages.page(facts)
    with pytest.raises(UsageError):
        gather_several([runs[0].path] * (several.MAX_RUNS + 1))


def test_hostile_texts_are_texts_in_tables_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = training(tmp_path / "first")
    other = replayed(first, tmp_path / "<img src=x>")
    third = replayed(first, tmp_path / "third")
    for run in (other, third):
        run.run.command = ["python", HOSTILE]
        run.run.host = HOSTILE
        run.outputs.append(OutputFile(path=HOSTILE, size=1, digest=digest("x")))
        run.add("log", name=HOSTILE, step=0, value={"dtype": "float64", "bits": "0" * 16, "decimal": 0.0})
    paths = [run.write() for run in (first, other, third)]
    facts, listed = gather_several(paths), gather_index(tmp_path)
    several_pages.print_several(facts)
    assert "\x1b]0" not in capsys.readouterr().out
    for text in (several_pages.page(facts), index.page(listed)):
        page = Page(text)
        assert not {"script", "img", "iframe", "form"} & set(page.tags)
        assert "\x1b" not in text
        assert "\u202e" not in text
        assert any("<script>alert(1)" in one for one in page.texts)
        assert "@page { margin: 16mm" in text  # on paper nothing stands at the edge
    for text in (several_pages.markdown(facts), index.markdown(listed)):
        page = Page(MarkdownIt("commonmark", {"html": True}).enable("table").render(text))
        assert page.handlers == page.outside == []
        assert not {"script", "img", "a"} & set(page.tags)
        assert "table" in page.tags


def test_the_index_has_recordings_with_their_replays_below(runs: list[Building], tmp_path: Path) -> None:
    for run in runs:
        run.write()
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged" / "run.json").write_text("{")
    written: dict[Path, str] = {}
    reports = index.reports(tmp_path / "my index.html", Ignores(), written.__setitem__)
    facts = gather_index(tmp_path, reports)
    by_name = {run.name: run for run in facts.runs}
    assert facts.runs[0].name == "first"  # although its replays are newer
    assert facts.runs[-1].name == "damaged"
    assert facts.runs[-1].problem
    assert {run.recording for run in facts.runs[1:4]} == {"first"}
    verdicts = {name: run.verdict for name, run in by_name.items() if run.kind == "replay"}
    assert verdicts == {"same": "identical", "other": "different", "failed": "different"}
    assert by_name["failed"].has_failed
    assert index.counted(facts).startswith("1 recording, 3 replays, 1 unreadable; replays: 1 identical")
    assert len(written) == 4
    page = index.page(facts)
    for name in ("first", "same", "other", "failed"):
        assert f'href="my%20index.html.pages/{name}.html"' in page


def test_a_run_of_any_name_has_a_page(tmp_path: Path) -> None:
    places = [tmp_path / name for name in ("a" * 255, os.fsdecode(b"not utf8 \xff"), "two\nlines", "plain")]
    for place in places:
        training(tmp_path / "one").write().rename(place)
    (tmp_path / "site").mkdir()
    facts = gather_index(tmp_path, index.reports(tmp_path / "site" / "index.html", Ignores(), write_whole))
    assert [run.problem for run in facts.runs if run.kind] == [""] * len(places)
    pages = {unquote(run.page.partition("/")[2]) for run in facts.runs if run.kind}
    assert pages == {path.name for path in (tmp_path / "site" / "index.html.pages").iterdir()}
    assert (len(pages), "plain.html" in pages) == (len(places), True)


def test_an_index_of_the_current_directory_names_it(
    runs: list[Building], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs[0].write()
    monkeypatch.chdir(tmp_path)
    assert gather_index(Path(".")).directory == str(tmp_path)


def test_the_command_writes_tables_and_indexes(real: Reprokit) -> None:
    for name, start in [("t.html", "<!DOCTYPE html>"), ("t.md", "# Different"), ("t.json", "{")]:
        done = real.run("report", "first", "second", "other", "-o", name)
        assert (done.returncode, done.stdout) == (0, ""), done.stderr
        assert (real.directory / name).read_text().startswith(start)
    assert real.run("report", "first", "second", "other").stdout.startswith("Different. 1 of 2 runs differs from")
    place = real.directory / "site"
    place.mkdir()
    done = real.run("report", "--index", ".", "-o", "site/index.html", "--pages")
    assert done.returncode == 0, done.stderr
    assert {path.name for path in (place / "index.html.pages").iterdir()} >= {"first.html", "second.html", "other.html"}
    wrong: tuple[list[str], ...] = (
        ["first", "second", "other", "--format", "cyclonedx"],
        ["first", "second", "other", "-o", "x.html", "--sign", "key"],
        ["first", "--index", ".", "-o", "x.html"],
        ["--index", ".", "--pages"],
        ["--index", "nowhere", "-o", "x.html"],
        ["first", "--pages"],
        [],
    )
    for arguments in wrong:
        done = real.run("report", *arguments)
        assert (done.returncode, len(done.stderr.splitlines())) == (2, 1), arguments
    assert not (real.directory / "x.html").exists()


def test_long_tables_of_a_page_are_cut_and_what_differs_is_not(tmp_path: Path) -> None:
    """20,000 outputs made a page of six megabytes that no printer takes."""
    first = training(tmp_path / "first")
    for number in range(3 * MOST_ROWS):
        first.outputs.append(OutputFile(path=f"{number}.bin", size=1, digest=digest(str(number))))
    other = replayed(first, tmp_path / "other")
    last = f"{3 * MOST_ROWS - 1}.bin"
    other.outputs[-1] = OutputFile(path=last, size=1, digest=digest("x"))
    facts = gather([first.write(), other.write()])
    page = html.page(facts)
    assert last in page
    assert page.count(".bin") < 2 * MOST_ROWS
    assert "more rows, none of which differs, are not shown here" in page
    assert sum(item.name.endswith(".bin") for item in facts.digests) == 3 * MOST_ROWS
