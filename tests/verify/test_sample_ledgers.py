"""The reader and the comparison of ledgers of samples, given files from elsewhere; and what the agent writes, read."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reprokit.agent.core import native_module
from reprokit.agent.core.journal import Journal
from reprokit.agent.listeners.sample_ledger import ENTRIES, NUMBERS, LedgerFile
from reprokit.core.difference import Difference, Verdict
from reprokit.core.errors import RunDamaged, RunTooNew
from reprokit.core.native import trail_path
from reprokit.run_files import rundir
from reprokit.run_files.ledgers import BatchUse, LedgerEvent, SampleStep, ledgers
from reprokit.run_files.rundir import RunDirectory
from reprokit.verify.categories.samples import coverage
from reprokit.verify.comparison import Comparison
from reprokit.verify.read.run_check import check
from reprokit.verify.runs import compare
from tests.sample_ledgers import DECLARED, NAME, block, entry, head, ledger, steps, tail

from .runs import Building, recording

FILE, TAIL = f"{NAME}.samples", f"{NAME}.tail"
Runs = tuple[Building, Building]
Compared = Callable[[Runs], Comparison]


def with_ledgers(runs: Runs, left: bytes, right: bytes) -> Runs:
    for run, data in zip(runs, (left, right), strict=True):
        run.losses(0.5)
        run.ledgers = {FILE: data} if data else {}
    return runs


def samples_of(comparison: Comparison) -> Difference:
    (category,) = [child for child in comparison.tree.children if child.name == "samples"]
    return category


def written(path: Path, *, sealed: bool = False, **files: bytes) -> RunDirectory:
    building = recording(path)
    building.ledgers = {f"{NAME}.{suffix}": data for suffix, data in files.items()}
    return RunDirectory(building.write(sealed=sealed))


def read(run: RunDirectory) -> list[LedgerEvent]:
    return [event for found in ledgers(run) for event in found.read()]


def batches(run: RunDirectory) -> list[list[object]]:
    return [step.samples for step in read(run) if isinstance(step, SampleStep)]  # type: ignore[misc]


@pytest.mark.parametrize(
    ("left", "right", "said"),
    [
        (
            ([0, 1], [2, 3]),
            ([2, 3], [0, 1]),
            "batch of step 0 differs: 2 of 2 samples; the other run saw them at step 1",
        ),
        (
            ([0, 1], [2, 3], [4, 5]),
            ([0, 1], [4, 2], [3, 5]),
            "batch of step 1 differs: 1 of 2 samples; the other run saw them at step 2",
        ),
        (
            ([0, 1, 2], [3, 4, 5]),
            ([3, 6, 7], [8, 1, 9]),
            "batch of step 0 differs: 3 of 3 samples; the other run saw 1 of them at step 1",
        ),
        (([0, 1],), ([2, 3],), "batch of step 0 differs: 2 of 2 samples; the other run never saw them in that epoch"),
        (([0, 1],), ([1, 0],), "batch of step 0 has the same samples in another order, or more of them"),
    ],
)
def test_where_samples_part(bare: Runs, compared: Compared, left: object, right: object, said: str) -> None:
    runs = with_ledgers(bare, ledger(*left), ledger(*right))  # type: ignore[misc]
    first = samples_of(compared(runs)).first()
    assert first is not None
    assert first.detail.startswith(f"samples of optimizer#0 of process 0: {said}; in ")


def test_what_is_no_difference(bare: Runs, compared: Compared) -> None:
    runs = with_ledgers(bare, ledger([0, 1], [2, 3]), ledger([0, 1], [2, 3], [4, 5]))  # the right run went on
    comparison = compared(runs)
    assert comparison.identical
    assert [leaf.left for leaf in samples_of(comparison).leaves()] == ["2 steps"]


@pytest.mark.parametrize("data", [b"", ledger([0], process="0/1")])
def test_a_ledger_in_one_run_only_is_no_difference(bare: Runs, compared: Compared, data: bytes) -> None:
    comparison = compared(with_ledgers(bare, ledger([0, 1]), data))
    assert comparison.identical
    assert samples_of(comparison).verdict in (Verdict.INFORMATION, Verdict.NOT_RECORDED)


def test_what_two_runs_did_wrong_alike_is_said_of_each(bare: Runs, compared: Compared) -> None:
    data = ledger([0, 1], [1, 2])
    comparison = compared(with_ledgers(bare, data, data))
    assert comparison.identical
    for side in ("left", "right"):
        words = f"of the {side} run, epoch 0 of loader#0 of process 0: 1 sample drawn twice, 3 never"
        assert words in comparison.notes


def test_an_epoch_that_is_short_is_a_finding_once_it_is_over(tmp_path: Path) -> None:
    entries, numbers = steps([[0, 1], [2, 3]])
    for name, ending, finding in (("open", b"", False), ("over", entry(3, 0, 0, 0, 0), True)):
        run = written(tmp_path / name, samples=head("0") + block(entries + ending, numbers))
        (row,) = coverage([run])
        assert (row.is_finding, row.never) == (finding, 2)


@pytest.mark.parametrize("sealed", [True, False])
def test_damage_is_refused_bit_by_bit(tmp_path: Path, sealed: bool) -> None:
    run = written(tmp_path / "run", sealed=sealed, samples=ledger([0, 1]))
    path = run.path / rundir.SAMPLES / FILE
    data = path.read_bytes()
    assert batches(run) == [[0, 1]]
    for position in range(len(data)):
        path.write_bytes(data[:position] + bytes([data[position] ^ 64]) + data[position + 1 :])
        with pytest.raises((RunDamaged, RunTooNew)):
            read(run)
    for size in range(1, len(data), 7):
        path.write_bytes(data[:size])
        if sealed or size != len(head("0")):  # at the end of a record it looks like a crash
            with pytest.raises(RunDamaged):
                read(run)


def test_verify_and_check_refuse_what_is_damaged(bare: Runs) -> None:
    with_ledgers(bare, ledger([0, 1]), ledger([0, 1]))
    paths = [run.write() for run in bare]
    (paths[1] / rundir.SAMPLES / FILE).write_bytes(ledger([0, 2]))
    with pytest.raises(RunDamaged, match="was altered since the run ended"):
        compare(*paths)
    assert [damage.file for damage in check(paths[1]).damages if damage.what.startswith("samples was")] == ["samples"]


def malformed() -> dict[str, bytes]:
    """Files whose checks fit."""
    two = block(b"", [], count=0)
    many = DECLARED + entry(1, 1, 0, 0, 0) * (1 << 18)
    return {
        "an unknown kind": block(entry(9, 0, 0, 0, 0), []),
        "an unknown form": block(DECLARED + entry(1, 9, 0, 0, 1), [1]),
        "an unknown use": block(DECLARED + entry(1, 1 | 7 << 4, 0, 0, 1), [1]),
        "no such loader": block(entry(1, 1, 7, 0, 1), [1]),
        "no such optimizer": block(entry(2, 0, 7, 1, 0), []),
        "numbers that are missing": block(DECLARED + entry(1, 1, 0, 0, 2), [1]),
        "endless numbers": block(DECLARED + entry(1, 1, 0, 0, 0xFFFFFFFF), [1]),
        "several digests": block(DECLARED + entry(1, 2, 0, 0, 2), [1] * 8),
        "a text that is cut": block(entry(4, 0, 0, 0, 99), []),
        "a text that is none": block(entry(4, 0, 0, 0, 1) + b"{", []),
        "a loader of another shape": block(entry(4, 0, 0, 0, 2) + b"[]", []),
        "names that are none": block(DECLARED + entry(1, 3, 0, 0, 3) + b"[1]", []),
        "nesting": block(entry(4, 0, 0, 0, 90_000) + b"[" * 90_000, []),
        "half an entry": block(entry(2, 0, 0, 1, 0)[:5], []),
        "blocks that do not follow": two + block(DECLARED, [], first=5),
        "more than it says": block(DECLARED, [], entries_said=3),
        "less than it says": block(DECLARED, [], entries_said=1000),
        "a payload beyond the end": block(DECLARED, [], payload_said=1 << 30),
        "an absurd size": block(DECLARED, [], numbers_said=0xFFFFFFFC),
        "numbers of three bytes": block(DECLARED, [], numbers_said=3),
        "too many batches": block(many, []),
    }


@pytest.mark.parametrize("data", [pytest.param(data, id=what) for what, data in malformed().items()])
def test_what_does_not_fit_is_refused(tmp_path: Path, data: bytes) -> None:
    run = written(tmp_path / "run", samples=head("0") + data)
    with pytest.raises(RunDamaged, match="the run cannot be used"):
        read(run)


def test_a_bomb_is_refused(tmp_path: Path) -> None:
    bomb = zlib.compress(bytes(64 << 20))
    facts = struct.pack("<QIIII", 0, 1, 24, 0, len(bomb))
    expands = b"RKSB" + struct.pack("<I", zlib.crc32(facts + bomb)) + facts + bomb
    run = written(tmp_path / "run", samples=head("0") + expands)
    with pytest.raises(RunDamaged, match="the run cannot be used"):
        read(run)


def test_a_link_and_a_directory_are_refused(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").write_bytes(ledger([0]))
    run = written(tmp_path / "run", samples=ledger([0]))
    path = run.path / rundir.SAMPLES / FILE
    path.unlink()
    path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(RunDamaged):
        read(run)
    path.unlink()
    path.mkdir()
    with pytest.raises(RunDamaged):
        read(run)


@given(entries=st.binary(max_size=200), numbers=st.lists(st.integers(0, 0xFFFFFFFF), max_size=20))
def test_anything_under_a_check_is_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory, entries: bytes, numbers: list[int]
) -> None:
    path = tmp_path_factory.mktemp("hostile") / "run"
    run = written(path, samples=head("0") + block(DECLARED + entries, numbers))
    try:
        assert sum(len(step) for step in batches(run)) <= len(numbers) + len(entries)
    except RunDamaged:
        pass


@given(data=st.binary(max_size=100), at=st.integers(0, 80))
def test_a_tail_of_anything_is_read_or_refused(tmp_path_factory: pytest.TempPathFactory, data: bytes, at: int) -> None:
    whole = bytearray(tail(*steps([[1, 2]])))
    whole[at : at + len(data)] = data
    run = written(tmp_path_factory.mktemp("tail") / "run", samples=head("0"), tail=bytes(whole))
    try:
        read(run)
    except RunDamaged:
        pass


def test_what_waited_is_read_once(tmp_path: Path) -> None:
    entries, numbers = steps([[1, 2], [3, 4]])
    waiting = tail(entry(1, 1, 0, 0, 1) + entry(2, 0, 0, 1, 0), [5], first=3)
    first = head("0") + block(entries, numbers, count=3)
    assert batches(written(tmp_path / "behind", samples=first, tail=waiting)) == [[1, 2], [3, 4], [5]]
    again = tail(entries, numbers)  # killed behind the block, before the tail was emptied
    assert batches(written(tmp_path / "same", samples=first, tail=again)) == [[1, 2], [3, 4]]
    torn = head("0") + block(entries, numbers)[:-3]  # killed in the midst of the block
    assert batches(written(tmp_path / "torn", samples=torn, tail=again)) == [[1, 2], [3, 4]]


@pytest.mark.parametrize("by_compiled_code", [False, True])
@pytest.mark.parametrize("size", [1, 16, 5000, NUMBERS // 4 + 1])
def test_what_the_agent_writes_is_read_as_it_was(tmp_path: Path, size: int, by_compiled_code: bool) -> None:
    """With blocks between, and when it is killed at any moment: each state of the files is whole."""
    run = written(tmp_path / "run")
    compiled = native_module.load(str(trail_path())) if by_compiled_code else None
    file = LedgerFile(str(run.path), Journal(str(run.path), "0"), compiled)
    expected: list[list[int]] = []
    assert file.put(DECLARED, b"")
    for step in range(3 + 40_000 // size if size > 1 else 2000):
        batch = [(step * 7919 + place) % 100_003 for place in range(size)]
        entries = entry(1, 1, 0, 0, size) + entry(2, 0, 0, 1, 0)
        numbers = struct.pack(f"<{size}I", *batch)
        assert compiled is None or compiled.words(batch) == numbers
        assert file.put(entries, numbers)
        expected.append(batch)
        if step % 500 == 0 or step < 4:
            assert batches(run) == expected
    file.close()
    assert batches(run) == expected
    assert [path.suffix for path in (run.path / rundir.SAMPLES).iterdir()] == [".samples"]
    assert not file.put(b"", b"")


@pytest.mark.parametrize("indices", [[1, None], [-1], [1 << 32], [1 << 70], ["a"], (1, 2), None])
def test_what_is_no_list_of_small_numbers_is_left_to_python(indices: object) -> None:
    assert native_module.load(str(trail_path())).words(indices) is None


def rows_with_values(tensor: numpy.ndarray, axis: int) -> bytes | None:
    module, size = native_module.load(str(trail_path())), tensor.itemsize
    strides = tuple(stride // size for stride in tensor.strides)
    rows: bytes | None = module.rows_with_values(tensor.ctypes.data, size, tensor.shape, strides, axis)
    return rows


@pytest.mark.parametrize("kind", ["float16", "float32", "float64"])
def test_the_rows_of_a_gradient_that_are_not_zero(kind: str) -> None:
    gradient = numpy.zeros((4, 3, 5), kind)
    gradient[1, 2, 4], gradient[2, 0, 0], gradient[3, 1, 1] = 1e-7, numpy.nan, -0.0
    assert [rows_with_values(gradient, axis) for axis in range(3)] == [b"\0\1\1\0", b"\1\0\1", b"\1\0\0\0\1"]
    assert rows_with_values(gradient[:, :, ::2], 0) == rows_with_values(gradient.T, 2) == b"\0\1\1\0"
    assert rows_with_values(numpy.broadcast_to(gradient[1, 2, 4:], (2, 3)), 0) == b"\1\1"
    assert rows_with_values(gradient[:0], 0) == b""
    assert rows_with_values(gradient[:, :0], 0) == bytes(4)


def test_what_is_no_tensor_of_floats_has_no_rows() -> None:
    assert rows_with_values(numpy.zeros(3, "int8"), 0) is None
    assert rows_with_values(numpy.zeros(3), 1) is rows_with_values(numpy.zeros(3), -1) is None
    assert rows_with_values(numpy.zeros((1,) * 17), 0) is None


def test_ledgers_of_older_releases_say_nothing_of_updates(tmp_path: Path) -> None:
    run = written(tmp_path / "run", samples=ledger(range(6)) + block(entry(3, 0, 0, 0, 0), [], first=1))
    (row,) = coverage([run])
    assert row.words == "each drawn once; whether batches reached an update is not known"


def test_what_no_step_followed_was_drawn(tmp_path: Path) -> None:
    entries, numbers = steps([[0, 1, 2]])
    left = entry(1, 1 | 1 << 4, 0, 0, 3) + entry(6, 0, 0, 0, 0)
    run = written(
        tmp_path / "run", samples=head("0") + block(entries + entry(3, 0, 0, 0, 0) + left, [*numbers, 3, 4, 5])
    )
    (row,) = coverage([run])
    assert (row.drawn, row.never, row.is_finding, row.uses[BatchUse.UNSEEN]) == (6, 0, False, 1)


def test_a_name_that_fills_an_area_is_written_at_once(tmp_path: Path) -> None:
    run = written(tmp_path / "run")
    file = LedgerFile(str(run.path), Journal(str(run.path), "0"))
    text = b'["' + b"x" * ENTRIES + b'"]'
    file.put(DECLARED + entry(1, 3, 0, 0, len(text)) + text + entry(2, 0, 0, 1, 0), b"")
    assert [len(str(sample)) for (sample,) in batches(run)] == [ENTRIES]
    second = LedgerFile(str(run.path), Journal(str(run.path), "0"))  # another process of the same name
    second.put(DECLARED, b"")
    assert [found.process for found in ledgers(run)] == ["0", "0 (start 2)"]
