"""Copies of small outputs in the run directory: the same bytes as the digests, within the bounds."""

from __future__ import annotations

import errno
import hashlib
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from reprokit.model.outputs import OutputFile
from reprokit.run import outputs
from reprokit.run_files.rundir import RunDirectory
from tests.run.test_outputs import here, run  # noqa: F401
from tests.support import Reprokit, python


def collect(run: Path, here: Path, keep: int, **files: bytes) -> dict[str, OutputFile]:  # noqa: F811
    for name, data in files.items():
        (here / name).write_bytes(data)
    (run / "written.paths").write_bytes(b"".join(os.fsencode(here / name) + b"\n" for name in files))
    return {file.path: file for file in outputs.collect(run, here, lambda: False, keep).files}


def kept(run: Path) -> dict[str, bytes]:  # noqa: F811
    directory = run / "outputs"
    return {path.name: path.read_bytes() for path in directory.iterdir()} if directory.exists() else {}


def test_copies_are_of_the_digested_bytes_and_of_their_owner_only(run: Path, here: Path) -> None:  # noqa: F811
    found = collect(run, here, 100, a=b"one", b=b"", c=b"three")
    assert [found[name].kept for name in "abc"] == [0, None, 1]
    assert kept(run) == {"0": b"one", "1": b"three"}
    assert found["c"].digest == f"sha256:{hashlib.sha256(b'three').hexdigest()}"
    assert [stat.S_IMODE((run / "outputs" / name).stat().st_mode) for name in (".", "0")] == [0o700, 0o600]


def test_programs_are_not_kept(run: Path, here: Path) -> None:  # noqa: F811
    found = collect(run, here, 100, **{"model.bin": b"one", "layer.py": b"two", "layer.so": b"three"})
    assert [(path, file.kept) for path, file in found.items()] == [
        ("layer.py", None),
        ("layer.so", None),
        ("model.bin", 0),
    ]
    assert all(file.digest for file in found.values())


@pytest.mark.parametrize(("keep", "names"), [(0, ""), (3, "a"), (8, "ac"), (7, "a"), (12, "ab")])
def test_no_more_is_kept_than_asked_for(run: Path, here: Path, keep: int, names: str) -> None:  # noqa: F811
    found = collect(run, here, keep, a=b"one", b=b"and seven", c=b"three")
    assert [name for name in "abc" if found[name].kept is not None] == list(names)
    assert len(kept(run)) == len(names)
    assert all(file.digest for file in found.values())


def test_a_file_that_changes_while_it_is_copied_is_not_kept(
    run: Path,  # noqa: F811
    here: Path,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    copy_some: Callable[..., int] = outputs._copy_some

    def change(source: int, *arguments: int) -> int:
        count = copy_some(source, *arguments)
        path = Path(os.readlink(f"/proc/self/fd/{source}"))
        os.utime(path, ns=(1, 1))
        path.write_bytes(b"after")
        return count

    monkeypatch.setattr(outputs, "_copy_some", change)
    found = collect(run, here, 100, model=b"before")
    assert (found["model"].kept, kept(run)) == (None, {})
    assert found["model"].digest == f"sha256:{hashlib.sha256(b'after').hexdigest()}"


def test_a_file_system_that_cannot_copy_by_itself_is_read_and_written(
    run: Path,  # noqa: F811
    here: Path,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*arguments: Any) -> int:
        raise OSError(errno.EXDEV, "another file system")

    monkeypatch.setattr(os, "copy_file_range", refuse)
    monkeypatch.setattr(outputs, "PIECE", 2)
    assert collect(run, here, 100, model=b"seven b")["model"].kept == 0
    assert kept(run) == {"0": b"seven b"}


def test_a_disk_that_is_nearly_full_keeps_nothing(
    run: Path,  # noqa: F811
    here: Path,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(outputs, "MARGIN", 1 << 60)
    found = collect(run, here, 100, model=b"1")
    assert (found["model"].kept, bool(found["model"].digest), kept(run)) == (None, True, {})


WRITE = "import os; open('model.bin', 'wb').write(os.urandom(64)); open('text', 'w').write('x')"


def test_record_and_replay_keep_what_the_run_wrote(reprokit: Reprokit) -> None:
    reprokit.run("record", "-o", "one", "--", *python(WRITE))
    first = (reprokit.directory / "model.bin").read_bytes()
    reprokit.run("record", "-o", "two", "--keep-outputs", "0", "--", *python(WRITE))
    reprokit.run("replay", "one", "-o", "three", "--keep-outputs", "1K")
    copies = [kept(reprokit.directory / name) for name in ("one", "two", "three")]
    assert copies == [{"0": first, "1": b"x"}, {}, {"0": first, "1": b"x"}]
    found = RunDirectory(reprokit.directory / "one").outputs()
    assert found is not None
    assert [(file.path, file.kept) for file in found.files] == [("model.bin", 0), ("text", 1)]


def test_a_size_that_is_none_is_refused(reprokit: Reprokit) -> None:
    for size in ("-1", "1X", "x", "", "٣", "1" * 30):
        done = reprokit.run("record", "--keep-outputs", size, "--", "true")
        assert done.returncode == 125
        assert "is not a number of bytes" in done.stderr
