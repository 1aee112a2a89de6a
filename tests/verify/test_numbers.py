"""Numbers that are records: compared like lines, bounded in memory, and one line for each damage."""

from __future__ import annotations

import random
import tracemalloc
from pathlib import Path

import pytest

from reprokit.core.errors import RunDamaged
from reprokit.evidence.bundle.pack import Normalizer
from reprokit.run_files import numbers, rundir
from reprokit.run_files.rundir import RunDirectory
from reprokit.verify.comparison import Comparison
from reprokit.verify.read import run_check
from reprokit.verify.read.normalization import Normalizations
from reprokit.verify.read.scan import SeriesKey, read, scan
from reprokit.verify.runs import compare
from tests import number_files

from .runs import Building, recording, replayed

NAME = "00000000f4dbdf21-0.numbers"
LOSSES = [1 / (step + 1) for step in range(3000)]


def with_losses(path: Path, values: list[float] = LOSSES) -> Building:
    """A recording of a process that began, had these losses and ended."""
    building = recording(path)
    building.start()
    building.add("end")
    building.records[NAME] = number_files.losses(values)
    return building


def pair(tmp_path: Path, right: bytes) -> Comparison:
    left = with_losses(tmp_path / "left")
    other = replayed(left, tmp_path / "right")
    other.records[NAME] = right
    return compare(left.write(), other.write())


def detail(comparison: Comparison) -> str:
    first = comparison.tree.first()
    assert first is not None
    return first.detail


@pytest.mark.parametrize("step", [0, 1023, 1024, 2999])
def test_the_first_step_that_differs_is_exact(tmp_path: Path, step: int) -> None:
    values = [*LOSSES[:step], 7.0, *LOSSES[step + 1 :]]
    assert f"differs first at step {step}: " in detail(pair(tmp_path, number_files.losses(values)))


def test_equal_numbers_are_equal_whatever_process_id_wrote_them(tmp_path: Path) -> None:
    assert pair(tmp_path, number_files.losses(LOSSES, pid=4712)).identical


def test_a_loss_that_is_missing_is_said(tmp_path: Path) -> None:
    assert "step 2999" in detail(pair(tmp_path, number_files.losses(LOSSES[:-1])))


def test_a_number_is_the_same_as_a_record_and_as_a_line(tmp_path: Path) -> None:
    left = with_losses(tmp_path / "left", [0.5, 0.25])
    right = recording(tmp_path / "right")
    right.start()
    for step, (value, bits) in enumerate(((0.5, "3fe0000000000000"), (0.25, "3fd0000000000000"))):
        right.add("loss", name="loss", step=step, value={"dtype": "float64", "bits": bits, "decimal": value})
    right.add("end")
    assert compare(left.write(), replayed(right, tmp_path / "copy").write()).identical


def test_numbers_are_read_in_the_order_of_writing(tmp_path: Path) -> None:
    run = with_losses(tmp_path / "run")
    records = [number_files.number(1.0, 0, lines=1), number_files.number(2.0, 1, lines=2)]
    run.records = {NAME: b"".join([number_files.head(), number_files.series(1), *records])}
    kinds = [place.key.kind for place in read(RunDirectory(run.write()), has_numbers=True)]
    assert kinds == ["agent", "loss", "end", "loss"]


def test_two_processes_of_one_identity_have_their_own_numbers(tmp_path: Path) -> None:
    run = recording(tmp_path / "run")
    run.start(pid=1)
    run.numbers["0"] = 0
    run.start(pid=2)
    first, second = number_files.losses([1.0], pid=1), number_files.losses([2.0, 3.0], pid=2)
    run.records = {"0-1.numbers": first, "0-0.numbers": second}
    found = scan(RunDirectory(run.write()), Normalizations()).series
    assert found[SeriesKey("0", "loss", "loss")].count == 1
    assert found[SeriesKey("0 (start 2)", "loss", "loss")].count == 2


def test_many_series_and_epochs_are_told_apart(tmp_path: Path) -> None:
    def file(odd: float) -> bytes:
        names = [number_files.series(place, "log", f"norm {place}") for place in range(1, 301)]
        values = [
            number_files.number(odd if (step, place) == (7, 42) else step, step, epoch=step // 5, of=place)
            for step in range(20)
            for place in range(1, 301)
        ]
        return b"".join([number_files.head(), *names, *values])

    left = with_losses(tmp_path / "left")
    left.records = {NAME: file(7)}
    right = replayed(left, tmp_path / "right")
    right.records = {NAME: file(8)}
    assert "norm 42 of process 0 differs first at epoch 1, step 7: 7" in detail(compare(left.write(), right.write()))


# Files that were damaged, or that somebody made up.


def unsealed(path: Path, data: bytes) -> RunDirectory:
    """A run without an end, whose files no digest covers."""
    run = with_losses(path)
    run.records = {NAME: data}
    run.run.status, run.run.host, run.run.exit_code = "running", "elsewhere", None
    return RunDirectory(run.write(sealed=False))


def problem(path: Path, data: bytes) -> str:
    """The one line that is said."""
    with pytest.raises(RunDamaged) as raised:
        scan(unsealed(path, data), Normalizations())
    text = str(raised.value)
    assert "\n" not in text
    assert text.endswith("; the run cannot be used")
    return text


def test_what_a_killed_process_had_not_written_is_no_damage(tmp_path: Path) -> None:
    whole = number_files.losses(LOSSES[:5])
    for place, end in enumerate((b"", bytes(64 << 10), b"half a record", number_files.number(1.0)[:20] + bytes(44))):
        found = scan(unsealed(tmp_path / str(place), whole + end), Normalizations())
        assert found.series[SeriesKey("0", "loss", "loss")].count == 5
        assert found.processes["0"].lost == (1 if place == 3 else 0)


def test_records_that_were_not_written_are_counted(tmp_path: Path) -> None:
    data = number_files.losses(LOSSES[:5]) + bytes(64) + number_files.number(1.0, 7)
    found = scan(unsealed(tmp_path / "run", data), Normalizations())
    assert found.processes["0"].lost == 2
    assert not found.processes["0"].whole


def test_one_flipped_bit_is_told_with_its_place(tmp_path: Path) -> None:
    data = number_files.losses(LOSSES[:50])
    for at in random.Random(3).sample(range(len(data) - 32), 40):
        flipped = bytearray(data)
        flipped[at] ^= 1 << at % 8
        text = problem(tmp_path / str(at), bytes(flipped))
        assert f"{NAME}, at byte {at // 32 * 32 if at >= number_files.HEAD else 0}: " in text


def test_a_finished_run_is_sealed(tmp_path: Path) -> None:
    run = with_losses(tmp_path / "run").write()
    file = run / rundir.NUMBERS / NAME
    assert "altered" not in str(run_check.check(run).damages)
    data = file.read_bytes()
    for other in data[:-32], data[:-1] + b"\0", data + number_files.number(1.0), b"":
        file.write_bytes(other)
        with pytest.raises(RunDamaged, match="numbers was altered since the run ended; the run cannot be used"):
            scan(RunDirectory(run), Normalizations())
        assert "was altered" in str(run_check.check(run).damages)
    file.unlink()
    with pytest.raises(RunDamaged, match="was altered"):
        scan(RunDirectory(run), Normalizations())


@pytest.mark.parametrize(
    ("records", "words"),
    [
        ([number_files.number(1.0)], "a record of no series"),
        ([number_files.series(1), number_files.series(1)], "declared before"),
        ([number_files.series(1, "weights")], "weights"),
        ([number_files.series(1, dtype="complex64")], "complex64"),
        ([number_files.series(1, dtype="float32"), number_files.number(1.0)], "too many bits"),
        ([number_files.series(1, name="x" * 5000)], "text that is too long"),
        ([number_files.checked(b"\0\0\0\0\x03\0\0\0[1," + bytes(17))], "JSON"),
    ],
)
def test_what_no_agent_writes_is_refused(tmp_path: Path, records: list[bytes], words: str) -> None:
    text = problem(tmp_path / "run", b"".join([number_files.head(), *records, *([number_files.number(2.0)] * 2)]))
    assert words in text or "Expecting" in text


@pytest.mark.parametrize("head", [b"", b"RKNUMBER", b"RKTRAIL\0" + bytes(300), number_files.head()[:-13] + b"?" * 13])
def test_a_head_that_is_none_is_refused(tmp_path: Path, head: bytes) -> None:
    if head:
        assert "at byte 0: " in problem(tmp_path / "run", head)
    else:
        assert not scan(unsealed(tmp_path / "run", head), Normalizations()).series  # never begun


@pytest.mark.slow
def test_memory_does_not_grow_with_the_number_of_steps(tmp_path: Path) -> None:
    run = RunDirectory(with_losses(tmp_path / "run", [0.5] * 300_000).write())
    tracemalloc.start()
    for process in numbers.read(run):
        assert sum(len(part.contents) for part in process.parts()) == 300_000
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 60 << 20, "what a block of 4 MiB takes"


def test_names_are_replaced_in_bundles_and_numbers_stay(tmp_path: Path) -> None:
    run = with_losses(tmp_path / "run")
    names = [number_files.series(1), number_files.series(2, "log", "loss of /home/ann/data")]
    numbers_of = [number_files.number(step, step, of=1 + step % 2) for step in range(9)]
    run.records = {NAME: b"".join([number_files.head(), *names, *numbers_of, bytes(32), number_files.number(9.0)])}
    (process,) = numbers.read(RunDirectory(run.write()))
    renamed = b"".join(process.rewritten(Normalizer("/home/ann", "", "/home/ann").text))
    assert b"ann" not in renamed
    before, after = (number_files.read(data)[1] for data in (run.records[NAME], renamed))
    assert [line["value"] for _, line in after] == [line["value"] for _, line in before]
    assert {line["name"] for _, line in after} == {"loss", "loss of /working-directory/data"}
    found = scan(unsealed(tmp_path / "again", renamed), Normalizations())
    assert found.processes["0"].lost == 1  # what was lost stays lost
