"""The ledger of samples through record, replay, verify and the command, held against what the trainings saw."""

from __future__ import annotations

import csv
import json
import os
import re
import signal
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from reprokit.run_files.ledgers import BatchUse, SampleLoader
from reprokit.verify.categories.samples import EpochCoverage
from reprokit.verify.show.sample_ledger import LedgerOverview, print_overview
from tests.questions.test_resume_frameworks import ROOT, TRAINERS
from tests.support import Done, Reprokit, rest_slow, training_text

pytestmark = pytest.mark.torch

STREAMING = Path(os.environ.get("REPROKIT_STREAMING_PYTHON") or ROOT / ".venv-streaming" / "bin" / "python")

DIGESTS = ("streamed", "copied")  # trainings of which only digests of batches are known
SIZE = 40


def record(reprokit: Reprokit, run: str, script: str, *arguments: str) -> Done:
    path = reprokit.script(script, training_text(script))
    return reprokit.run("record", "-o", run, "--", sys.executable, str(path), *arguments)


def exported(reprokit: Reprokit, run: str) -> list[dict[str, Any]]:
    done = reprokit.run("ledger", run, "--export", "samples.jsonl")
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in (reprokit.directory / "samples.jsonl").read_text().splitlines()]


def by_step(lines: list[dict[str, Any]], optimizer: int | str) -> list[list[Any]]:
    """The samples of each step of an optimizer."""
    name = optimizer if isinstance(optimizer, str) else f"optimizer#{optimizer}"
    steps: dict[int, list[Any]] = {}
    for line in lines:
        if line["optimizer"] == name:
            steps.setdefault(line["step"], []).append(line["sample"])
    assert list(steps) == list(range(len(steps)))
    return list(steps.values())


def number_of(sample: Any) -> int:
    """The index of a sample that goes by a name."""
    return sample if isinstance(sample, int) else int(sample.rpartition("item-")[2].rpartition("sample")[2])


def seen_by(path: Path) -> dict[str, list[list[int]]]:
    content: dict[str, list[list[int]]] = json.loads(path.read_text())
    return content


@pytest.mark.slow
def test_loaders_of_all_kinds(reprokit: Reprokit) -> None:
    recorded = record(reprokit, "run", "ledgered_loaders.py", "1", "seen.json")
    assert recorded.returncode == 0, recorded.stderr
    assert "warning" not in recorded.stderr
    seen, lines = seen_by(reprokit.directory / "seen.json"), exported(reprokit, "run")
    for optimizer, (name, steps) in enumerate(seen.items()):
        found = by_step(lines, optimizer)
        if name in DIGESTS:
            assert len(found) == len(steps)
            assert len({sample for (sample,) in found}) == len(set(map(tuple, steps)))  # equal where batches are
        else:
            assert [[number_of(sample) for sample in step] for step in found] == steps, name
    names = {line["sample"] for line in lines if line["optimizer"] == f"optimizer#{len(seen) - 1}"}
    assert names == {f"shard-0.tar:sample{number}" for number in range(SIZE)}
    workers = [line for line in lines if line["worker"] is not None]
    assert {line["worker"] for line in workers} == {0, 1}
    assert [line["number"] for line in workers if line["worker"] == 1][:3] == [0, 1, 2]

    replayed = reprokit.run("replay", "run", "-o", "replayed")
    assert replayed.returncode == 0, replayed.stderr
    verified = reprokit.run("verify", "run", "replayed")
    assert verified.returncode == 0, verified.stdout
    assert "samples             identical     12 compared, all the same" in verified.stdout


FAR = ["far", "accumulated", "threaded", "whole", "sliced", "twice", "broken", "plain"]


@pytest.mark.slow
@pytest.mark.parametrize("names", [["ahead", "changed"], pytest.param(FAR, marks=pytest.mark.slow)])
def test_a_batch_that_is_fetched_ahead_is_that_of_the_step_that_used_it(reprokit: Reprokit, names: list[str]) -> None:
    assert record(reprokit, "run", "ledgered_ahead.py", "seen.json", *names).returncode == 0
    lines = exported(reprokit, "run")
    for optimizer, (name, steps) in enumerate(seen_by(reprokit.directory / "seen.json").items()):
        drawn = {line["drawn"] for line in lines if line["optimizer"] == f"optimizer#{optimizer}"}
        if name != "changed":
            assert (by_step(lines, optimizer), drawn) == (steps, {False}), name
            continue
        # The model was called with other tensors: which batch it used is not known, and not said.
        assert drawn == {True}
        before = reprokit.run("ledger", "run", "--step", "0").stdout
        assert before.count(f"before step 0 of optimizer#{optimizer}") == 2
        assert "drawn before the step: its model was called with other tensors than were fetched" in before
        overview = reprokit.run("ledger", "run").stdout
        assert overview.startswith("nothing drawn twice or never: ")
        unknown = "40 samples of 40  each drawn once; whether batches reached an update is not known"
        assert overview.count(unknown) == overview.count("40 samples of 40  each once") == 2
        assert "are what was drawn before" in reprokit.run("verify", "run", "run").stdout


ON_TRAINERS = [["ledgered_accelerate.py", kind, every] for kind, every in (("tensor", "1"), ("dict", "3"))]
ON_TRAINERS += [["ledgered_accelerate.py", "copied", "2"], ["ledgered_trainer.py"]]


@pytest.mark.extended
@pytest.mark.skipif(not TRAINERS.exists(), reason=f"{TRAINERS} is not there: make .venv-trainers/.installed")
@pytest.mark.parametrize("training", ON_TRAINERS, ids="-".join)
def test_libraries_that_fetch_ahead(reprokit: Reprokit, training: list[str]) -> None:
    path = reprokit.script("train.py", training_text(training[0]))
    done = reprokit.run("record", "-o", "run", "--", str(TRAINERS), str(path), *training[1:])
    assert done.returncode == 0, done.stderr
    lines = exported(reprokit, "run")
    assert by_step(lines, 0) == seen_by(reprokit.directory / "seen.json")["steps"]
    assert not any(line["drawn"] for line in lines)
    (first, second) = json.loads(reprokit.run("ledger", "run", "--json").stdout)["epochs"]
    assert (first["text"], second["text"]) == ("each once", "each once")


@pytest.mark.extended
@pytest.mark.skipif(not TRAINERS.exists(), reason=f"{TRAINERS} is not there: make .venv-trainers/.installed")
def test_records_of_files_that_hugging_face_reads(reprokit: Reprokit) -> None:
    path = reprokit.script("train.py", training_text("hugging_face_records.py"))
    bare = subprocess.run([TRAINERS, path], cwd=reprokit.directory, capture_output=True, text=True)
    assert bare.returncode == 0, bare.stderr
    seen = seen_by(reprokit.directory / "seen.json")
    done = reprokit.run("record", "-o", "run", "--", str(TRAINERS), str(path))
    assert done.returncode == 0, done.stderr
    assert "warning" not in done.stderr
    assert seen_by(reprokit.directory / "seen.json") == seen
    lines = exported(reprokit, "run")
    for optimizer, (name, steps) in enumerate(seen.items()):
        suffix = "jsonl" if name == "lines" else "parquet"
        files = [[f"{number // SIZE}.{suffix}:{number % SIZE}" for number in step] for step in steps]
        found = by_step(lines, optimizer)
        if name in ("wrapped", "workers", "batched"):
            assert [len(step) for step in found] == [1] * len(steps)  # digests
        else:
            assert found == (steps if name == "rows" else files), name


@pytest.mark.extended
def test_another_seed_parts_where_the_samples_do(reprokit: Reprokit) -> None:
    seen = []
    for seed in "12":
        assert record(reprokit, f"run{seed}", "ledgered_loaders.py", seed, "seen.json", "shuffled").returncode == 0
        seen.append(seen_by(reprokit.directory / "seen.json")["shuffled"])
    left, right = seen
    missing = set(left[0]) - set(right[0])
    at = [step for step in range(5) if missing & set(right[step])]
    sentence = (
        f"batch of step 0 differs: {len(missing)} of 8 samples; the other run saw them at steps {min(at)} to {max(at)}"
    )
    verified = reprokit.run("verify", "run1", "run2", "--json")
    assert verified.returncode == 1
    document = json.loads(verified.stdout)
    (category,) = [category for category in document["categories"] if category["name"] == "samples"]
    (leaf,) = category["children"]
    assert leaf["detail"] == f"samples of optimizer#0 of process 0: {sentence}; in 10 of 10 steps"
    assert leaf["figures"]["seen_at"] == [min(at), max(at)]


@pytest.mark.slow
def test_what_epochs_gave_twice_and_never(reprokit: Reprokit) -> None:
    names = ["doubled", "weighted", "copied", "workers"]
    assert record(reprokit, "run", "ledgered_loaders.py", "3", "seen.json", *names).returncode == 0
    done = reprokit.run("ledger", "run", "--json")
    assert done.returncode == 1
    doubled, *weighted, copied, whole, _ = json.loads(done.stdout)["epochs"]
    assert (doubled["text"], doubled["finding"]) == ("2 samples seen twice", True)
    assert (copied["text"], copied["finding"]) == ("5 batches seen twice", True)
    assert (whole["text"], whole["never"], whole["finding"]) == ("each once; 4 fill no batch", 4, False)
    seen = seen_by(reprokit.directory / "seen.json")["weighted"]
    for epoch, row in enumerate(weighted):
        counts = Counter(sample for step in seen[5 * epoch : 5 * epoch + 5] for sample in step)
        assert (row["distinct"], row["most"]) == (len(counts), max(counts.values()))
        assert row["text"].startswith("sampled with replacement; ")
        assert row["finding"] is False
    verified = reprokit.run("verify", "run", "run")
    assert "note: of the left run, epoch 0 of loader#0 of process 0: 2 samples seen twice" in verified.stdout


@pytest.mark.parametrize(
    ("change", "headline"),
    [
        ({}, "nothing seen twice or left out"),
        ({"uses": {BatchUse.WHOLLY: 1, BatchUse.UNSEEN: 1}}, "nothing drawn twice or never"),
        ({"uses": {BatchUse.UNWATCHED: 2}}, "nothing drawn twice or never"),
        ({"is_digest": True, "loader": SampleLoader("loader#0")}, "nothing to look at"),
        ({"loader": SampleLoader("loader#0", replacement=True, samples=8), "repeated": 2}, "nothing to look at"),
        ({"distinct": 6, "loader": SampleLoader("loader#0", left_over=2, samples=8)}, "nothing to look at"),
        ({"is_whole": False}, "nothing to look at"),
        ({"repeated": 2}, "1 epoch to look at"),
    ],
)
def test_no_headline_says_more_than_is_known(
    capsys: pytest.CaptureFixture[str], change: dict[str, Any], headline: str
) -> None:
    epoch = EpochCoverage(
        0, "0", SampleLoader("loader#0", samples=8), 0, 2, 8, 8, is_whole=True, uses={BatchUse.WHOLLY: 2}
    )
    print_overview(LedgerOverview((Path("run"),), 2, (replace(epoch, **change),)))
    assert capsys.readouterr().out.startswith(f"{headline}: run, 2 steps\n")


ALL = ["plain", "clipped", "summed", "accumulated", "split", "twice", "closure", "late"]
LACKING = ["unseen", "skipped", "guarded", "multiplied", "detached", "overflowed"]
LACKING += ["dropped", "zeroed", "zeroed by optimizer", "zeroed by model"]
LACKING_AT_THE_ENDS = ["guarded@0", "unseen@0", "guarded@9", "unseen@9", "zeroed@9"]
IN_PART = ["masked", "ignored", "weighted", "first_part", "hardest", "slice", "strided", "behind"]
OF_UNKNOWN_SAMPLES = ["chosen", "doubled", "converted"]
USED = {
    **dict.fromkeys(ALL, "each once"),
    **dict.fromkeys([*LACKING, *LACKING_AT_THE_ENDS], "9 of 10 batches were seen to reach an update"),
    **dict.fromkeys(IN_PART, "10 of 10 batches were seen to reach an update, 10 in part"),
    **dict.fromkeys(
        OF_UNKNOWN_SAMPLES, "10 of 10 batches were seen to reach an update, 10 with samples that are not known"
    ),
    "by_hand": "whether batches reached an update is not known",
    "without_model": "0 of 10 batches were seen to reach an update",
}


def test_each_once_is_said_of_what_updates_had(reprokit: Reprokit) -> None:
    """Of samples whose gradients an update is not known to have had, only that they were drawn."""
    recorded = record(reprokit, "run", "ledgered_uses.py", *USED)
    assert recorded.returncode == 0, recorded.stderr
    assert "samples are kept" not in recorded.stderr
    done = reprokit.run("ledger", "run", "--json")
    assert done.returncode == 0, done.stdout
    epochs = json.loads(done.stdout)["epochs"]
    said = {way: row["text"].removeprefix("each drawn once; ") for way, row in zip(USED, epochs, strict=True)}
    assert said == USED
    skipped = epochs[list(USED).index("skipped")]["uses"]
    assert (skipped["wholly"], skipped["unseen"]) == (9, 1)
    (batches, *_) = [json.loads(reprokit.run("ledger", "run", "--step", "3", "--json").stdout)["batches"]]
    uses = {(batch["optimizer"], batch["use"]) for batch in batches}
    assert ("optimizer#0", "wholly") in uses
    assert (f"optimizer#{list(USED).index('skipped')}", "unseen") in uses


def compared_samples(reprokit: Reprokit, left: str, right: str) -> dict[str, Any]:
    """The leaf of the samples of the first optimizer."""
    document = json.loads(reprokit.run("verify", left, right, "--json").stdout)
    (leaf,) = next(one for one in document["categories"] if one["name"] == "samples")["children"]
    found: dict[str, Any] = leaf
    return found


@pytest.mark.slow
def test_what_a_resumed_run_saw_twice_and_never(reprokit: Reprokit) -> None:
    """The first run is killed: what waited for a block is there."""
    killed = record(reprokit, "first", "ledgered_resumed.py", "first", "1")
    assert killed.returncode == -signal.SIGKILL
    assert [path.suffix for path in sorted((reprokit.directory / "first" / "samples").iterdir())] == [
        ".samples",
        ".tail",
    ]
    first = by_step(exported(reprokit, "first"), 0)
    assert len(first) == 8
    for part, seed in (("restarted", "2"), ("positioned", "1")):
        assert record(reprokit, part, "ledgered_resumed.py", part, seed).returncode == 0
    restarted = {sample for step in by_step(exported(reprokit, "restarted"), 0) for sample in step}
    before = {sample for step in first for sample in step}
    twice, never = len(before & restarted), 160 - len(before | restarted)
    assert min(twice, never) > 0
    done = reprokit.run("ledger", "first", "restarted")
    assert done.returncode == 1
    assert f"{twice} samples seen twice, {never} never" in done.stdout
    done = reprokit.run("ledger", "first", "positioned")
    assert done.returncode == 0, done.stdout
    assert "160 samples of 160" in done.stdout
    assert compared_samples(reprokit, "first", "positioned")["verdict"] == "identical"
    differing = compared_samples(reprokit, "first", "restarted")  # the samples of this training have equal values
    again = {sample for step in by_step(exported(reprokit, "restarted"), 0)[:2] for sample in step}
    assert differing["verdict"] == "different"
    assert "batch of step 6 differs: " in differing["detail"]
    assert differing["figures"]["differing_samples"] >= len(set(first[6]) - again) > 0
    assert differing["detail"].endswith("in 2 of 2 steps")
    assert reprokit.run("check", "first").returncode == 0


@pytest.mark.slow
@pytest.mark.parametrize("kind", rest_slow(["persistent"], extended=["plain", "workers", "streamed"]))
def test_torchdata_s_stateful_loader_goes_on_in_the_midst_of_an_epoch(reprokit: Reprokit, kind: str) -> None:
    pytest.importorskip("torchdata.stateful_dataloader")
    killed = record(reprokit, "first", "ledgered_stateful.py", "first", kind, "1")
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    resumed = record(reprokit, "resumed", "ledgered_stateful.py", "resumed", kind, "2")
    assert resumed.returncode == 0, resumed.stderr
    whole = record(reprokit, "whole", "ledgered_stateful.py", "whole", kind, "1")
    printed = [[int(word) for word in line.split()] for line in whole.stdout.splitlines()]
    assert len(printed) == 10
    if kind == "streamed":
        assert {line["worker"] for line in exported(reprokit, "resumed")} == {0, 1}
    else:
        assert by_step(exported(reprokit, "whole"), 0) == printed
        assert by_step(exported(reprokit, "first"), 0) == printed[:8]
        assert by_step(exported(reprokit, "resumed"), 0) == printed[6:]
    both = reprokit.run("ledger", "first", "resumed")
    assert both.returncode == 0, both.stdout
    assert ("10 batches" if kind == "streamed" else "160 samples of 160  each drawn once") in both.stdout
    assert compared_samples(reprokit, "first", "resumed")["verdict"] == "identical"


@pytest.mark.extended
@pytest.mark.skipif(not STREAMING.exists(), reason=f"{STREAMING} is not there: make .venv-streaming/.installed")
def test_streaming_goes_on_in_the_midst_of_an_epoch(reprokit: Reprokit) -> None:
    path = reprokit.script("train.py", training_text("ledgered_shards.py"))
    bare = subprocess.run([STREAMING, path, "whole"], cwd=reprokit.directory, capture_output=True, text=True)
    printed = [[int(word) for word in line.split()] for line in bare.stdout.splitlines()]
    assert len(printed) == 20
    for part in ("first", "resumed", "whole"):
        done = reprokit.run("record", "-o", part, "--", str(STREAMING), str(path), part)
        assert done.returncode == (-signal.SIGKILL if part == "first" else 0), done.stderr
        assert "the agent" not in done.stderr
    steps = {part: by_step(exported(reprokit, part), 0) for part in ("first", "resumed", "whole")}
    assert steps["whole"] == printed
    assert steps["first"] == printed[:8]
    assert steps["resumed"][:14] == printed[6:]
    both = reprokit.run("ledger", "first", "resumed")
    assert both.returncode == 0, both.stdout
    assert "loader#0, epoch 0  80 samples  each drawn once" in both.stdout


@pytest.mark.slow
@pytest.mark.parametrize(
    ("framework", "workers"), rest_slow([("jax", 0)], extended=[("jax", 2), ("torch", 0), ("torch", 2)])
)
def test_grain_s_loader_goes_on_in_the_midst_of_an_epoch(reprokit: Reprokit, framework: str, workers: int) -> None:
    pytest.importorskip("grain")
    arguments = [framework, str(workers), "1"]
    first = record(reprokit, "first", "ledgered_grain.py", "first", *arguments)
    assert first.returncode == (0 if workers else -signal.SIGKILL), first.stderr
    optimizer = "loop#0" if framework == "jax" else "optimizer#0"
    printed = []
    for part in ("resumed", "whole"):
        done = record(reprokit, part, "ledgered_grain.py", part, *arguments)
        assert (done.returncode, "the agent" in done.stderr) == (0, False), done.stderr
        printed = [[int(word) for word in line.split()] for line in done.stdout.splitlines()]
        assert by_step(exported(reprokit, part), optimizer) == printed
    assert by_step(exported(reprokit, "first"), optimizer) == printed[:8]
    assert by_step(exported(reprokit, "resumed"), optimizer) == printed[6:]
    both = reprokit.run("ledger", "first", "resumed")
    assert both.returncode == 0, both.stdout
    assert "165 samples of 165  each drawn once" in both.stdout
    assert ("updates are not seen" in both.stdout) == (framework == "jax")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("framework", "kind"),
    rest_slow([("jax", "iterated")], extended=[("jax", "mapped"), ("torch", "mapped"), ("torch", "iterated")]),
)
def test_grain_s_datasets_go_on_in_the_midst_of_an_epoch(reprokit: Reprokit, framework: str, kind: str) -> None:
    pytest.importorskip("grain")
    optimizer, printed = "loop#0" if framework == "jax" else "optimizer#0", {}
    for part, code in (("first", -signal.SIGKILL), ("resumed", 0), ("whole", 0)):
        done = record(reprokit, part, "ledgered_grain.py", part, framework, "0", "1", kind)
        assert (done.returncode, "the agent" in done.stderr) == (code, False), done.stderr
        printed[part] = [[int(word) for word in line.split()] for line in done.stdout.splitlines()]
        assert by_step(exported(reprokit, part), optimizer) == printed[part]
    assert printed["first"] + printed["resumed"][2:] == printed["whole"]
    both = reprokit.run("ledger", "first", "resumed")
    assert both.returncode == 0, both.stdout
    assert "165 samples of 165  each drawn once" in both.stdout


@pytest.mark.extended
@pytest.mark.parametrize(
    ("kind", "batches", "said"),
    [
        ("repeated", 0, "80 samples  sampled with replacement; 10 samples drawn twice"),
        ("mixed", 21, "21 batches  sampled with replacement"),
        ("dropped", 10, "11 batches  each drawn once"),
        ("filtered", 6, "6 batches  each drawn once"),
    ],
)
def test_no_index_is_said_of_what_grain_s_datasets_mix_or_drop(
    reprokit: Reprokit, kind: str, batches: int, said: str
) -> None:
    """Each batch is known by its digest, from the first one on in which an element was dropped."""
    pytest.importorskip("grain")
    kinds = ["iterated", kind] if kind == "filtered" else [kind]
    done = record(reprokit, "run", "ledgered_grain.py", "whole", "jax", "0", "1", *kinds)
    assert done.returncode == 0, done.stderr
    steps = by_step(exported(reprokit, "run"), "loop#0")
    printed = [[int(word) for word in line.split()] for line in done.stdout.splitlines()]
    known = next((number for number, step in enumerate(steps) if isinstance(step[0], str)), len(steps))
    assert steps[:known] == printed[:known]
    assert all(len(step) == 1 and re.fullmatch("[0-9a-f]{16}", step[0]) for step in steps[known:])
    assert len(steps) - known == batches
    assert said in reprokit.run("ledger", "run").stdout


@pytest.mark.slow
def test_batches_of_which_grain_filters_samples_are_known_by_their_digests(reprokit: Reprokit) -> None:
    pytest.importorskip("grain")
    done = record(reprokit, "run", "ledgered_grain.py", "whole", "jax", "0", "1", "filtered")
    assert done.returncode == 0, done.stderr
    steps = by_step(exported(reprokit, "run"), "loop#0")
    assert [len(step) for step in steps] == [1] * len(done.stdout.splitlines())
    assert all(re.fullmatch("[0-9a-f]{16}", step[0]) for step in steps)
    assert "6 batches  each drawn once" in reprokit.run("ledger", "run").stdout


@pytest.mark.extended
@pytest.mark.skipif(not TRAINERS.exists(), reason=f"{TRAINERS} is not there: make .venv-trainers/.installed")
@pytest.mark.parametrize("buffer", [1, 15])
def test_what_a_resumed_shuffle_of_a_stream_drew_twice_and_never(reprokit: Reprokit, buffer: int) -> None:
    """Hugging Face's shuffle fills its buffer anew: what was in it is lost, unless it is of one record."""
    path = reprokit.script("train.py", training_text("ledgered_streamed.py"))
    seen = []
    for part, code in (("first", -signal.SIGKILL), ("resumed", 0)):
        done = reprokit.run("record", "-o", part, "--", str(TRAINERS), str(path), part, str(buffer), "plain")
        assert done.returncode == code, done.stderr
        printed = [[int(word) for word in line.split()] for line in done.stdout.splitlines()]
        seen.append([[f"{number // 25}.jsonl:{number % 25}" for number in step] for step in printed])
        assert by_step(exported(reprokit, part), 0) == seen[-1]
    both = reprokit.run("ledger", "first", "resumed")
    if buffer == 1:
        assert "100 samples  each drawn once" in both.stdout
        return
    counts = Counter(sample for steps in seen for step in steps for sample in step)
    twice = sum(count > 1 for count in counts.values())
    assert twice > 0
    assert f"{counts.total()} samples  {twice} samples drawn twice" in both.stdout


@pytest.mark.slow
def test_threads_that_read_and_classes_that_are_boosted(reprokit: Reprokit) -> None:
    recorded = record(reprokit, "run", "ledgered_mixture.py")
    assert recorded.returncode == 0, recorded.stderr
    replayed = reprokit.run("replay", "run", "-o", "replayed")
    assert replayed.stdout == recorded.stdout != ""
    verified = reprokit.run("verify", "run", "replayed")
    assert verified.returncode == 0, verified.stdout
    assert "samples             identical     2 compared, all the same" in verified.stdout

    done = reprokit.run("ledger", "run", "--export", "samples.csv")
    assert done.returncode == 0, done.stderr
    with open(reprokit.directory / "samples.csv", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["optimizer"] == "optimizer#1"]
    worst = [int(line.split()[0]) for line in recorded.stdout.splitlines()[1:]]
    shares = [Counter(int(row["sample"]) % 3 for row in rows if int(row["epoch"]) == epoch) for epoch in range(4)]
    assert [share.total() for share in shares] == [90] * 4
    assert worst[0] == worst[1]  # so that it is drawn nine times as often in the third epoch
    assert shares[2][worst[0]] > 1.5 * shares[0][worst[0]]
    overview = reprokit.run("ledger", "run")
    assert overview.returncode == 0
    assert overview.stdout.count("sampled with replacement") == 4


@pytest.mark.slow
def test_what_is_asked_for_wrongly(reprokit: Reprokit) -> None:
    assert record(reprokit, "run", "ledgered_loaders.py", "1", "seen.json", "shuffled").returncode == 0
    script = reprokit.script("plain.py", "import json; print(json.dumps(1))")
    assert reprokit.run("record", "-o", "plain", "--", sys.executable, str(script)).returncode == 0
    for arguments, said in (
        (["run", "--step", "10"], "not-in-ledger: run has no samples of step 10; the last step that has is 9 "),
        (["run", "--sample", "40"], "not-in-ledger: run: no step had the sample '40'; indices go up to 39 "),
        (["run", "--sample", "shard"], "not-in-ledger: run: no step had the sample 'shard'; indices go up to 39 "),
        (["run", "--export", "x.parquet"], "usage: --export x.parquet: name a file that ends in .csv or .jsonl "),
        (["run", "--step", "1", "--sample", "1"], "usage: --step, --sample and --export show different things"),
        (["run", "run", "--step", "1"], "usage: --step, --sample and --export are about one run: name only that"),
        (["plain"], "no-ledger: plain has no ledger of samples (no step of an optimizer"),
        (["run", "--export", "none/x.csv"], "cannot-write-report: none/x.csv: No such file or directory"),
    ):
        done = reprokit.run("ledger", *arguments)
        assert done.returncode == 2
        assert f"reprokit: {said}" in done.stderr, done.stderr
        assert done.stderr.count("\n") == 1
    step = json.loads(reprokit.run("ledger", "run", "--step", "3", "--json").stdout)
    seen = seen_by(reprokit.directory / "seen.json")["shuffled"]
    assert step["batches"][0]["samples"] == seen[3]
    found = json.loads(reprokit.run("ledger", "run", "--sample", "7", "--json").stdout)
    assert [batch["step"] for batch in found["batches"]] == [number for number, ids in enumerate(seen) if 7 in ids]


@pytest.mark.slow
@pytest.mark.tensorflow
def test_fits_of_keras(reprokit: Reprokit) -> None:
    recorded = record(reprokit, "run", "ledgered_fit.py", "seen.json")
    assert recorded.returncode == 0, recorded.stderr
    content = json.loads((reprokit.directory / "seen.json").read_text())
    lines = exported(reprokit, "run")
    for number, steps in enumerate(content):
        assert by_step(lines, number) == steps
    overview = reprokit.run("ledger", "run")
    assert overview.returncode == 0, overview.stdout
    unknown = "each drawn once; whether batches reached an update is not known"
    assert f"fit#2, epoch 1  30 samples of 30  {unknown}" in overview.stdout
    without = reprokit.run(
        "record", "--no-trail", "-o", "without", "--", sys.executable, "ledgered_fit.py", "other.json"
    )
    assert without.stdout == recorded.stdout != ""  # the order is noted, and nothing else is changed


@pytest.mark.tensorflow
@pytest.mark.slow
@pytest.mark.parametrize("kind", rest_slow(["loop"], extended=["fit"]))
def test_elements_that_tf_data_slices_are_known_across_the_midst_of_an_epoch(reprokit: Reprokit, kind: str) -> None:
    script = reprokit.script("train.py", training_text("ledgered_elements.py"))
    bare = subprocess.run([sys.executable, script, kind, "whole"], capture_output=True, text=True)
    printed = [[int(word) for word in line.split()] for line in bare.stdout.splitlines()]
    assert sorted(number for batch in printed for number in batch) == list(range(30))
    for part in ("first", "resumed", "whole"):
        recorded = reprokit.run("record", "--batch-digests", "-o", part, "--", sys.executable, str(script), kind, part)
        assert (recorded.returncode, "the agent" in recorded.stderr) == (0, False), recorded.stderr
    assert by_step(exported(reprokit, "whole"), 0) == printed
    assert by_step(exported(reprokit, "first"), 0) == printed[:3]
    assert by_step(exported(reprokit, "resumed"), 0) == printed[3:]
    both = reprokit.run("ledger", "first", "resumed")
    assert both.returncode == 0, both.stdout
    assert "epoch 0  30 samples of 30  each drawn once" in both.stdout


@pytest.mark.tensorflow
@pytest.mark.extended
def test_elements_of_tf_data_are_known_behind_the_stages_that_change_them(reprokit: Reprokit) -> None:
    script = reprokit.script("train.py", training_text("ledgered_pipelines.py"))
    command = [sys.executable, str(script)]
    bare = subprocess.run(command, capture_output=True, text=True, cwd=reprokit.directory, check=True)
    recorded = reprokit.run("record", "--batch-digests", "-o", "run", "--", *command)
    assert (recorded.returncode, "the agent" in recorded.stderr) == (0, False), recorded.stderr
    assert recorded.stdout == bare.stdout
    printed = [[int(word) for word in line.split()] for line in bare.stdout.splitlines() if line[0] != "t"]
    steps = by_step(exported(reprokit, "run"), 0)
    assert steps[: len(printed)] == printed
    assert sorted(number for batch in steps[len(printed) :] for number in batch) == list(range(30))
    overview = reprokit.run("ledger", "run")
    assert overview.returncode == 0, overview.stdout
    assert re.search(r"60 samples +sampled with replacement; 30 samples drawn twice", overview.stdout)
    replayed = reprokit.run("replay", "run", "-o", "again")
    assert (replayed.returncode, replayed.stdout) == (0, bare.stdout), replayed.stderr
    assert reprokit.run("verify", "run", "again").returncode == 0


@pytest.mark.tensorflow
@pytest.mark.extended
def test_batches_of_tensorflow_datasets_are_known_by_their_elements(reprokit: Reprokit) -> None:
    script = reprokit.script("ledgered_datasets.py", training_text("ledgered_datasets.py"))
    command = ["--", sys.executable, str(script), "seen.json"]
    recorded = reprokit.run("record", "--batch-digests", "-o", "run", *command)
    assert recorded.returncode == 0, recorded.stderr
    assert "samples are kept" not in recorded.stderr
    content = json.loads((reprokit.directory / "seen.json").read_text())
    assert [by_step(exported(reprokit, "run"), number) for number in range(len(content))] == content
    overview = reprokit.run("ledger", "run")
    rows = [re.split("  +", line)[1:] for line in overview.stdout.splitlines()[1:]]
    unknown = "each drawn once; whether batches reached an update is not known"
    assert ["fit#1, epoch 1", "30 samples of 30", unknown] in rows, overview.stdout
    assert ["fit#2, epoch 1", "20 samples", unknown] in rows, overview.stdout
    assert ["dataset#0, epoch 1", "9 samples", unknown] in rows, overview.stdout
    other = reprokit.run("record", "--batch-digests", "-o", "other", *command)
    assert other.returncode == 0, other.stderr
    verified = reprokit.run("verify", "run", "other")
    assert verified.returncode == 1
    assert "batch of step 0 differs" in verified.stdout
