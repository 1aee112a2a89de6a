"""Metrics in the files of experiment trackers: compared value by value, and what the trackers add is no difference."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import jsonschema
import pytest

from reprokit.core.difference import BookkeepingKind, Difference, Verdict
from reprokit.core.errors import NothingComparable
from reprokit.core.tolerance import Tolerance, Tolerances
from reprokit.model.outputs import OutputFile
from reprokit.run_files.rundir import seal_file
from reprokit.verify.categories.tracker_metrics import CATEGORY
from reprokit.verify.comparison import Comparison
from reprokit.verify.read.normalization import Normalizations, excluded
from reprokit.verify.runs import compare
from reprokit.verify.show.summary import document, summarize
from tests.diff.test_logged import event, framed, history, version
from tests.support import Reprokit

from .runs import Building, recording

RUN_1, RUN_2 = "offline-run-20261121_175034-kci87lir", "offline-run-20261121_190000-ckedalqc"
MLFLOW_1, MLFLOW_2 = "a" * 32, "b" * 32
SCHEMA = json.loads((Path(__file__).parents[2] / "reprokit" / "schemas" / "show.schema.json").read_text())


def wandb(run: str, *values: str) -> tuple[str, bytes]:
    """Path and content of what Weights & Biases wrote."""
    records = [history(step, loss=value, _timestamp=f"{hash(run)}.5") for step, value in enumerate(values)]
    return f"wandb/{run}/run-{run.rpartition('-')[2]}.wandb", framed(*records)


def events(number: int, *values: float) -> tuple[str, bytes]:
    records = [
        event(step, "loss", b"\x15" + struct.pack("<f", value), float(number)) for step, value in enumerate(values)
    ]
    return f"logs/events.out.tfevents.{number}.here.{number}.0", version(float(number)) + b"".join(records)


def mlflow(run: str, *values: float) -> tuple[str, bytes]:
    lines = [f"{hash(run)} {value!r} {step}\n" for step, value in enumerate(values)]
    return f"mlruns/0/{run}/metrics/loss", "".join(lines).encode()


def run_with(path: Path, *files: tuple[str, bytes]) -> Building:
    """A run that wrote these files, which are still there."""
    building = recording(path)
    home = path.with_name(f"{path.name}-files")
    building.run.working_directory = str(home)
    for name, content in files:
        file = home / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)
        sealed = seal_file(file)
        assert sealed is not None
        building.outputs.append(OutputFile(path=name, size=sealed.size, digest=sealed.digest))
    return building


def compared(tmp_path: Path, left: list[tuple[str, bytes]], right: list[tuple[str, bytes]]) -> Comparison:
    return compare(run_with(tmp_path / "left", *left).write(), run_with(tmp_path / "right", *right).write())


def category(comparison: Comparison) -> Difference:
    return next(child for child in comparison.tree.children if child.name == CATEGORY)


def test_times_and_ids_of_trackers_are_no_difference(tmp_path: Path) -> None:
    left = [wandb(RUN_1, "1.5", "0.5"), events(1, 1.5, 0.5), mlflow(MLFLOW_1, 1.5, 0.5)]
    right = [wandb(RUN_2, "1.5", "0.5"), events(2, 1.5, 0.5), mlflow(MLFLOW_2, 1.5, 0.5)]
    left.append((f"wandb/{RUN_1}/logs/debug.log", b"then"))
    right.append((f"wandb/{RUN_2}/logs/debug.log", b"now"))
    comparison = compared(tmp_path, left, right)
    assert comparison.verdict is Verdict.IDENTICAL
    assert [(leaf.name, leaf.left) for leaf in category(comparison).leaves()] == [
        ("loss in logs", "2 values, last 0.5 (3f000000) at step 1"),
        ("loss in mlruns/0/RUN", "2 values, last 0.5 (3fe0000000000000) at step 1"),
        ("loss in wandb/offline-run-TIME-ID", "2 values, last 0.5 (3fe0000000000000) at step 1"),
    ]
    assert any("1 of the outputs, first wandb/offline-run-TIME-ID/logs/debug.log" in note for note in comparison.notes)
    assert not any("no metrics" in note for note in comparison.notes)


@pytest.mark.parametrize(
    ("left", "right"),
    [
        (wandb(RUN_1, "1.5", "0.5"), wandb(RUN_2, "1.5", "0.5000000000000001")),
        (events(1, 1.5, 0.5), events(2, 1.5, 0.50000006)),
        (mlflow(MLFLOW_1, 1.5, 0.5), mlflow(MLFLOW_2, 1.5, 0.5000000000000001)),
    ],
    ids=["wandb", "tensorboard", "mlflow"],
)
def test_the_last_bit_of_a_value_is_named_with_its_step(
    tmp_path: Path, left: tuple[str, bytes], right: tuple[str, bytes]
) -> None:
    comparison = compared(tmp_path, [left], [right])
    assert comparison.verdict is Verdict.DIFFERENT
    first = category(comparison).first()
    assert first is not None
    assert "differs first at step 1: 0.5 (" in first.detail


def test_what_ends_early_and_what_only_one_run_logged(tmp_path: Path) -> None:
    left = [wandb(RUN_1, "1.5", "0.5"), events(1, 1.0)]
    found = category(compared(tmp_path, left, [wandb(RUN_2, "1.5")]))
    details = {leaf.name: leaf.detail for leaf in found.leaves()}
    assert details["loss in wandb/offline-run-TIME-ID"].endswith("at step 1: the right run ends before it")
    assert details["loss in logs"] == "only the left run logged it"


def test_nothing_but_a_tracker_s_own_files_is_nothing_to_compare(tmp_path: Path) -> None:
    files = [
        [(f"wandb/{run}/files/wandb-metadata.json", content), (f"wandb/{run}/logs/debug.log", content)]
        for run, content in ((RUN_1, b"left"), (RUN_2, b"right"))
    ]
    with pytest.raises(NothingComparable):
        compared(tmp_path, *files)


def test_values_whose_bytes_are_gone_are_not_judged(tmp_path: Path) -> None:
    left, right = (
        run_with(tmp_path / name, mlflow(run, 1.5), ("model.bin", b"same"))
        for name, run in (("left", MLFLOW_1), ("right", MLFLOW_2))
    )
    (tmp_path / "left-files" / left.outputs[0].path).write_bytes(b"overwritten")
    found = category(compare(left.write(), right.write()))
    assert [leaf.verdict for leaf in found.leaves()] == [Verdict.NOT_RECORDED]
    assert "no longer there" in next(found.leaves()).detail
    (tmp_path / "left-files" / "model.bin").unlink()
    only = [run_with(tmp_path / f"only-{run[0]}", mlflow(run, 1.5)) for run in (MLFLOW_1, MLFLOW_2)]
    for name in ("only-a-files", "only-b-files"):
        (tmp_path / name).rename(tmp_path / f"{name}-gone")
    with pytest.raises(NothingComparable):
        compare(*(building.write() for building in only))


def test_damaged_files_are_compared_as_far_as_they_can_be_read(tmp_path: Path) -> None:
    left, right = wandb(RUN_1, "1.5", "0.5"), wandb(RUN_2, "1.5", "0.5")
    comparison = compared(tmp_path, [(left[0], left[1][:-3])], [(right[0], right[1][:-2])])
    leaves = {leaf.name: (leaf.verdict, leaf.detail) for leaf in category(comparison).leaves()}
    assert leaves["loss in wandb/offline-run-TIME-ID"] == (Verdict.IDENTICAL, "")
    assert leaves["the rest of wandb/offline-run-TIME-ID"][1].startswith("not compared: it ends at byte")
    assert comparison.verdict is Verdict.DIFFERENT  # as outputs


def test_a_tolerance_for_metrics_holds_for_files_too(tmp_path: Path) -> None:
    left, right = (
        run_with(tmp_path / name, mlflow(run, 1.0, value))
        for name, run, value in (("left", MLFLOW_1, 0.5), ("right", MLFLOW_2, 0.5000001))
    )
    wide, narrow = (Tolerances({"metrics": Tolerance(relative=limit)}) for limit in (1e-3, 1e-9))
    paths = left.write(), right.write()
    assert compare(*paths, tolerances=wide).verdict is Verdict.TOLERATED
    assert compare(*paths, tolerances=narrow).verdict is Verdict.DIFFERENT


def test_what_is_a_tracker_s_own() -> None:
    own = [
        f"wandb/{RUN_1}/logs/debug.log", f"wandb/{RUN_1}/files/wandb-metadata.json", "wandb/debug-internal.log",
        f"mlruns/0/{MLFLOW_1}/metrics/loss", ".config/mlflow/telemetry.json",
    ]  # fmt: skip
    compared_ = [
        f"wandb/{RUN_1}/run-kci87lir.wandb", f"mlruns/0/{MLFLOW_1}/params/rate", "debug.log", "model/MLmodel",
        f"mlruns/0/{MLFLOW_1}/artifacts/model.pt", "mlflow.db", "my.db", "meta.yaml",
        f"mlruns/0/{MLFLOW_1}/meta.yaml", "mlruns/0/meta.yaml", f"mlruns/0/{MLFLOW_1}/tags/mlflow.user",
        f"mlruns/0/models/m-{MLFLOW_1}/artifacts/MLmodel", f"mlruns/0/{MLFLOW_1}/tags/mine",
    ]  # fmt: skip
    assert [name for name in own if not excluded(name, Normalizations().path(name))] == []
    assert [name for name in compared_ if excluded(name, Normalizations().path(name))] == []


def mlflow_model(run: str, model: str, value: float, named: str = "") -> list[tuple[str, bytes]]:
    """What MLflow's file store holds of a logged model, whose score is that of a run."""
    place = f"mlruns/0/models/m-{model}"
    return [
        (f"mlruns/0/{run}/meta.yaml", f"artifact_uri: /w/mlruns/0/{run}/artifacts\nrun_id: {run}\n".encode()),
        (f"{place}/artifacts/MLmodel", f"artifact_path: file:///w/{place}\nmodel_uuid: m-{model}\n".encode()),
        (f"{place}/metrics/score", f"1795959003760 {value} 0 {named or run}\n".encode()),
    ]


def test_ids_that_trackers_made_up_are_bookkeeping_wherever_they_stand(tmp_path: Path) -> None:
    def trained(name: str, run: str, model: str, value: float = 0.5, named: str = "") -> Path:
        building = run_with(tmp_path / name, *mlflow_model(run, model, value, named))
        building.add("tracker", name="mlflow", run=run, place="mlruns", group="0")
        return building.write()

    models = "1" * 31 + "a", "2" * 31 + "b"
    left = trained("left", MLFLOW_1, models[0])
    same = compare(left, trained("same", MLFLOW_2, models[1]))
    assert same.verdict is Verdict.IDENTICAL, same.tree.first()
    assert same.tree.bookkeeping() == {BookkeepingKind.ID: 5}
    assert compare(left, trained("score", MLFLOW_2, models[1], 0.25)).verdict is Verdict.DIFFERENT
    assert compare(left, trained("named", MLFLOW_2, models[1], named="c" * 32)).verdict is Verdict.DIFFERENT


def test_show_lists_them_beside_the_opened_runs_and_spells_out_what_is_hostile(
    tmp_path: Path, reprokit: Reprokit
) -> None:
    hostile = "\x1b]0;owned\x07<b>\u202e"
    path, content = wandb(RUN_1, "1.5", "0.5")
    building = run_with(
        tmp_path / "run", (path, content), (f"logs/{hostile}.wandb", framed(history(0, **{hostile: "1"})))
    )
    building.add("tracker", name="wandb", run=f"kci87lir{hostile}", place=f"https://there/{hostile}", group=hostile)
    building.write()
    shown = document(summarize(tmp_path / "run"))
    jsonschema.validate(shown, SCHEMA)
    assert [one["name"] for one in shown["metrics_in_files"]] == ["loss", hostile]
    assert shown["metrics_in_files"][0]["last"] == {
        "step": 1, "dtype": "float64", "bits": "3fe0000000000000", "text": "0.5 (3fe0000000000000)"
    }  # fmt: skip
    done = reprokit.run("show", "run")
    assert "loss in wandb/offline-run-TIME-ID (Weights & Biases): 2 values, last 0.5" in done.stdout
    assert "tracked by" in done.stdout
    assert "\x1b" not in done.stdout
    assert "\u202e" not in done.stdout
