"""A run packed and unpacked: the same bytes each time, nothing secret, and nothing hostile gets out of a bundle."""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import shutil
import sys
import tarfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import zstandard

import reprokit.capture
from reprokit.agent.capture.store import Part, Store
from reprokit.agent.capture.store import SnapshotContents as Captured
from reprokit.core.errors import BadBundle, CannotWriteReport, RunDamaged
from reprokit.core.redaction import Secrets
from reprokit.evidence.bundle.manifest import NEVER, is_allowed
from reprokit.evidence.bundle.pack import BundleRequest, Normalizer, pack
from reprokit.evidence.bundle.unpack import unpack
from reprokit.model.run import RUNNING, SnapshotFacts
from reprokit.run_files import rundir
from reprokit.run_files.rundir import RunDirectory, write_json
from tests.support import Reprokit
from tests.verify.runs import Building, training

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


def test_somebody_else_replays_it_where_the_code_is(runs: Reprokit, tmp_path: Path) -> None:
    """The interpreter lies below a home directory, whose name is not in the bundle: it is given again."""
    assert runs.run("bundle", "first", "-o", str(tmp_path / "a"), "--with-entropy").returncode == 0
    there = Reprokit(tmp_path)
    there.script("train.py", SCRIPT.replace("place=os.getcwd(), ", ""))
    assert there.run("unpack", "a", "-o", "recorded").returncode == 0
    done = there.run("replay", "recorded", "-o", "again", "--", sys.executable, "train.py")
    assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "again" / "run.json").read_text())["working_directory"] == str(tmp_path)
    for name in ("recorded", "again"):
        outputs = json.loads((tmp_path / name / "outputs.json").read_text())
        assert [file["path"] for file in outputs["files"]] == ["model.bin"]
    assert (tmp_path / "model.bin").read_bytes() == (tmp_path / "recorded" / "outputs" / "0").read_bytes()


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


def test_what_tarfile_would_read_into_memory_is_bounded(tmp_path: Path) -> None:
    for kind in (tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_SPARSE):
        head = tarfile.TarInfo("bundle.json")
        head.type, head.size = kind, 1 << 40
        (tmp_path / "bad").write_bytes(
            zstandard.ZstdCompressor().compress(head.tobuf(tarfile.GNU_FORMAT) + bytes(1 << 20))
        )
        with pytest.raises(BadBundle, match=r"too long|holes"):
            unpack(tmp_path / "bad", tmp_path / "out")
    assert os.listdir(tmp_path) == ["bad"]


@pytest.mark.parametrize("kind", [tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.GNUTYPE_LONGNAME])
def test_headers_that_each_announce_another_are_refused(kind: bytes, tmp_path: Path) -> None:
    head, content = tarfile.TarInfo("bundle.json"), b"10 path=abc\n".ljust(512, b"\0")
    head.type, head.size = kind, 512
    chained = (head.tobuf(tarfile.GNU_FORMAT) + content) * 5000
    (tmp_path / "bad").write_bytes(zstandard.ZstdCompressor().compress(chained))
    with pytest.raises(BadBundle, match="too many headers"):
        unpack(tmp_path / "bad", tmp_path / "out")


def test_a_bundle_that_the_disk_cannot_hold_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pack(training(tmp_path / "run").write(), tmp_path / "bundle")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=300 << 20, total=1 << 40))
    assert unpack(tmp_path / "bundle", tmp_path / "fits").run_id
    shutil.rmtree(tmp_path / "fits")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=(256 << 20) + 1000, total=1 << 40))
    with pytest.raises(CannotWriteReport, match="1000 are free beside a reserve"):
        unpack(tmp_path / "bundle", tmp_path / "out")
    assert sorted(os.listdir(tmp_path)) == ["bundle", "run"]


def test_what_is_there_is_not_overwritten(runs: Reprokit, tmp_path: Path) -> None:
    (tmp_path / "a").write_text("mine")
    assert runs.run("bundle", "first", "-o", str(tmp_path / "a")).returncode == 2
    assert (tmp_path / "a").read_text() == "mine"
    assert runs.run("bundle", "first", "-o", str(tmp_path / "nowhere" / "a")).returncode == 2


@pytest.fixture
def crowded(tmp_path: Path) -> Path:
    """A run that was cut off, with everything in its directory that one can hold."""
    left = training(tmp_path / "left")
    left.run.status, left.run.host, left.run.working_directory = RUNNING, "gpu-17", "/home/ann/project"
    left.run.command = ["python", "train.py", "--wandb-api-key", "hunter2", "--token=hunter3", "--epochs", "3"]
    left.run.snapshots = [SnapshotFacts(name="step-00000007", step=7, trigger="loss is not finite")]
    path = left.write(sealed=False)
    for name, text in {
        "plan.json": "{}",
        "shim.plan": "x",
        "seeds.jsonl": "",
        "reserve": "x" * 10,
        "stopped": "a request of /home/ann/project/train.py came that was not recorded",
        "read.paths": "/data/ann/images.npy\n",
        "pending/1-0": json.dumps({"k": "loss", "p": "0", "n": 99, "name": "loss", "value": {}}) + "\n" + "\0" * 9,
        "entropy/fresh": "12",
        "entropy/process-ids": "secret",
        "profile/1-0.jsonl": "{}",
        "outputs/0": "log",
        "outputs/1": "-----BEGIN OPENSSH PRIVATE KEY-----\n",
        "snapshots/.partial-1-0/snapshot.json": "{}",
    }.items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_text(text)
    write_json(path / "findings.json", {"format": 1, "run_id": left.run.run_id, "notes": [], "findings": []})
    write_json(path / "profile" / "system-calls.json", {"format": 5, "calls": [], "left_out": 0, "problem": ""})
    trigger = {"kind": "loss", "what": "loss is not finite", "where": [["/home/ann/project/train.py", 3, "step"]]}
    facts = {"framework": "pytorch", "step": 7, "rank": None, "trigger": trigger, "directory": "/home/ann/project"}
    captured = Captured({**facts, "host": "gpu-17"}, [Part("w", "F32", (2,), 8, lambda: bytes(8))])
    Store(str(path / "snapshots")).save(captured)
    return path


def test_copies_of_private_keys_that_earlier_versions_kept_are_left_out(runs: Reprokit, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(runs.directory / "first", run)
    (run / "outputs" / "0").write_text("-----BEGIN PRIVATE KEY-----\nhunter2")
    listed = pack(run, tmp_path / "bundle")
    found = members(tmp_path / "bundle")
    assert not any(b"hunter2" in content for content in found.values())
    (output,) = json.loads(found["run/outputs.json"])["files"]
    assert (output["kept"], output["private_key"], output["size"]) == (None, True, 64)
    assert "private keys among the outputs: of 1 files there are digests only" in listed.left_out


def test_everything_that_a_run_can_hold_is_taken_or_left_out_on_purpose() -> None:
    """The table of docs/format.md has a row for each file."""
    table = (Path(__file__).parents[3] / "docs" / "format.md").read_text().partition("\n| file |")[2].split("\n\n")[0]
    names = [name for row in table.splitlines()[2:] for name in re.findall("`([^`]+)`", row.split("|")[1])]
    assert len(names) > 20
    for name in names:
        member = (
            name.replace("*", "0").replace("NUMBER", "0").replace("PID-N", "1-0").replace("NAME/", "s/snapshot.json")
        )
        assert is_allowed(member) != member.startswith(NEVER) or name == "profile/system-calls.json", name


def test_a_crowded_run_is_packed_without_what_is_secret(crowded: Path, tmp_path: Path) -> None:
    listed = pack(crowded, tmp_path / "bundle")
    assert set(listed.files) == {
        *(
            "run.json",
            "environment.json",
            "outputs.json",
            "metrics.jsonl",
            "findings.json",
            "profile/system-calls.json",
        ),
        *("stopped", "read.paths", "outputs/0", "entropy/fresh"),
        *(
            f"{name}/{path.name}"
            for name in ("evaluation", "trail", "samples", "console")
            for path in (crowded / name).iterdir()
        ),
    }
    assert [line.partition(",")[0] for line in listed.left_out[1:]] == [
        "snapshots",
        "what each process of the profiled run wrote",
    ]
    found = members(tmp_path / "bundle")
    assert not [word for word in (b"hunter", b"ann", b"gpu-17") for text in found.values() if word in text]
    assert b"/data/user/images.npy" in found["run/read.paths"]
    unpack(tmp_path / "bundle", tmp_path / "there")
    run = RunDirectory(tmp_path / "there")
    assert run.run.command[2:] == ["--wandb-api-key", "left-out", "--token=left-out", "--epochs", "3"]
    assert [line["n"] for line in run.metrics()][-1] == 99  # one that still waited when the run was cut off
    assert (run.run.status, run.unfinished) == (RUNNING, True)


def test_with_snapshots_a_step_can_be_looked_at_elsewhere(crowded: Path, tmp_path: Path) -> None:
    listed = pack(crowded, tmp_path / "bundle", BundleRequest(snapshots=True))
    assert listed.snapshots
    unpack(tmp_path / "bundle", tmp_path / "there")
    here, there = (
        reprokit.capture.load(path / "snapshots" / "step-00000007") for path in (crowded, tmp_path / "there")
    )
    assert here.header["digest"] == there.header["digest"]
    assert here.tensors["w"].tobytes() == there.tensors["w"].tobytes()
    assert (there.header["host"], there.header["directory"]) == ("host", "/working-directory")
    assert b"ann" not in members(tmp_path / "bundle")["run/snapshots/step-00000007/snapshot.json"]
    for path in (tmp_path / "there").rglob("*"):
        assert path.stat().st_mode & 0o77 == 0


def test_a_hostile_run_is_not_followed_out_of_its_directory(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    for name in (rundir.KEPT, rundir.SNAPSHOTS, rundir.ENTROPY):
        left: Building = training(tmp_path / f"run-{name}")
        left.run.profile = None
        path = left.write()
        (path / name).symlink_to(tmp_path / "elsewhere")
        with pytest.raises(RunDamaged, match="not a directory"):
            pack(path, tmp_path / "bundle", BundleRequest(entropy=True, snapshots=True))


def test_secrets_are_left_out_also_where_paths_are_kept() -> None:
    before = [
        "curl",
        "https://ann:hunter2@example.org/x",
        "--api_key",
        "hunter2",
        "env",
        "DB_PASSWORD=hunter2",
        "a.token=hunter2",
    ]
    after = [
        "curl",
        "https://example.org/x",
        "--api_key",
        "left-out",
        "env",
        "DB_PASSWORD=left-out",
        "a.token=left-out",
    ]
    assert Secrets().value({"command": before, "seed": 7}) == {"command": after, "seed": 7}
    kept = ["--tokenizer", "bert", "--key-size", "64", "--author", "ann", "/home/ann/x"]
    assert Secrets().value(kept) == kept


def test_a_user_and_a_host_are_replaced_beside_their_own_places_too() -> None:
    normalizer = Normalizer("/home/ann/project", "gpu-17")
    assert normalizer.text("gpu-17: /scratch/ann/x of gpu-170, annual") == "host: /scratch/user/x of gpu-170, annual"
    assert Normalizer("/srv/x", "train").text("python train.py on train") == "python train.py on train"


def test_names_and_paths_are_replaced_wherever_they_stand() -> None:
    normalizer = Normalizer("/home/ann/project")
    places = ["/home/ann/project/a.py", "/home/ann/projects/b"]
    before = {"host": "ann-laptop", "files": places, "n": 1, "/root/x": "/rooted"}
    replaced = ["/working-directory/a.py", "/home/user/projects/b"]
    after = {"host": "host", "files": replaced, "n": 1, "/home/user/x": "/rooted"}
    assert normalizer.value(before) == after


def test_only_names_of_a_run_directory_are_allowed() -> None:
    assert is_allowed("run.json")
    assert is_allowed("outputs/12")
    assert is_allowed("snapshots/step-00000003-rank1/tensors.safetensors")
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
        "snapshots/../x/snapshot.json",
        "snapshots/step/evil.so",
        "snapshots/snapshot.json",
        "entropy/evil.so",
    ):
        assert not is_allowed(name), name
