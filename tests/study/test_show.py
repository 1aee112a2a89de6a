"""`reprokit study show`: one analysis in every format, and what is no study."""

from __future__ import annotations

import csv
import json
from collections.abc import Sequence
from io import StringIO
from pathlib import Path

import jsonschema
import pytest

from reprokit.cli.main import main
from reprokit.study.description import Setup
from tests.support import shipped_schema

from .results import classified, making, series

RECORDED = Setup(name="recorded", entropy="replayed")


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    study = making(tmp_path / "study", Setup(name="bare"), RECORDED)
    study.path.mkdir()
    for name, first in (("bare", 10.0), ("recorded", 11.0)):
        times = [first + number / 100 for number in range(16)]
        study.times(name, times, evaluations=[classified(9, 10)], series=[series(2.0, 1.0)])
        for pair in range(1, 9):
            study.pair(name, pair, name == "recorded")
    return study.write()


def shown(arguments: Sequence[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    """The exit code, and what was printed."""
    with pytest.raises(SystemExit) as ended:
        main(["study", "show", *arguments])
    printed = capsys.readouterr()
    assert isinstance(ended.value.code, int)
    return ended.value.code, printed.out, printed.err


def test_the_table(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = shown([str(directory)], capsys)
    assert (code, err) == (0, "")
    heads = [line for line in out.splitlines() if line and not line.startswith((" ", "bare", "recorded"))]
    assert heads[0] == "Study s: 32 of 32 runs, 2 setups"
    assert {"Pairs", "Times and storage (medians)", "What it costs"} <= set(heads)


def test_the_document_fits_its_schema(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = shown([str(directory), "--json"], capsys)
    content = json.loads(out)
    jsonschema.Draft202012Validator(shipped_schema("study-1")).validate(content)
    assert (code, content["runs_made"], len(content["runs"])) == (0, 32, 32)
    assert content["curves"][0]["lines"][0]["points"] == [[1, 2.0], [2, 1.0]]


def test_the_csv_has_every_figure_unrounded(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = shown([str(directory), "--csv"], capsys)
    lines = list(csv.DictReader(StringIO(out)))
    found = {(line["table"], line["setup"], line["row"], line["figure"]): line["value"] for line in lines}
    assert (code, len(found)) == (0, len(lines))
    assert found["runs", "bare", "1 / second", "seconds"] == "10.01"
    assert found["setups", "recorded", "recorded / hardware", "pairs.identical"] == "8"
    cost = "record-and-replay alone / bare / time"
    assert float(found["overhead", "recorded", cost, "ratio"]) == pytest.approx(1.0993, abs=1e-4)
    assert found["overhead", "recorded", cost, "finding"] == "more"


@pytest.mark.parametrize(
    ("arguments", "words"), [(["--json", "--csv"], "choose one"), (["--html", "page.html", "--nothing"], "--nothing")]
)
def test_what_makes_no_sense_is_refused(
    directory: Path, arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = shown([str(directory), *arguments], capsys)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert words in err


@pytest.mark.parametrize("content", [None, b"", b"{}", b'{"format": 2}', b"[" * 100_000])
def test_what_is_no_study(tmp_path: Path, content: bytes | None, capsys: pytest.CaptureFixture[str]) -> None:
    if content is not None:
        (tmp_path / "study.json").write_bytes(content)
    code, out, err = shown([str(tmp_path)], capsys)
    assert (code, out, err.count("\n")) == (2, "", 1)
