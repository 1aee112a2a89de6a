"""The page of a study in a real browser: small and large studies, hostile names, on any screen and on paper."""

from __future__ import annotations

import math
import random
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from reprokit.cli.main import main
from reprokit.cli.study import leave_page
from reprokit.core.pages.drawing import Axis, axis, fitting
from reprokit.study import page
from reprokit.study.conclusions import answers
from reprokit.study.description import Setup
from tests.browser import HOME, browser, opened, picture, violations
from tests.support import rest_slow

from .results import Making, classified, making, regressed, series

in_browser = pytest.mark.skipif(not (HOME / "chrome").exists(), reason="no browser: make test fetches one by npm")
TAG = "<script>alert(1)</script><b>&"
TEN = (
    Setup(name="untouched", observe=False),
    Setup(name="G1"),
    Setup(name="G2", patches=("auto",)),
    Setup(name="G3", seeds=(0, 1, 2, 5)),
    Setup(name="G4", seeds=(0, 1, 2, 5), patches=("auto",)),
    Setup(name="G5", entropy="replayed"),
    Setup(name="G6", entropy="replayed", patches=("auto",)),
    Setup(name="G7-" + "x" * 61),
    Setup(name="G8", entropy="replayed", patches=("threads=1",)),
    Setup(name="G9", patches=("threads=1",)),
)
SIX = tuple(TEN[number] for number in (0, 1, 3, 5, 6, 7))  # in a browser, which is slow
BASES = {"untouched": 9.0, "bare": 9.2, "seeded": 9.2, "patched": 12.0, "recorded": 9.4}


def busy(path: Path, setups: Sequence[Setup], runs: int, values: int = 30, name: str = "evaluate") -> Making:
    """A study in which bare runs vary much, seeded ones a little, and recorded ones not at all."""
    made = making(path, *setups, runs=runs)
    path.mkdir()
    chance = random.Random(1)
    for setup in setups:
        for pair in range(1, runs // 2 + 1):
            own = chance.random()
            for part in ("first", "second"):
                _run(made, setup, pair, part, own, chance, values, name)
            held = setup.entropy == "replayed"
            outcome = held if setup.observe else None
            made.pair(setup.name, pair, outcome, inconsistent=0 if held else 7, predictions=100)
    return made


def _run(
    made: Making, setup: Setup, pair: int, part: str, own: float, chance: random.Random, values: int, name: str
) -> None:
    kind = "recorded" if setup.entropy == "replayed" else "patched" if setup.patches else "bare"
    kind = kind if setup.observe else "untouched"
    seconds = BASES[kind] + chance.gauss(0, 0.15) + 2.5 * bool(setup.patches)
    noise = 0.0 if setup.entropy == "replayed" else 0.02 if setup.seeds else 0.2
    luck = own + noise * chance.random()
    course = [2.3 * math.exp(-step / values * (2 + luck)) + 0.05 * luck for step in range(values)]
    right = 90 + round(8 * (luck % 1))
    facts: dict[str, Any] = {}
    if setup.observe:
        labels = {str(label): (right % 10 + 1, 11) for label in range(10)}
        facts["series"] = [series(*course, name="fit#0 loss"), series(*reversed(course), name="fit#0 accuracy")]
        facts["evaluations"] = [classified(right, 100, name=name, classes=labels), regressed(luck, f"{name} error")]
        facts["stored"] = 2_400_000 if kind == "recorded" else 400_000
        facts["profile"] = 60_000 if kind == "recorded" else 0
    made.run(setup.name, pair, part, seconds, **facts)


def hostile(path: Path, setups: Sequence[Setup] = TEN) -> Making:
    """Setups whose texts are markup or endless, with runs that failed, and values that are no numbers."""
    made = busy(path, setups, 2, name=TAG)
    made.study = replace(made.study, command=("python", TAG, "y" * 3000), runs=6)
    made.run("G1", 3, "first", 1.0, outcome="failed", ended=TAG, notes=[TAG, "n" * 4000], host=TAG, worker=TAG)
    odd = [series(1e300, float("nan"), -5.0, float("inf"), name=TAG + "z" * 4000, by="step")]
    made.run("G5", 3, "first", 9.0, series=odd, together=2)
    made.pair("G5", 3, None, words=TAG * 50, notes=[TAG, "w" * 4000])
    return made


class Parsed(HTMLParser):
    """The tags, ids and text of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: Counter[str] = Counter()
        self.ids: list[str] = []
        self.text = ""
        self.targets: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] += 1
        self.ids += [value for name, value in attrs if name == "id" and value is not None]
        self.targets += [value[1:] for name, value in attrs if name == "href" and value is not None]

    def handle_data(self, data: str) -> None:
        self.text += data


def drawn(made: Making) -> Parsed:
    return Parsed(page.page(made.analysis()))


def test_it_answers_in_words_first(tmp_path: Path) -> None:
    found = answers(busy(tmp_path / "s", [TEN[0], TEN[1], TEN[5]], 16).analysis())
    assert (found.outcome, found.headline) == ("identical", "With reprokit it repeats: 8 of 8 pairs are identical")
    repeats, varies, costs, sure = (one.sentences for one in found.answers)
    assert repeats == ("G5 (the second run of a pair replays the first): 8 of 8 pairs are identical, bit for bit.",)
    assert varies[0] == "G1 (nothing held; runs are only watched): 8 of 8 pairs are different."
    assert costs[0].startswith("G5: time +")
    assert "beside untouched, between +" in costs[0]
    assert "a run stores 2.29 MiB, 58.6 KiB of it entropy" in costs[0]
    assert sure[0] == "It rests on 16 finished runs of each of 3 setups, in pairs."
    assert "no more than 31 % of further pairs" in sure[1]


@pytest.mark.parametrize(
    ("pairs", "outcome", "words"),
    [
        ([True, False], "different", "With reprokit it does not always repeat: 1 of 2 pairs are different"),
        ([True, None], "tolerated", "With reprokit it repeats: 1 of 1 pair is identical, 1 could not be compared"),
        ([None, None], "not-compared", "Whether it repeats with reprokit is not known"),
        ([], "not-compared", "Whether it repeats with reprokit is not known"),
    ],
)
def test_it_claims_no_more_than_was_seen(pairs: list[bool | None], outcome: str, words: str, tmp_path: Path) -> None:
    made = making(tmp_path / "s", TEN[1], TEN[5], runs=4)
    made.path.mkdir()
    for number, identical in enumerate(pairs, 1):
        made.pair("G5", number, identical)
    found = answers(made.analysis())
    assert (found.outcome, found.headline) == (outcome, words)


def test_without_a_recording_the_question_was_not_asked(tmp_path: Path) -> None:
    made = making(tmp_path / "s", TEN[2], TEN[3])
    made.path.mkdir()
    found = answers(made.analysis())
    assert found.headline == "No setup records and replays"
    assert [one.sentences[0][:18] for one in found.answers[:2]] == ["That was not asked", "That was not asked"]
    assert "No run finished." in drawn(made).text


def test_every_run_is_a_point_and_a_curve(tmp_path: Path) -> None:
    made = busy(tmp_path / "s", [TEN[1], TEN[5]], 16)
    text = page.page(made.analysis())
    times = text[text.index('id="times-title"') :].partition("</svg>")[0]
    assert times.count("h0") == 32
    courses = [part.partition("</svg>")[0] for part in text.split("<svg")[1:] if "course0-" in part]
    assert [part.count("<path") - 2 for part in courses] == [16, 16]  # beside grid and axis
    assert [part.count('<path class="second"') for part in courses] == [8, 8]


def test_texts_are_no_markup_and_ids_are_unique(tmp_path: Path) -> None:
    found = drawn(hostile(tmp_path / "s"))
    assert found.tags["script"] == found.tags["b"] == 0
    assert found.text.count("<script>alert(1)</script>") > 10
    assert max(Counter(found.ids).values()) == 1
    assert "1 runs of G1 failed" in found.text


def test_the_contents_lead_to_each_section(tmp_path: Path) -> None:
    found = drawn(busy(tmp_path / "s", [TEN[1], TEN[5]], 4))
    assert len(found.targets) == found.tags["section"] == 10
    assert set(found.targets) <= set(found.ids)


@pytest.mark.slow
def test_two_hundred_runs_of_each_setup_stay_below_two_megabytes(tmp_path: Path) -> None:
    made = busy(tmp_path / "s", [TEN[1], TEN[5]], 200, values=250)
    path = tmp_path / "page.html"
    page.write(made.analysis(), path)
    assert path.stat().st_size < 2_000_000
    assert list(tmp_path.glob(".*")) == []


@pytest.mark.parametrize(("place", "status"), [("page.html", 0), ("nowhere/page.html", 2)])
def test_the_command_writes_it(place: str, status: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    directory = busy(tmp_path / "s", [TEN[1], TEN[5]], 2).write()
    with pytest.raises(SystemExit) as ended:
        main(["study", "show", str(directory), "--html", str(tmp_path / place)])
    assert ended.value.code == status
    assert capsys.readouterr().err.count("\n") == (1 if status else 0)
    assert (tmp_path / place).exists() == (status == 0)


def test_a_study_is_made_where_a_page_cannot_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = busy(tmp_path / "s", [TEN[1], TEN[5]], 2).write()
    leave_page(directory)
    assert (directory / page.NAME).stat().st_mode & 0o777 == 0o600
    monkeypatch.setitem(sys.modules, "scipy", None)
    leave_page(directory)
    written, missing = capsys.readouterr().err.splitlines()
    assert written.endswith(f"its page: {directory / page.NAME}")
    assert "no page is left in" in missing
    assert "pip install" in missing


@pytest.mark.slow
def test_what_a_page_lacks_is_said_before_the_first_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    study = 'name = "s"\ncommand = ["true"]\nruns = 2\n[[setup]]\nname = "a"\n[[setup]]\nname = "b"\n'
    (tmp_path / "study.toml").write_text(study)
    monkeypatch.setitem(sys.modules, "scipy", None)
    with pytest.raises(SystemExit):
        main(["study", "run", str(tmp_path / "study.toml"), "-o", str(tmp_path / "made")])
    first = capfd.readouterr().err.partition("\n")[0]
    assert "no page will be written without scipy: pip install scipy" in first


@pytest.mark.parametrize(
    ("low", "high", "marks"),
    [(0.0, 7.0, [0, 1, 2, 3, 4, 5, 6, 7]), (8.6, 9.4, [8.6, 8.8, 9.0, 9.2, 9.4]), (3.0, 3.0, [3.0])],
)
def test_marks_are_round_values_of_the_axis(low: float, high: float, marks: list[float]) -> None:
    assert Axis(low, high, 0, 100).marks(7) == pytest.approx(marks)


def test_an_axis_is_logarithmic_where_values_lie_far_apart() -> None:
    found = axis([0.01, 5.0, 100.0], 0, 100, may_be_logarithmic=True)
    assert [round(found.place(mark), 6) for mark in found.marks(4)] == [0, 50, 100]
    assert [round(axis([1, 3], 10, 0).place(value)) for value in (1, 2, 3)] == [10, 5, 0]
    assert axis([-1.0, 900.0], 0, 1, may_be_logarithmic=True).logarithmic is False


def test_a_name_is_cut_in_its_middle() -> None:
    assert fitting("short", 10) == "short"
    assert fitting("one-long-name-1", 10) == "one-…ame-1"


# ---- in a browser ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def started() -> Iterator[Any]:
    with browser() as chromium:
        yield chromium


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The page of the smallest study, and of one that is as bad as can be."""
    directory = tmp_path_factory.mktemp("pages")
    made = {"two": busy(directory / "two", [TEN[1], TEN[5]], 2), "hostile": hostile(directory / "hostile", SIX)}
    for name, one in made.items():
        page.write(one.analysis(), directory / f"{name}.html")
    return {name: directory / f"{name}.html" for name in made}


@in_browser
@pytest.mark.parametrize(
    ("name", "scheme", "width"),
    rest_slow([("hostile", "light", 360), ("hostile", "dark", 1200), ("two", "light", 1200)]),
)
def test_a_page_is_whole_and_accessible(
    name: str, scheme: str, width: int, written: dict[str, Path], started: Any, tmp_path: Path
) -> None:
    with opened(started, written[name], scheme, width) as shown:
        assert violations(shown) == []
        picture(shown, tmp_path / f"{name}-{scheme}-{width}.png")


@in_browser
def test_without_scripts_and_on_paper_nothing_is_cut_off(written: dict[str, Path], started: Any) -> None:
    context = started.new_context(java_script_enabled=False)
    shown = context.new_page()
    shown.goto(written["hostile"].as_uri())
    shown.emulate_media(media="print")
    boxes = [(box.evaluate("box => box.scrollHeight - box.clientHeight")) for box in shown.query_selector_all(".table")]
    assert len(boxes) > 8
    assert max(boxes) <= 1
    context.close()
