"""Runs and comparisons in a notebook: small, escaped, and right also for runs that have not ended."""

from __future__ import annotations

import platform
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import psutil
import pytest

from reprokit import notebook
from reprokit.model.run import RUNNING
from reprokit.model.run_warning import RunWarning
from tests.browser import HOME, browser, violations
from tests.verify.runs import recording, replayed, training

HOSTILE = "<script>alert(1)</script><img src=x onerror=alert(2)>\x1b]0;owned\x07\u202e"
HOSTILE_WORDS = [HOSTILE, "$(touch pwned)", "'\"><b>"]


class Elements(HTMLParser):
    """The elements of a piece of HTML and the texts in it."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes.update(name for name, _ in attrs)

    def handle_data(self, data: str) -> None:
        self.text += data


def looked_at(view: notebook.View) -> Elements:
    found = Elements(view._repr_html_())
    assert found.tags <= {"div", "table", "tr", "td"}
    assert found.attributes <= {"style"}
    assert len(view._repr_html_()) < 64 << 10
    return found


def test_a_run_and_its_comparison(tmp_path: Path) -> None:
    left = training(tmp_path / "left")
    right = replayed(left, tmp_path / "right")
    paths = left.write(), right.write()
    shown = notebook.show(paths[0])
    assert shown.headline == f"recording {paths[0]}: exit code 0"
    assert shown.document["run"]["run_id"] == "id-left"
    assert "python train.py --rate 0.1" in looked_at(shown).text
    same = notebook.verify(*paths)
    assert same.headline.startswith("identical: ")
    assert same.document["verdict"] == "identical"
    assert "outputs" in looked_at(same).text
    assert repr(same).splitlines()[0] == same.headline


def test_a_difference_is_in_words_and_not_in_color_alone(tmp_path: Path) -> None:
    left, right = recording(tmp_path / "left"), recording(tmp_path / "right")
    left.losses(1.0, 0.5)
    right.losses(1.0, 0.25)
    view = notebook.verify(left.write(), right.write())
    assert view.headline.startswith("different: loss of process 0 differs first at step 1")
    assert "different" in [cell for row in view.rows for cell in row]
    looked_at(view)


def test_nothing_in_a_run_becomes_an_element_or_an_escape(tmp_path: Path) -> None:
    building = recording(tmp_path / "run")
    building.run.command, building.run.host = HOSTILE_WORDS, HOSTILE
    building.run.warnings = [RunWarning(words, words) for words in HOSTILE_WORDS]
    building.add("log", name=HOSTILE, step=0, epoch=None, value={"dtype": "str", "text": HOSTILE})
    building.write()
    for view in (notebook.show(tmp_path / "run"), notebook.ls(tmp_path)):
        found = looked_at(view)
        assert "<script>" in found.text
        for text in (found.text, repr(view)):
            assert "\x1b" not in text
            assert "\u202e" not in text


def test_runs_that_go_on_or_were_cut_off_say_so_first(tmp_path: Path) -> None:
    running, dead = recording(tmp_path / "running"), recording(tmp_path / "dead")
    for building in (running, dead):
        building.run.status, building.run.exit_code, building.run.ended = RUNNING, None, None
    process = psutil.Process()
    running.run.host, running.run.launcher_pid = platform.node(), process.pid
    running.run.launcher_started = process.create_time()
    assert "in progress" in notebook.show(running.write()).headline
    assert "did not come to its end" in notebook.show(dead.write()).headline
    assert {row[3] for row in notebook.ls(tmp_path).rows} == {"in progress", "no end"}


def test_many_rows_are_counted(tmp_path: Path) -> None:
    view = notebook.View("many", tuple((str(number), HOSTILE) for number in range(1000)))
    assert looked_at(view).text.endswith("900 more rows; document has them all")
    assert "900 more rows" in repr(view)


def test_the_module_itself_imports_nothing_heavy() -> None:
    code = "import reprokit.notebook, sys; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert {"msgspec", "click", "rich", "numpy", "jinja2"}.isdisjoint(loaded)


@pytest.mark.slow
@pytest.mark.skipif(not (HOME / "chrome").exists(), reason="no browser: make test fetches one by npm")
def test_in_a_browser_light_and_dark(tmp_path: Path) -> None:
    left, right = recording(tmp_path / "left"), recording(tmp_path / "right")
    left.run.command = right.run.command = HOSTILE_WORDS
    left.losses(1.0, 0.5)
    right.losses(1.0, 0.25)
    html = notebook.verify(left.write(), right.write())._repr_html_()
    with browser() as chromium:
        page = chromium.new_page()
        fired: list[str] = []
        page.on("dialog", lambda dialog: fired.append(dialog.message))
        for ground, ink in (("#fff", "#000"), ("#111", "#eee")):
            page.set_content(
                f'<!doctype html><html lang="en"><title>t</title><main><h1>notebook</h1>{html}</main>'
                f"<style>body{{background:{ground};color:{ink}}}</style></html>"
            )
            assert violations(page) == []
        assert fired == []
