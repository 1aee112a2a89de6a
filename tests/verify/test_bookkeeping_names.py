"""The names and forms by which bookkeeping is recognized, each by itself."""

from __future__ import annotations

import pickle
from datetime import datetime, timezone

import pytest

from reprokit.core.difference import BookkeepingKind
from reprokit.verify.bookkeeping import forms, names
from reprokit.verify.bookkeeping.recognition import Position, RunContext, ValueName, recognized, recognized_numbers
from reprokit.verify.categories.file_bookkeeping import value_name
from tests.diff.samples import diff

from .bookkeeping_lines import STARTED

CONTEXT = RunContext(started=STARTED, ended=STARTED + 60)
AT = datetime(2026, 11, 29, 9, 20, 30, tzinfo=timezone.utc).timestamp()


@pytest.mark.parametrize("name", ["trainLoss_ms", "step-time", "wallClock", "epochTimeMs", "fit.seconds"])
def test_names_fall_into_words(name: str) -> None:
    assert all(word.isalpha() and word.islower() for word in names.words(name))
    assert names.words("epochTimeMs") == ("epoch", "time", "ms")
    assert names.words("L1Loss/train 12 SPS") == ("l", "loss", "train", "sps")


@pytest.mark.parametrize(
    "text",
    [
        "2026-11-29T09:20:30Z",
        "2026-11-29 09:20:30.123456",
        "2026-11-29 09:20:30,123",
        "2026-11-29/09-20-30",
        "2026-11-29T092030.005195",
        "2026/11/29 09:20:30",
        "2026_11_29_09_20_30",
        "20261129_092030",
        "20261129-092030",
        "20261129092030",
        "Nov29_09-20-30",
        "Sun Nov 29 09:20:30 2026",
        "Sun, 29 Nov 2026 09:20:30 GMT",
        "29 Nov 2026 09:20:30",
        "Sun 29 Nov 2026 09:20:30 AM UTC",
        "29/Nov/2026:09:20:30 +0000",
        "11/29/2026 09:20:30",
        "11/29/26 09:20:30",
        "11/29 09:20:30",
        "I1129 09:20:30.123",
        f"{AT}",
        f"{AT:.0f}",
        f"{AT * 1000:.0f}",
        f"{AT * 1e6:.0f}",
        f"{int(AT) * 10**9}",
    ],
)
def test_dates_are_read_as_they_are_written(text: str) -> None:
    assert forms.whole(text) in (forms.Form.DATE, forms.Form.NUMBER)
    assert forms.seconds(text, 2026) == (AT, False)


@pytest.mark.parametrize(
    "text", ["2026-13-29", "2026-11-31 10:00:00", "20261345_092030", "Nov45_09-20-30", "12.5", "7"]
)
def test_what_is_no_date_has_no_time(text: str) -> None:
    assert forms.seconds(text, 2026) is None


def test_a_day_is_known_as_such() -> None:
    assert forms.seconds("2026-11-29", 2026) == (AT - AT % 86400, True)


def test_a_pickled_date_is_one() -> None:
    left, right = (pickle.dumps({"created": datetime(2026, 11, 29, 9, 20, second)}) for second in (30, 31))
    [leaf] = diff(left, right, "d.pkl").leaves()
    assert forms.pickled_date(leaf.left) == "2026-11-29T09:20:30"
    assert forms.pickled_date("call <datetime.datetime>(b'short')") is None
    assert forms.pickled_date("call <datetime.datetime>(b'\\x") is None


def kind(name: str, left: str, right: str, **more: object) -> BookkeepingKind | None:
    return recognized(ValueName(name, **more), left, right, (CONTEXT, CONTEXT))  # type: ignore[arg-type]


def test_form_and_name_are_both_needed() -> None:
    assert kind("train_runtime", "0.5", "0.25") is BookkeepingKind.DURATION
    assert kind("train_runtime", "0.5", "fast") is None
    assert kind("train_runtime", "0.5", "2026-11-29") is None
    assert kind("train_runtime", "-0.5", "0.25") is None
    assert kind("alpha", "0.5", "0.25") is None
    assert kind("", "0.5", "0.25") is None
    assert kind("created", '"2026-11-29T09:20:30"', '"2026-11-29T09:20:31"') is BookkeepingKind.DATE
    assert kind("version", '"2026-11-29T09:20:30"', '"2026-11-29T09:20:31"') is None


def test_a_short_id_and_a_host_need_their_names() -> None:
    assert kind("run_id", "3fa85f64", "99ab0cde") is BookkeepingKind.ID
    assert kind("session_id", "3fa85f64", "99650123") is BookkeepingKind.ID
    assert kind("session_id", "13985764", "99650123") is None
    assert kind("sample_id", "3fa85f64", "99ab0cde") is None
    assert kind("task_id", "boolq1", "boolq2") is None
    assert kind("version", "3fa85f64", "99ab0cde") is None
    contexts = RunContext(host="here"), RunContext(host="there")
    assert recognized(ValueName("hostname"), "'here'", "'there'", contexts) is BookkeepingKind.HOST
    assert recognized(ValueName("hostname"), "'here'", "'elsewhere'", contexts) is None
    assert recognized(ValueName("predicted host"), "here", "there", contexts) is None
    assert recognized(ValueName("label"), "here", "there", contexts) is None


def test_a_date_is_one_of_the_run() -> None:
    assert kind("created", "2026-11-29", "2026-11-30") is BookkeepingKind.DATE
    assert kind("created", "1999-11-29", "1999-11-30") is None
    assert kind("created", "2026-12-20 10:00:00", "2026-12-21 10:00:00") is None
    within = {"position": Position.WITHIN}
    assert kind("", "20261220_100000", "20261221_100000", **within) is BookkeepingKind.DATE
    assert kind("", "20200101_100000", "20200102_100000", **within) is None
    assert kind("seed", f"{AT:.0f}", f"{AT + 1:.0f}", **within) is None


def test_the_keys_above_and_beside_count() -> None:
    assert kind("time", "0.5", "0.25") is BookkeepingKind.DURATION
    assert kind("time", "0.5", "0.25", parents="history epoch") is BookkeepingKind.DURATION
    assert kind("time", "0.5", "0.25", parents="predictions") is None
    assert kind("time", "0.5", "0.25", beside=("time", "event")) is None
    assert kind("time", "0.5", "0.25", beside=("time", "loss"), is_row=True) is BookkeepingKind.DURATION
    assert kind("time", "0.5", "0.25", beside=("time", "x"), is_row=True) is None
    assert kind("t", "0.5", "0.25", beside=("r", "l", "t")) is BookkeepingKind.DURATION
    assert kind("t", "0.5", "0.25", beside=("x", "t")) is None
    assert kind("fit_time", "0.5", "0.25", parents="importance") is None
    assert kind("train_time", "0.5", "0.25", parents="config") is None
    assert kind("started", "2026-11-29", "2026-11-30", parents="config") is BookkeepingKind.DATE


@pytest.mark.parametrize(
    ("name", "left", "right", "data"),
    [
        ("date", "2026-11-29", "2026-11-30", ("date", "price")),
        ("timestamp", f"{AT}", f"{AT + 1}", ("timestamp", "sensor")),
        ("processing_time", "0.5", "0.25", ("order", "processing_time")),
        ("fps", "25", "24", ("video", "fps")),
        ("pid", "57", "58", ("pid", "age")),
        ("port", "8080", "8081", ("port", "attack")),
    ],
)
def test_the_columns_of_data_are_no_bookkeeping(name: str, left: str, right: str, data: tuple[str, ...]) -> None:
    assert kind(name, left, right, beside=data, is_row=True) is None
    assert kind(name, left, right, beside=(name, "loss"), is_row=True) is not None


def test_an_item_of_a_list_is_a_row() -> None:
    assert value_name("rows/3/date", ("date", "price")).is_row
    assert not value_name("rows/date", ("date", "price")).is_row
    assert value_name("date/3", ("date", "price")).is_row


def test_lists_of_numbers_need_a_name_that_says_more() -> None:
    assert recognized_numbers(ValueName("mean_fit_time")) is BookkeepingKind.DURATION
    assert recognized_numbers(ValueName("epoch_times")) is BookkeepingKind.DURATION
    assert recognized_numbers(ValueName("time")) is None
    assert recognized_numbers(ValueName("seconds")) is None
    assert recognized_numbers(ValueName("event_times")) is None
    assert recognized_numbers(ValueName("fit_time", parents="targets")) is None


def test_no_word_is_a_result_and_known_besides() -> None:
    """Such a word would be of no use in one of the tables."""
    tables = (names.PHASES, names.SCORING, names.STATISTICS, names.FILLERS, names.TIMES, names.RATES, names.RATED)
    assert [sorted(names.RESULTS & table) for table in tables] == [[] for _ in tables]
