"""The readers of entropy files against damage: the corpus, every flipped bit, and a short run of the fuzzer."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from reprokit import entropy
from reprokit.core.errors import RunDamaged, RunTooNew
from reprokit.entropy.files import HEAD
from tests.fuzz.flips import PROFILE, damaged
from tests.fuzz.profiles import CORPUS, seal, seeds
from tests.support import rest_slow

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parent.parent.parent
HAS_ATHERIS = pytest.mark.skipif(
    importlib.util.find_spec("atheris") is None, reason="atheris has no wheel for this platform"
)
COUNTERS = range(552, HEAD)  # of the head: they change all the time, and only the seal protects them


# Mistakes: a reason that nobody knows is an IndexError; the payload of a record that is looked for in another
# thread's stream, with signals blocked, may end behind the file.
MISTAKES = {
    "python": ("reprokit/entropy/files.py", {" or reason >= len(REASONS)": ""}),
    "c": (
        "native/recorder/replay.c",
        {
            "payload > room": "payload > room && !reader->link",
            "length + 5 > reader->end - reader->at": "(length + 5 > reader->end - reader->at && !reader->link)",
        },
    ),
}


def start(*arguments: str, root: Path = ROOT) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", *arguments]
    return subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=300, check=False)


def copy_with_a_mistake(reader: str, root: Path) -> None:
    for name in ("native", "reprokit", "tests/fuzz"):
        shutil.copytree(ROOT / name, root / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("__init__.py", "native_sources.py"):
        shutil.copy(ROOT / "tests" / name, root / "tests")
    path, changes = MISTAKES[reader]
    text = (root / path).read_text()
    for right, wrong in changes.items():
        assert text.count(right) == 1, f"{path} no longer says {right}"
        text = text.replace(right, wrong)
    (root / path).write_text(text)


def test_the_corpus_holds_every_seed() -> None:
    for name, data in seeds().items():
        assert (CORPUS / f"{name}.entropy").read_bytes() == data, "run: python -m tests.fuzz.profiles"


def test_the_checks_put_right_are_those_of_the_format() -> None:
    for data in seeds().values():
        broken = bytearray(data)
        broken[544] ^= 1
        broken[HEAD + 24 : HEAD + 32] = bytes(8)
        assert seal(bytes(broken[: len(data)])) == data


@pytest.mark.parametrize("reader", ["python", "c"])
def test_the_corpus_does_no_harm(reader: str) -> None:
    done = start("tests.fuzz", reader, "--once")
    assert (done.returncode, done.stdout) == (0, f"{len(list(CORPUS.iterdir()))} files tried\n"), done.stderr


@HAS_ATHERIS
@pytest.mark.parametrize("reader", ["python", "c"])
def test_a_short_run_finds_nothing(reader: str, tmp_path: Path) -> None:
    done = start("tests.fuzz", reader, "--seconds", "4", "--found", str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert [name for name in os.listdir(tmp_path) if "-" in name] == []  # crash-..., timeout-..., oom-...
    counted = re.findall(r"cov: (\d+) ft: (\d+)", done.stderr)
    assert int(counted[-1][1]) > int(counted[0][1]) > 100, "coverage does not guide it"


@HAS_ATHERIS
@pytest.mark.parametrize("reader", rest_slow(["python"], extended=["c"]))
def test_a_mistake_is_found_and_its_input_kept(reader: str, tmp_path: Path) -> None:
    """In a copy of the sources: the input that is kept shows the mistake again."""
    copy, found = tmp_path / "copy", tmp_path / "found"
    copy_with_a_mistake(reader, copy)
    done = start("tests.fuzz", reader, "--seconds", "120", "--found", str(found), root=copy)
    assert done.returncode == 77, done.stderr
    [kept] = found.glob("crash-*")
    assert start("tests.fuzz", reader, "--once", str(kept), root=copy).returncode != 0


def read_all(path: Path) -> list[object]:
    return list(entropy.EntropyFile(path).records())


def test_a_flipped_bit_or_a_cut_is_found_in_python(tmp_path: Path) -> None:
    """Without the seal: no event is read that was not recorded."""
    path = tmp_path / "0000000000000000-0.entropy"
    path.write_bytes(PROFILE)
    right = read_all(path)
    counts = {at for chunk in entropy.EntropyFile(path).chunks() for at in range(chunk.offset + 32, chunk.offset + 48)}
    for number, profile in enumerate(damaged(PROFILE)):
        path.write_bytes(profile)
        try:
            found = read_all(path)
        except (RunDamaged, RunTooNew):
            continue
        at = number // 8
        assert at in COUNTERS or at in counts or PROFILE[at] == 0, f"bit {number} went unnoticed"
        assert found == right[: len(found)]


def test_a_flipped_bit_or_a_cut_never_gives_wrong_bytes_in_c() -> None:
    done = start("tests.fuzz.flips")
    assert done.returncode == 0, done.stderr
    assert int(done.stdout.split()[0]) == 9 * len(PROFILE)


def test_the_readers_of_objects(tmp_path: Path) -> None:
    """The corpus does no harm, and neither does what a short run makes of it."""
    files = list((CORPUS.parent / "objects_corpus").iterdir())
    done = start("tests.fuzz", "objects", "--once")
    assert (done.returncode, done.stdout) == (0, f"{len(files)} files tried\n"), done.stderr
    if importlib.util.find_spec("atheris") is None:
        pytest.skip("atheris has no wheel for this platform")
    done = start("tests.fuzz", "objects", "--seconds", "4", "--found", str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert [name for name in os.listdir(tmp_path) if name.startswith(("crash-", "timeout-", "oom-"))] == []
