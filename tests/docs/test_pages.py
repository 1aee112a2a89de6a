"""The commands that stand on pages of docs are run as they stand there, and print what the pages say."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.browser import HOME, SCREENS, browser, violations
from tests.docs.console import run_page
from tests.support import rest_slow

QUICK = [
    "record",
    "replay",
    "continue",
    "verify",
    "show",
    "ls",
    "check",
    "data",
    "diff",
    "knowledge",
    "report",
    "keygen",
    "attest",
    "export",
    "bundle",
    "unpack",
    "doctor",
]
ROOT = Path(__file__).parents[2]
FIRST = ["index", "getting-started", "tutorials/nan", "commands/verify"]
BUTTONS = "document.querySelectorAll('pre code').length == 0 || document.querySelector('.md-code__nav[aria-label]')"
TRAININGS = Path(__file__).parents[1] / "trainings"
LONG = ["record", "gate", "ledger", "debug"]
LONGER = ["record", "profile", "reproduce", "study"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "names",
    [
        pytest.param(QUICK, id="quick"),
        pytest.param(LONG, id="long"),
        pytest.param(LONGER, id="longer", marks=pytest.mark.extended),
    ],
)
def test_the_examples_of_commands(names: list[str], tmp_path: Path) -> None:
    for name in names:
        assert run_page(f"commands/{name}.md", tmp_path) > 0


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    rest_slow(["xgboost", "ci"], extended=["keras"]),
)
def test_a_tutorial(name: str, tmp_path: Path) -> None:
    assert run_page(f"tutorials/{name}.md", tmp_path) > 2


@pytest.mark.extended
@pytest.mark.torch
def test_the_example_of_a_resumed_training(tmp_path: Path) -> None:
    shutil.copy(TRAININGS / "pytorch_resumed.py", tmp_path / "train.py")
    assert run_page("commands/resume.md", tmp_path) == 1


@pytest.mark.slow
@pytest.mark.torch
def test_the_tutorial_of_a_print_afterwards(tmp_path: Path) -> None:
    assert run_page("tutorials/afterwards.md", tmp_path) == 4


@pytest.mark.slow
@pytest.mark.torch
def test_the_tutorial_of_pytorch_and_what_is_asked_of_its_training(tmp_path: Path) -> None:
    assert run_page("tutorials/pytorch.md", tmp_path) > 2
    assert run_page("commands/ask.md", tmp_path) > 1


@pytest.mark.extended
@pytest.mark.torch
def test_the_tutorial_of_a_nan_and_the_commands_that_it_leads_to(tmp_path: Path) -> None:
    for page in ("tutorials/nan.md", "commands/run.md", "commands/snapshot.md"):
        assert run_page(page, tmp_path) > 0


@pytest.mark.extended
@pytest.mark.skipif(not (HOME / "chrome").exists(), reason="no browser: make test fetches one by npm")
def test_the_site_is_accessible(tmp_path: Path) -> None:
    build = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--site-dir", str(tmp_path)]
    subprocess.run(build, cwd=ROOT, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"}, check=True)
    with browser() as started:
        for scheme, width in SCREENS:
            context = started.new_context(color_scheme=scheme, viewport={"width": width, "height": 900})
            page = context.new_page()
            for name in FIRST:
                page.goto((tmp_path / f"{name}.html").as_uri())
                page.wait_for_function(BUTTONS)
                assert page.evaluate("document.documentElement.scrollWidth") <= width
                assert violations(page) == [], (name, scheme, width)
            context.close()
