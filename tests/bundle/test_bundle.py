"""A run packed and unpacked: the same bytes each time, nothing secret, and nothing hostile gets out of a bundle."""

from __future__ import annotations

import hashlib
import io
import json
import os
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest
import zstandard

from reprokit.bundle.contents import is_allowed
from reprokit.bundle.normalise import Normaliser
from tests.support import Reprokit

SCRIPT = """
import os, random, socket, reprokit
reprokit.log(step=0, loss=random.random(), place=os.getcwd(), machine=socket.gethostname())
open("model.bin", "wb").write(os.urandom(64))
"""
Member = tuple[str, bytes, dict[str, Any]]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Reprokit:
    reprokit = Reprokit(tmp_path_factory.mktemp("home") / "secret-project")
    reprokit.directory.mkdir()
    reprokit.script("train.py", SCRIPT)
    variables = {"LD_LIBRARY_PATH": f"{reprokit.directory}/lib", "OMP_NUM_THREADS": "2", "MY_TOKEN": "hunter2"}
    done = reprokit.run("record", "-o", "first", "--", sys.executable, "train.py", environment=variables)
    assert done.returncode == 0, done.stderr
    assert reprokit.run("replay", "first", "-o", "second", environment=variables).returncode == 0
    return reprokit


def members(path: Path) -> dict[str, bytes]:
    with (
        zstandard.ZstdDecompressor().stream_reader(path.open("rb")) as stream,
        tarfile.open(fileobj=stream, mode="r|") as archive,
    ):
        return {one.name: archive.extractfile(one).read() for one in archive}  # type: ignore[union-attr]


def bundled(path: Path, *parts: Member) -> Path:
    """An archive with anything in it."""
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as archive:
        for name, content, facts in parts:
            member = tarfile.TarInfo(name)
            member.size = len(content)
            for key, value in facts.items():
                setattr(member, key, value)
            archive.addfile(member, io.BytesIO(content))
    path.write_bytes(zstandard.ZstdCompressor().compress(data.getvalue()))
    return path


def listing(content: dict[str, Any]) -> Member:
    return "bundle.json", json.dumps(content).encode(), {}


def test_the_same_run_gives_the_same_bytes_and_compares_as_before(runs: Reprokit, tmp_path: Path) -> None:
    for name in ("a", "b"):
        assert runs.run("bundle", "first", "-o", str(tmp_path / name)).returncode == 0
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    assert runs.run("bundle", "second", "-o", str(tmp_path / "c")).returncode == 0
    there = Reprokit(tmp_path)
    for bundle, run in (("a", "left"), ("c", "right")):
        assert there.run("unpack", bundle, "-o", run).returncode == 0
    done = there.run("verify", "left", "right")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith("identical")
    shown = there.run("show", "left")
    assert shown.returncode == 0
    assert "left out of the bundle" in shown.stdout
    replayed = there.run("replay", "left")
    assert (replayed.returncode, len(replayed.stderr.splitlines())) == (125, 1)
    assert "--with-entropy" in replayed.stderr
    for path in (tmp_path / "left").rglob("*"):
        assert path.stat().st_mode & 0o77 == 0


def test_nothing_that_is_secret_or_tells_who_and_where_is_in_it(runs: Reprokit, tmp_path: Path) -> None:
    assert runs.run("bundle", "first", "-o", str(tmp_path / "a")).returncode == 0
    found = members(tmp_path / "a")
    everything = b"".join(content for name, content in found.items() if not name.startswith("run/outputs/"))
    key = json.loads((runs.directory / "first" / "run.json").read_text())["key"]
    for secret in (str(runs.directory), key, "hunter2", "MY_TOKEN"):
        assert secret.encode() not in everything
    assert not [name for name in found if "entropy" in name or name.endswith(("plan.json", "shim.plan"))]
    run = json.loads(found["run/run.json"])
    assert (run["host"], run["working_directory"], run["key"]) == ("host", "/working-directory", "")
    assert run["variables"]["LD_LIBRARY_PATH"] == "/working-directory/lib"


def test_with_entropy_it_replays(runs: Reprokit, tmp_path: Path) -> None:
    done = runs.run("bundle", "first", "-o", str(tmp_path / "a"), "--with-entropy", "--keep-paths")
    assert done.returncode == 0
    assert (tmp_path / "a").stat().st_mode & 0o77 == 0
    there = Reprokit(tmp_path)
    assert there.run("unpack", "a", "-o", "recorded").returncode == 0
    assert there.run("replay", "recorded", "-o", "again").returncode == 0
    assert there.run("verify", "recorded", "again").returncode == 0


def test_hostile_bundles_leave_nothing_behind(runs: Reprokit, tmp_path: Path) -> None:
    assert runs.run("bundle", "first", "-o", str(tmp_path / "good")).returncode == 0
    whole = members(tmp_path / "good")
    head = json.loads(whole["bundle.json"])
    parts: list[Member] = [(name, content, {}) for name, content in whole.items()]
    payload = b"x" * 10
    one = {"size": 10, "digest": "sha256:" + hashlib.sha256(payload).hexdigest()}

    def with_file(name: str) -> Member:
        return listing({**head, "files": {**head["files"], name: one}})

    rest = parts[1:]
    link = {"type": tarfile.SYMTYPE, "linkname": "/etc/passwd"}
    hostile: dict[str, list[Member]] = {
        "outside": [with_file("../evil"), *rest, ("run/../evil", payload, {})],
        "absolute": [with_file("/tmp/evil"), *rest, ("/tmp/evil", payload, {})],
        "link": [with_file("outputs/9"), *rest, ("run/outputs/9", b"", link)],
        "hard link": [with_file("outputs/9"), *rest, ("run/outputs/9", b"", {**link, "type": tarfile.LNKTYPE})],
        "device": [with_file("outputs/9"), *rest, ("run/outputs/9", b"", {"type": tarfile.CHRTYPE})],
        "unknown": [with_file("sitecustomize.py"), *rest, ("run/sitecustomize.py", payload, {})],
        "twice": [*parts, parts[-1]],
        "not listed": [*parts, ("run/outputs/9", payload, {})],
        "missing": parts[:-1],
        "changed": [parts[0], (parts[1][0], bytes(len(parts[1][1])), {}), *parts[2:]],
        "no list": rest,
        "another run": [listing({**head, "run_id": "0" * 32}), *rest],
        "newer": [listing({**head, "format": 99}), *rest],
        "much": [listing({**head, "files": {"outputs/9": {**one, "size": (1 << 40) + 1}}}), *rest],
        "not a list": [("bundle.json", b"[1]", {}), *rest],
    }
    there = Reprokit(tmp_path)
    for name, content in hostile.items():
        bundled(tmp_path / "bad", *content)
        done = there.run("unpack", "bad", "-o", "out")
        assert (done.returncode, len(done.stderr.splitlines())) == (2, 1), (name, done.stderr)
        assert "bad-bundle" in done.stderr, name
        assert sorted(os.listdir(tmp_path)) == ["bad", "good"], name
    for data in (b"", b"no archive", (tmp_path / "good").read_bytes()[:-20]):
        (tmp_path / "bad").write_bytes(data)
        assert there.run("unpack", "bad", "-o", "out").returncode == 2
        assert not (tmp_path / "out").exists()


def test_what_is_there_is_not_overwritten(runs: Reprokit, tmp_path: Path) -> None:
    (tmp_path / "a").write_text("mine")
    assert runs.run("bundle", "first", "-o", str(tmp_path / "a")).returncode != 0
    assert (tmp_path / "a").read_text() == "mine"
    assert runs.run("bundle", "first", "-o", str(tmp_path / "nowhere" / "a")).returncode == 2


def test_names_and_paths_are_replaced_wherever_they_stand() -> None:
    normaliser = Normaliser("/home/ann/project")
    places = ["/home/ann/project/a.py", "/home/ann/projects/b"]
    before = {"host": "ann-laptop", "files": places, "n": 1, "/root/x": "/rooted"}
    replaced = ["/working-directory/a.py", "/home/user/projects/b"]
    after = {"host": "host", "files": replaced, "n": 1, "/home/user/x": "/rooted"}
    assert normaliser.value(before) == after


def test_only_names_of_a_run_directory_are_allowed() -> None:
    assert is_allowed("run.json")
    assert is_allowed("outputs/12")
    assert is_allowed("entropy/2d22b9c457ec989e-0.entropy")
    for name in (
        "",
        "outputs",
        "outputs/",
        "outputs/../x",
        "outputs/.x",
        "outputs/a/b",
        "run.json\n",
        "x",
        "/run.json",
    ):
        assert not is_allowed(name), name
