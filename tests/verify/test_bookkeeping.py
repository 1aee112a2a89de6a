"""Files, names of directories and metrics in files that differ by times, ids and names of the runs alone."""

from __future__ import annotations

import base64
import csv
import io
import itertools
import json
import pickle
import sqlite3
import struct
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import jsonschema
import numpy
import pytest

from reprokit.core.difference import BookkeepingKind, Difference, Verdict
from reprokit.model.outputs import OutputFile, OutputLink
from reprokit.run_files.rundir import seal_file
from reprokit.verify.comparison import Comparison, Level
from reprokit.verify.runs import compare
from reprokit.verify.show.comparison import document, rows
from reprokit.verify.verdict import verdict_line
from tests.diff import samples
from tests.diff.test_logged import event, version

from .bookkeeping_lines import STARTED
from .runs import float32, recording, training

SCHEMA = json.loads((Path(__file__).parents[2] / "reprokit" / "schemas" / "verify.schema.json").read_text())
LEFT_START, RIGHT_START = "2026-11-29T09:20:00Z", "2026-11-29T10:20:00Z"

Files = dict[str, bytes]
Compared = Callable[..., Comparison]


@pytest.fixture
def compared(tmp_path: Path) -> Compared:
    """Compare two runs that wrote these files, in directories of their own."""

    numbers = itertools.count()

    def build(place: Path, name: str, started: str, files: Files, links: dict[str, str]) -> Path:
        building = training(place / name)
        home = place / f"work-{name}"
        building.run.working_directory, building.run.started, building.run.ended = str(home), started, started
        for path, content in files.items():
            file = home / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(content)
            sealed = seal_file(file)
            assert sealed is not None
            building.outputs.append(OutputFile(path=path, size=sealed.size, digest=sealed.digest))
        building.links = [OutputLink(path=path, target=target) for path, target in links.items()]
        return building.write()

    def run(left: Files, right: Files, left_links: Any = None, right_links: Any = None) -> Comparison:
        place = tmp_path / f"{next(numbers)}"
        place.mkdir(exist_ok=True)
        left_run = build(place, "left", LEFT_START, left, left_links or {})
        return compare(left_run, build(place, "right", RIGHT_START, right, right_links or {}))

    return run


def table(*table_rows: tuple[Any, ...]) -> bytes:
    file = io.StringIO()
    csv.writer(file).writerows(table_rows)
    return file.getvalue().encode()


def database(path: Path, *statements: str) -> bytes:
    path.unlink(missing_ok=True)
    with sqlite3.connect(path) as connection:
        for statement in statements:
            connection.execute(statement)
    connection.close()
    return path.read_bytes()


def notebook(address: str, second: int, value: float) -> bytes:
    execution = {"iopub.status.busy": f"2026-11-29T09:27:{second:02}.940670Z"}
    output = {"output_type": "execute_result", "data": {"text/plain": [f"<object at {address}>"]}}
    stream = {"output_type": "stream", "text": [f"loss {value}\n"]}
    cell = {"cell_type": "code", "metadata": {"execution": execution}, "outputs": [output, stream], "source": ["x"]}
    return json.dumps({"cells": [cell], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}).encode()


def stored_policy(address: str, time: float, reward: float) -> bytes:
    """What Stable-Baselines3 writes: JSON without an ending in a zip archive, with pickles in base64."""
    episodes = base64.b64encode(pickle.dumps([{"r": reward, "l": 9, "t": time}])).decode()
    content = {
        "policy_class": {"forward": f"<function Policy.forward at {address}>"},
        "start_time": int((STARTED + time) * 1e9),
        "ep_info_buffer": {":type:": "<class 'collections.deque'>", ":serialized:": episodes},
    }
    return samples.zipped({"data": json.dumps(content, indent=4).encode(), "version": b"2"})


class History:
    """As gensim's and skorch's objects: attributes of a training, with its times."""

    def __init__(self, seconds: float, at: datetime, loss: float):
        self.total_train_time, self.created, self.loss = seconds, at, loss
        self.history = [{"epoch": 1, "train_loss": loss, "dur": seconds}]


def time_of(number: int) -> datetime:
    return datetime(2026, 11, 29, 9, 21, number)


# By the file's name: what makes it of the bookkeeping's number (1 or 2) and of a result.
WRITERS: dict[str, Callable[[int, float], bytes]] = {
    "result.json": lambda n, x: json.dumps(
        {"accuracy": x, "train_runtime": n / 7, "samples_per_second": n * 1.5, "finished": f"2026-11-29T09:2{n}:00"}
    ).encode(),
    "log.csv": lambda n, x: table(("epoch", "time", "loss"), (0, n / 7, x), (1, n / 3, x)),
    "log.jsonl": lambda n, x: b"".join(
        json.dumps({"epoch": e, "loss": x, "time": n / 7, "timestamp": STARTED + n}).encode() + b"\n" for e in range(3)
    ),
    "train.log": lambda n, x: "".join(
        f"2026-11-29 09:2{n}:0{e},123 INFO epoch {e} loss {x} took 0.{n}s\n" for e in range(9)
    ).encode(),
    "args.yaml": lambda n, x: f"lr: {x}\nstarted: 2026-11-29 09:2{n}:07\ntrain_time: 0.{n}\n".encode(),
    "README.md": lambda n, x: f"# Model\n\n- Loss: {x}\n- Training took {n}.5 seconds on 2026-11-{28 + n}\n".encode(),
    "model.npz": lambda n, x: samples.npz({"weights": numpy.array([[x, 1.0]]), "fit_time": numpy.array(n / 7)}),
    "model.pkl": lambda n, x: pickle.dumps({"coef_": numpy.array([x, 1.0]), "fit_seconds": n / 7}),
    "predictions.csv": lambda n, x: table(("row", "pred", "predict_time"), (0, x, n / 7), (1, 0.5, n / 3)),
    "losses.json": lambda n, x: json.dumps({"loss_time": x, "train_time": n / 7}).encode(),
    "RESULTS.md": lambda n, x: f"# 3 runs\n\n| Run | Loss | Time (s) |\n|---|---|---|\n| 0 | {x} | 0.{n} |\n".encode(),
    "lists.pkl": lambda n, x: pickle.dumps({"loss": [x], "time_per_epoch": [n / 7, n / 3]}),
    "timer.pkl": lambda n, x: pickle.dumps({"loss": x, "callbacks": {"Timer": {"time_elapsed": {"train": n / 7}}}}),
    "history.pkl": lambda n, x: pickle.dumps(History(n / 7, time_of(n), x)),
    "cv.npz": lambda n, x: samples.npz({"mean_fit_time": numpy.array([n / 7, n / 3]), "score": numpy.array([x])}),
    "out.ipynb": lambda n, x: notebook(f"0x7ffff75a759{n}", n, x),
    "ppo.zip": lambda n, x: stored_policy(f"0x7fff7280f06{n}", n / 7, x),
    ".snakemake/metadata/ZGF0YQ==": lambda n, x: json.dumps(
        {"code": x, "job_hash": 8796073751935 + n, "starttime": STARTED + n, "endtime": STARTED + 2 * n}
    ).encode(),
}


def kinds(comparison: Comparison) -> set[BookkeepingKind]:
    return set(comparison.tree.bookkeeping())


def below(tree: Difference, name: str) -> list[Difference]:
    """The leaves of one file."""
    return [leaf for leaf in tree.leaves() if leaf.name.startswith(name)]


def test_times_in_files_are_listed_and_no_difference(compared: Compared) -> None:
    comparison = compared(*({name: write(n, 0.5) for name, write in WRITERS.items()} for n in (1, 2)))
    assert comparison.verdict is Verdict.IDENTICAL, comparison.tree.first()
    for name in WRITERS:
        listed = [leaf for leaf in below(comparison.tree, name) if leaf.kind is not None]
        assert listed, name
        assert all(leaf.left and leaf.right for leaf in listed)


def test_a_result_beside_times_is_a_difference(compared: Compared) -> None:
    sides = ({name: write(n, x) for name, write in WRITERS.items()} for n, x in ((1, 0.5), (2, 0.25)))
    tree = compared(*sides).tree
    for name in WRITERS:
        assert any(leaf.verdict.differs for leaf in below(tree, name)), name
        assert not any(leaf.verdict.differs and leaf.kind for leaf in below(tree, name))


def test_a_database_is_compared_row_by_row(compared: Compared, tmp_path: Path) -> None:
    def study(second: int, value: float) -> bytes:
        return database(
            tmp_path / "made.db",
            "CREATE TABLE trials (trial_id INTEGER PRIMARY KEY, datetime_start DATETIME, value FLOAT, blob BLOB)",
            f"INSERT INTO trials VALUES (1, '2026-11-29 09:21:{second:02}.138180', {value}, x'00ff')",
            "CREATE VIEW best AS SELECT value FROM trials",
        )

    comparison = compared({"study.db": study(1, 0.5)}, {"study.db": study(2, 0.5)})
    assert comparison.verdict is Verdict.IDENTICAL
    [leaf] = [leaf for leaf in comparison.tree.leaves() if leaf.kind is not None]
    assert (leaf.name, leaf.kind) == ("study.db/trials/1/datetime_start", BookkeepingKind.DATE)


def test_a_value_in_a_database_is_a_difference(compared: Compared, tmp_path: Path) -> None:
    sides = [
        {"study.db": database(tmp_path / "made.db", "CREATE TABLE t (value FLOAT)", f"INSERT INTO t VALUES ({value})")}
        for value in (0.5, 0.25)
    ]
    first = compared(*sides).tree.first()
    assert first is not None
    assert (first.name, first.left, first.right) == ("study.db/t/1/value", "0.5", "0.25")


def tracked(path: Path, run: str, loss: float, key: str, value: float, constraints: tuple[str, ...]) -> bytes:
    """What MLflow keeps in a database; its tables' constraints come in any order."""
    columns = "run_uuid VARCHAR(32) NOT NULL, start_time BIGINT, artifact_uri VARCHAR(200)"
    return database(
        path,
        f"CREATE TABLE runs ({', '.join([columns, *constraints])})",
        "CREATE TABLE metrics (key VARCHAR(250), value FLOAT, timestamp BIGINT, run_uuid VARCHAR(32), step BIGINT)",
        f"INSERT INTO runs VALUES ('{run}', {STARTED * 1000:.0f}, '/w/mlruns/1/{run}/artifacts')",
        f"INSERT INTO metrics VALUES ('loss', {loss}, 1795944001000, '{run}', 0)",
        f"INSERT INTO metrics VALUES ('{key}', {value}, 1795944001000, '{run}', 0)",
        *(f"INSERT INTO metrics VALUES ('system/cpu', {n}, 1795944001000, '{run}', {n})" for n in range(int(value))),
    )


@pytest.mark.parametrize(
    ("loss", "key", "first"),
    [
        (0.5, "train/fit_time", ""),
        (0.25, "train/fit_time", "metrics/1/value/loss"),
        (0.5, "survival_time", "metrics/2/value/survival_time"),
        (0.5, "value", "metrics/2/value/value"),
    ],
)
def test_values_in_a_tracker_s_database_have_their_keys_as_names(
    compared: Compared, tmp_path: Path, loss: float, key: str, first: str
) -> None:
    constraints = "CONSTRAINT pk PRIMARY KEY (run_uuid)", "CHECK (start_time IN (1, 2) OR artifact_uri <> 'a, (b')"
    sides = [
        {"mlflow.db": tracked(tmp_path / "made.db", *of_side)}
        for of_side in (
            ("1" * 31 + "a", 0.5, key, 1.5, constraints),
            ("2" * 31 + "b", loss, key, 2.5, constraints[::-1]),
        )
    ]
    found = compared(*sides).tree.first()
    assert (found.name if found is not None and found.verdict.differs else "") == (first and f"mlflow.db/{first}")


def test_a_constraint_or_a_column_of_a_table_is_a_difference(compared: Compared, tmp_path: Path) -> None:
    tables = ["a INT, b INT, CHECK (a > 1)", "a INT, b INT, CHECK (a > 2)", "b INT, a INT, CHECK (a > 1)"]
    left, *others = ({"t.db": database(tmp_path / "made.db", f"CREATE TABLE t ({text})")} for text in tables)
    assert [compared(left, right).verdict for right in others] == [Verdict.DIFFERENT] * 2


NO_TIMES: list[tuple[str, bytes, bytes]] = [
    ("r.json", b'{"time_to_event_mae": 3.25}', b'{"time_to_event_mae": 3.5}'),
    ("r.json", b'{"survival_time_pred": 3.25}', b'{"survival_time_pred": 3.5}'),
    ("r.json", b'{"predictions": {"duration": 3.25}}', b'{"predictions": {"duration": 3.5}}'),
    ("r.json", b'{"time": 12.5, "event": 1}', b'{"time": 12.75, "event": 1}'),
    ("r.json", b'{"loss_time": 3.25}', b'{"loss_time": 3.5}'),
    ("r.csv", table(("epoch", "loss_time"), (1, 3.25)), table(("epoch", "loss_time"), (1, 3.5))),
    ("r.npz", samples.npz({"loss_time": numpy.ones(3)}), samples.npz({"loss_time": numpy.zeros(3)})),
    ("r.pkl", pickle.dumps({"metric_time": 3.25}), pickle.dumps({"metric_time": 3.5})),
    ("r.json", b'{"latency_ms": 3.25}', b'{"latency_ms": 3.5}'),
    ("r.json", b'{"run_seed": 1795944001}', b'{"run_seed": 1795944002}'),
    ("r.json", b'{"weights_sha256": "0123456789abcdef"}', b'{"weights_sha256": "1123456789abcdef"}'),
    ("r.json", b'{"trained_until": "1999-01-02"}', b'{"trained_until": "1999-01-03"}'),
    ("r.json", b'{"train_time": -3.25}', b'{"train_time": -3.5}'),
    ("r.csv", table(("time", "event"), (3.25, 1)), table(("time", "event"), (3.5, 1))),
    ("r.csv", table(("id", "duration"), (1, 3.25)), table(("id", "duration"), (1, 3.5))),
    ("r.csv", table(("epoch", "pred_time"), (1, 3.25)), table(("epoch", "pred_time"), (1, 3.5))),
    ("r.jsonl", b'{"patient": 1, "time": 3.25}\n', b'{"patient": 1, "time": 3.5}\n'),
    ("r.npz", samples.npz({"time": numpy.ones(3)}), samples.npz({"time": numpy.zeros(3)})),
    ("r.npz", samples.npz({"travel_time": numpy.ones(3)}), samples.npz({"travel_time": numpy.zeros(3)})),
    ("r.pkl", pickle.dumps({"half_life_days": 3.25}), pickle.dumps({"half_life_days": 3.5})),
    ("r.txt", b"braking 3.2 s\n", b"braking 3.3 s\n"),
    ("r.csv", table(("date", "pred"), ("2026-11-29", 1)), table(("date", "pred"), ("2026-11-30", 1))),
    ("r.yaml", b"dose_minutes: 10\n", b"dose_minutes: 11\n"),
    ("r.md", b"| Patient | Time (s) |\n|---|---|\n| 0 | 3.2 |\n", b"| Patient | Time (s) |\n|---|---|\n| 0 | 3.3 |\n"),
    ("r.md", b"| Loss | Time (s) |\n\nx = 3\n\n| 0 | 3.2 |\n", b"| Loss | Time (s) |\n\nx = 3\n\n| 0 | 3.3 |\n"),
    ("r.pkl", pickle.dumps({"event_times": [3.25, 1.0]}), pickle.dumps({"event_times": [3.5, 1.0]})),
    ("r.pkl", pickle.dumps({"time": [3.25, 1.0]}), pickle.dumps({"time": [3.5, 1.0]})),
    ("r.pkl", pickle.dumps({"time": {"test": 3.25}}), pickle.dumps({"time": {"test": 3.5}})),
    ("r.pkl", pickle.dumps({"epoch_times": [3.25]}), pickle.dumps({"epoch_times": [3.25, 1.0]})),
]


def test_what_only_sounds_like_a_time_is_a_difference(compared: Compared) -> None:
    sides = ({f"{n}/{case[0]}": case[side] for n, case in enumerate(NO_TIMES)} for side in (1, 2))
    tree = compared(*sides).tree
    for number, (name, left, _) in enumerate(NO_TIMES):
        assert any(leaf.verdict.differs for leaf in below(tree, f"{number}/{name}")), left


@pytest.mark.parametrize(
    ("name", "left", "right", "option"),
    [
        ("r.json", b'{"latency_ms": 3.25}', b'{"latency_ms": 3.5}', "--ignore 'r.json:latency_ms'"),
        ("r.json", b'{"version": "2026-11-29"}', b'{"version": "2026-11-30"}', "--ignore 'r.json:version'"),
        ("r.txt", b"braking 3.2 s\n", b"braking 3.3 s\n", "--ignore 'r.txt'"),
    ],
)
def test_the_option_is_named_that_settles_what_looks_like_a_time(
    compared: Compared, name: str, left: bytes, right: bytes, option: str
) -> None:
    assert option in verdict_line(compared({name: left}, {name: right}))


def test_the_verdict_counts_and_the_tables_list_what_differs(compared: Compared) -> None:
    files = [{f"runs/Nov29_09-2{n}-00_vm/result.json": WRITERS["result.json"](n, 0.5)} for n in (1, 2)]
    comparison = compared(*files)
    what = "1 duration, 1 rate, 1 date and 1 directory name differ (listed)"
    assert verdict_line(comparison).startswith(f"identical: the training and its results, bit for bit; {what}")
    short = [row for row in rows(comparison, every_leaf=False) if row.verdict is Verdict.BOOKKEEPING]
    assert [row.name.rpartition("/")[2] for row in short] == [
        *("outputs", "Nov29_09-21-00_vm", "train_runtime", "samples_per_second", "finished")
    ]
    result = document(comparison)
    jsonschema.validate(result, SCHEMA)
    assert result["bookkeeping"] == {"duration": 1, "rate": 1, "date": 1, "directory name": 1}
    assert {category["name"]: category["level"] for category in result["categories"]}["outputs"] == "result"
    leaves = {leaf.name.rpartition("/")[2]: leaf for leaf in comparison.tree.leaves() if leaf.kind is not None}
    assert (leaves["finished"].left, leaves["finished"].right) == ('"2026-11-29T09:21:00"', '"2026-11-29T09:22:00"')


def test_a_training_is_named_only_where_one_was_compared(tmp_path: Path) -> None:
    sides = []
    for name, digit in (("left", "1"), ("right", "2")):
        building = recording(tmp_path / name)
        place = tmp_path / f"work-{name}"
        place.mkdir()
        (place / "r.json").write_bytes(f'{{"accuracy": 0.5, "runtime": {digit}}}'.encode())
        sealed = seal_file(place / "r.json")
        assert sealed is not None
        building.run.working_directory = str(place)
        building.outputs = [OutputFile(path="r.json", size=sealed.size, digest=sealed.digest)]
        sides.append(building.write())
    comparison = compare(*sides)
    assert comparison.levels == {Level.EXECUTION, Level.RESULT}
    assert verdict_line(comparison).startswith("identical: the results, bit for bit; 1 duration differs (listed)")


# Names of directories and files


PAIRED = [
    ("runs/Nov29_09-21-00_vm/m", "runs/Nov29_10-21-00_vm/m"),
    ("outputs/2026-11-29/09-21-00/m", "outputs/2026-11-29/10-21-00/m"),
    ("outputs/2026-11-28/23-21-00/m", "outputs/2026-11-29/00-21-00/m"),
    ("runs/CartPole__ppo__1__1795944001/m", "runs/CartPole__ppo__1__1795947601/m"),
    (".metaflow/Flow/1795944001123456/start/m", ".metaflow/Flow/1795947601123456/start/m"),
    ("_meta/done_1795944001123.json", "_meta/done_1795947601123.json"),
    ("lightning_logs/version_0/m", "lightning_logs/version_1/m"),
    ("lightning_logs/version_10/m", "lightning_logs/version_9/m"),
    ("runs/detect/train/m", "runs/detect/train2/m"),
    ("runs/detect/train-2/m", "runs/detect/train-3/m"),
    ("tb/PPO_1/events.out.tfevents.1.a.1.0", "tb/PPO_2/events.out.tfevents.2.a.2.0"),
    ("logs/train_20261129-092100.log", "logs/train_20261129-102100.log"),
    (".snakemake/log/2026-11-29T092100.005195.snakemake.log", ".snakemake/log/2026-11-29T102100.005195.snakemake.log"),
    ("runs/exp1/version_1/m", "runs/exp2/version_1/m"),
]


def test_directories_named_by_the_run_are_paired(compared: Compared) -> None:
    sides = [{f"{n}/{pair[side]}": b"same" for n, pair in enumerate(PAIRED)} for side in (0, 1)]
    comparison = compared(*sides)
    assert comparison.verdict is Verdict.IDENTICAL, comparison.tree.first()
    found = {leaf.left.partition("/")[0] for leaf in comparison.tree.leaves() if leaf.kind is not None}
    assert found == {str(number) for number in range(len(PAIRED))}
    changed = compared(sides[0], dict.fromkeys(sides[1], b"other"))
    differing = {leaf.name.partition("/")[0] for leaf in of(changed, "outputs").leaves() if leaf.verdict.differs}
    assert differing == found


UNPAIRED = [
    (["fold_1/m"], ["fold_2/m"]),
    (["checkpoint-100/m"], ["checkpoint-101/m"]),
    (["epoch_3/m"], ["epoch_4/m"]),
    (["best_3/m"], ["best_4/m"]),
    (["version_0/m"], ["version_5/m"]),
    (["version_0/m"], ["version_1/m", "version_2/m"]),
    (["data/1999-01-02/m"], ["data/1999-01-03/m"]),
    (["runs/Nov29_09-21-00_vm/m"], ["runs/Nov29_10-21-00_vm/m", "runs/Nov29_10-22-00_vm/m"]),
    (["epoch=3-step=4.ckpt"], ["epoch=4-step=4.ckpt"]),
    (["model_9f3c2b1a0d4e.bin"], ["model_0f3c2b1a0d4e.bin"]),
]


def test_other_names_are_not_paired(compared: Compared) -> None:
    sides = [{f"{n}/{path}": b"same" for n, pair in enumerate(UNPAIRED) for path in pair[side]} for side in (0, 1)]
    leaves = of(compared(*sides), "outputs").leaves()
    differing = {leaf.name.partition("/")[0] for leaf in leaves if leaf.verdict.differs}
    assert differing == {str(number) for number in range(len(UNPAIRED))}


def test_several_directories_are_paired_in_their_order(compared: Compared) -> None:
    left = {f"version_{n}/m": f"{n}".encode() for n in (0, 1)}
    right = {f"version_{n + 2}/m": f"{n}".encode() for n in (0, 1)}
    comparison = compared(left, right)
    assert comparison.verdict is Verdict.IDENTICAL
    assert comparison.tree.bookkeeping() == {BookkeepingKind.DIRECTORY: 2}
    turned = {"version_2/m": b"1", "version_3/m": b"0"}
    assert compared(left, turned).verdict is Verdict.DIFFERENT


def test_numbers_may_lie_further_apart_where_the_others_are_still_there(compared: Compared, tmp_path: Path) -> None:
    for number in (0, 1):
        (tmp_path / "0" / "work-right" / f"version_{number}").mkdir(parents=True)
    assert compared({"version_0/m": b"same"}, {"version_2/m": b"same"}).verdict is Verdict.IDENTICAL


def test_links_follow_the_names_of_directories(compared: Compared) -> None:
    left, right = {"runs/Nov29_09-21-00/m": b"same"}, {"runs/Nov29_10-21-00/m": b"same"}
    links = {"runs/last": "Nov29_09-21-00"}, {"runs/last": "Nov29_10-21-00"}
    assert compared(left, right, *links).verdict is Verdict.IDENTICAL
    assert compared(left, right, links[0], {"runs/last": "elsewhere"}).verdict is Verdict.DIFFERENT


# Metrics in files


def events(at: int, loss: float, runtime: float) -> bytes:
    logged = [("loss", loss), ("train/runtime", runtime), ("charts/SPS", 1e5 * runtime)]
    pieces = [event(0, name, b"\x15" + struct.pack("<f", value), float(at)) for name, value in logged]
    return version(float(at)) + b"".join(pieces)


def test_series_of_directories_named_by_the_run_are_paired(compared: Compared) -> None:
    names = [f"runs/Nov29_{hour}-21-00_vm/events.out.tfevents.{hour}.here.{hour}.0" for hour in ("09", "10")]
    comparison = compared({names[0]: events(1, 0.5, 0.25)}, {names[1]: events(2, 0.5, 0.375)})
    assert comparison.verdict is Verdict.IDENTICAL
    found = {leaf.name: leaf.kind for leaf in of(comparison, "metrics in files").leaves()}
    place = "runs/Nov29_09-21-00_vm"
    assert found == {
        f"loss in {place}": None,
        f"train/runtime in {place}": BookkeepingKind.DURATION,
        f"charts/SPS in {place}": BookkeepingKind.RATE,
    }
    changed = compared({names[0]: events(1, 0.5, 0.25)}, {names[1]: events(2, 0.25, 0.375)})
    first = of(changed, "metrics in files").first()
    assert first is not None
    assert first.name == f"loss in {place}"


def of(comparison: Comparison, category: str) -> Difference:
    return next(child for child in comparison.tree.children if child.name == category)


def logged(path: Path, value: float, seconds: float, name: str = "epoch_seconds") -> Path:
    building = recording(path)
    for epoch in range(2):
        values = {"loss": float32(value), name: float32(seconds + epoch)}
        building.add("epoch", name="fit#0", epoch=epoch, values=values, steps=3)
    building.add("history", name="fit#0", values={"loss": [float32(value)], name: [float32(seconds)]})
    building.add("log", name="elapsed", value=float32(seconds), step=0, epoch=None)
    return building.write()


def test_times_among_the_values_of_epochs_are_bookkeeping(tmp_path: Path) -> None:
    left = logged(tmp_path / "left", 0.5, 1.25)
    same = compare(left, logged(tmp_path / "same", 0.5, 1.5))
    assert same.verdict is Verdict.IDENTICAL, same.tree.first()
    assert same.tree.bookkeeping() == {BookkeepingKind.DURATION: 4}
    jsonschema.validate(document(same), SCHEMA)
    assert compare(left, logged(tmp_path / "loss", 0.25, 1.5)).verdict is Verdict.DIFFERENT
    assert compare(left, logged(tmp_path / "negative", 0.5, -1.5)).verdict is Verdict.DIFFERENT


def test_a_metric_of_epochs_that_is_called_time_is_a_result(tmp_path: Path) -> None:
    left, right = (logged(tmp_path / str(n), 0.5, n, "survival_time") for n in (1, 2))
    first = compare(left, right).tree.first()
    assert first is not None
    assert "survival_time" in first.detail
