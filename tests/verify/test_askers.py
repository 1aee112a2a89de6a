"""Who asked for how much: counted as the records say, from any file, and shown in bounded space."""

from __future__ import annotations

import ctypes
import json
import os
import shutil
from contextlib import suppress
from importlib import resources
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from reprokit.core.errors import ReprokitError, RunDamaged
from reprokit.entropy import request_counts
from reprokit.entropy.request_counts import RequestTotals, who_asked
from reprokit.entropy.symbols import ExportedSymbols

from .profiles import Writing, event, mismatch, repeat, site
from .runs import Building, recording, training
from .test_cli import HOSTILE, assert_harmless, on_terminal, reprokit

LIBRARY = "/lib/libseed.so"


def schema(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(resources.files("reprokit").joinpath(f"schemas/{name}.schema.json").read_text())
    jsonschema.Draft202012Validator.check_schema(found)
    return found


def run_with(directory: Path, *files: Writing) -> Path:
    """A run whose random profile consists of these files, not sealed."""
    building = recording(directory)
    building.run.profile = None
    path = building.write()
    shutil.rmtree(path / "entropy", ignore_errors=True)
    (path / "entropy").mkdir()
    for number, file in enumerate(files):
        file.write(path / "entropy" / f"{number:016x}-0.entropy")
    return path


def asked(path: Path) -> dict[tuple[str, str, str, int], RequestTotals]:
    rows = who_asked(path / "entropy").rows
    return {(asker.thread, asker.source, asker.module, asker.offset): count for asker, count in rows.items()}


def test_requests_are_counted_by_thread_site_and_source(tmp_path: Path) -> None:
    file = Writing()
    file.chunk("m", site(1, LIBRARY, 16), event(1, 1, b"x" * 8), repeat(b"y" * 8), repeat(b"z" * 8))
    file.chunk("m.1", site(1, "", 32), event(7, 1, b"a"), event(10, 1, b"bcde"))
    file.chunk("m", repeat(b"w" * 8), event(1, 1, b"", withheld=True, given=48), repeat(b""))
    assert asked(run_with(tmp_path / "run", file)) == {
        ("m", "getrandom", LIBRARY, 16): RequestTotals(6, 4 * 8 + 2 * 48, 2),
        ("m.1", "device", "", 32): RequestTotals(1, 1, 0),
        ("m.1", "random_device", "", 32): RequestTotals(1, 4, 0),
    }


def test_rows_beyond_the_bound_lose_their_names_and_not_their_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(request_counts, "MAX_ROWS", 2)
    file = Writing()
    for thread in range(5):
        file.chunk(f"m.{thread + 1}", *(record for n in (1, 2, 3) for record in (site(n, "", n), event(1, n, b"x"))))
    found = who_asked(run_with(tmp_path / "run", file) / "entropy")
    assert len(found.rows) <= 5
    assert sum(count.requests for count in found.rows.values()) == found.total.requests == 15
    assert found.threads == 5


@pytest.mark.parametrize(
    "rest",
    [
        b"\x03",
        b"\x03" + b"\1" * 8,
        b"\x03\1\1\0\0" + b"\xff" * 16 + bytes(30),
        b"\x02\x01",
        b"\x05",
        b"\x09" + bytes(40),
        b"\x04" + bytes(8),
        b"\x01\xff",
    ],
    ids=["event", "event-cut", "event-too-long", "site", "mismatch", "unknown-tag", "repeat-of-nothing", "thread"],
)
def test_records_that_are_none_are_one_clear_error(tmp_path: Path, rest: bytes) -> None:
    file = Writing()
    file.chunk("m", rest=rest)
    path = run_with(tmp_path / "run", file)
    with pytest.raises(RunDamaged, match="at byte"):
        who_asked(path / "entropy")
    done = reprokit("show", path, "--entropy")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("reprokit: run-damaged: ")


def test_withheld_bytes_may_be_as_many_as_they_say(tmp_path: Path) -> None:
    file = Writing()
    file.chunk("m", event(1, 1, b"", withheld=True, given=2**64 - 1), repeat(b""))
    done = reprokit("show", run_with(tmp_path / "run", file), "--entropy", "--json")
    assert json.loads(done.stdout)["totals"]["bytes"] == 2 * (2**64 - 1)


def test_any_byte_may_be_wrong(tmp_path: Path) -> None:
    file = Writing()
    file.chunk("m", site(1, LIBRARY, 16), event(1, 1, b"x" * 8), repeat(b"y" * 8), repeat(b"z" * 8))
    [path] = (run_with(tmp_path / "run", file) / "entropy").iterdir()
    whole = path.read_bytes()
    for place in range(1024, len(whole)):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 0xFF]) + whole[place + 1 :])
        with suppress(ReprokitError):  # anything else would be a traceback
            assert who_asked(path.parent).total.requests <= 8


def many_processes(directory: Path) -> Path:
    files = []
    for number in range(60):
        file = Writing(identity=f"0/{number + 1}")
        for thread in ("m", "m.1", "m.2"):
            file.chunk(thread, site(1, LIBRARY, 16), event(1, 1, b"x" * 8))
        file.chunk("m", site(2, "", 100 + number), event(7, 2, b"y"))
        files.append(file)
    return run_with(directory, *files)


def test_many_processes_are_one_row_where_they_do_the_same(tmp_path: Path) -> None:
    path = many_processes(tmp_path / "run")
    done = reprokit("show", path, "--entropy")
    lines = done.stdout.splitlines()
    assert "240 requests, 1500 bytes, 0 requests withheld, by 180 threads of 60 processes" in lines[0]
    [row] = [line.split() for line in lines if "libseed.so+0x10" in line]
    assert row == ["1440", "180", "0", "getrandom", "libseed.so+0x10", "180", "60", "processes", "of", "train"]
    assert len([line for line in lines if " device " in line]) == 60
    screen = on_terminal("show", path, "--entropy")
    assert "and 41 more (--json has them all)" in screen


def test_the_document_has_every_row_and_fits_the_schema(tmp_path: Path) -> None:
    done = reprokit("show", many_processes(tmp_path / "run"), "--entropy", "--json")
    found = json.loads(done.stdout)
    jsonschema.Draft202012Validator(schema("show-entropy")).validate(found)
    assert (len(found["processes"]), len(found["askers"])) == (60, 240)
    assert found["totals"] == {"requests": 240, "bytes": 1500, "withheld": 0, "processes": 60, "threads": 180}
    changes: list[dict[str, Any]] = [{"format": 2}, {"surprise": 1}, {"askers": [{}]}]
    for change in changes:
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.Draft202012Validator(schema("show-entropy")).validate({**found, **change})


def test_a_replay_shows_how_each_process_was_answered(tmp_path: Path) -> None:
    first = Writing(mode=2, matches=(5, 1, 0, 0))
    first.chunk("m", site(1, LIBRARY, 16), mismatch(1, 1, 1, 8))
    second = Writing(mode=2, identity="0/1", matches=(7, 0, 0, 0))
    building = recording(tmp_path / "run")
    building.run.kind = "replay"
    building.run.profile = None
    path = building.write()
    shutil.rmtree(path / "entropy", ignore_errors=True)
    (path / "entropy").mkdir()
    first.write(path / "entropy" / "0-0.entropy")
    second.write(path / "entropy" / "1-0.entropy")
    shown = reprokit("show", path, "--entropy").stdout
    assert "a replay; 12 exact, 1 moved, 0 derived, 0 live" in shown
    assert "process 0 of train: 5 exact, 1 moved, 0 derived, 0 live" in shown
    assert "getrandom, moved" in shown
    found = json.loads(reprokit("show", path, "--entropy", "--json").stdout)
    jsonschema.Draft202012Validator(schema("show-entropy")).validate(found)
    assert [asker["match"] for asker in found["askers"]] == ["moved"]


def test_a_keyed_run_has_counts_by_process(tmp_path: Path) -> None:
    files = Writing(matches=(5, 0, 0, 0), given=(80, 0, 0, 0)), Writing(identity="0/1", matches=(2, 0, 0, 0))
    path = run_with(tmp_path / "run", *files)
    shown = reprokit("show", path, "--entropy").stdout
    assert "7 requests, 80 bytes" in shown.splitlines()[0]
    assert "process 0 of train: 5 requests, 80 bytes" in shown
    assert "process 0/1 of train: 2 requests, 0 bytes" in shown


def test_what_a_profile_holds_cannot_act_on_the_terminal(tmp_path: Path) -> None:
    file = Writing(identity=HOSTILE, program=HOSTILE)
    file.chunk(HOSTILE, site(1, HOSTILE, 16), event(1, 1, b"x" * 8))
    path = run_with(tmp_path / "run", file)
    for options in (("show", "--entropy"), ("show", "--entropy", "--json")):
        for text in (reprokit(*options, path).stdout, on_terminal(*options, path)):
            assert_harmless(text)
            assert "[bold red]x[/bold red]" in text


def test_an_altered_profile_is_a_warning(tmp_path: Path) -> None:
    path = training(tmp_path / "run").write()
    for file in (path / "entropy").iterdir():
        file.unlink()
    found = json.loads(reprokit("show", path, "--entropy", "--json").stdout)
    assert ["altered" in warning for warning in found["warnings"]] == [True]


def mappings_of_libc() -> list[str]:
    return [line for line in Path("/proc/self/maps").read_text().splitlines() if "libc.so.6" in line]


def test_functions_have_the_names_that_libraries_export() -> None:
    libc = ctypes.CDLL(None)
    [line] = [line.split() for line in mappings_of_libc() if " 00000000 " in line]
    base = int(line[0].split("-")[0], 16)
    address = ctypes.cast(libc.getpid, ctypes.c_void_p).value
    assert address is not None
    symbols = ExportedSymbols(Path(line[-1]))
    assert symbols.name(address - base).endswith("getpid")
    assert symbols.name(0) == symbols.name(2**60) == ""


def test_what_is_no_library_has_no_symbols(tmp_path: Path) -> None:
    fifo, cut, missing = tmp_path / "fifo", tmp_path / "cut", tmp_path / "missing"
    os.mkfifo(fifo)
    [path] = {line.split()[-1] for line in mappings_of_libc()}
    content = bytearray(Path(path).read_bytes())
    for place in range(40, 64):
        damaged = tmp_path / f"damaged{place}"
        damaged.write_bytes(content[:place] + bytes([content[place] ^ 0xFF]) + content[place + 1 : 100_000])
        assert ExportedSymbols(damaged).name(4096) == ""
    cut.write_bytes(content[:5000])
    for path_without in (fifo, cut, missing, tmp_path):
        assert ExportedSymbols(path_without).name(4096) == ""


def test_the_summary_fits_its_schema(pair: tuple[Building, Building]) -> None:
    for run in pair:
        found = json.loads(reprokit("show", run.write(), "--json").stdout)
        jsonschema.Draft202012Validator(schema("show")).validate(found)
    for change in ({"format": 2}, {"surprise": 1}, {"run": {**found["run"], "key": "00"}}):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.Draft202012Validator(schema("show")).validate({**found, **change})
