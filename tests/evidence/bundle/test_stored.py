"""Runs pushed to a store and pulled from it, with moto's server as a process, and kills in the middle."""

from __future__ import annotations

import json
import os
import sys
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest

from reprokit import trial
from reprokit.core.errors import NothingSaved, StoreUnreachable
from reprokit.run_files import object_stores
from tests.object_store import SECRET, ObjectStore
from tests.support import Reprokit, training_text, wait_until

OUTPUTS = 200  # of the training


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Reprokit:
    reprokit = Reprokit(tmp_path_factory.mktemp("recorded"))
    script = reprokit.script("train.py", training_text("many_outputs.py"))
    done = reprokit.run("record", "-o", "run", "--", sys.executable, str(script))
    assert done.returncode == 0, done.stderr
    return reprokit


@pytest.fixture
def url(object_store: ObjectStore) -> str:
    """An empty place of a store."""
    name = f"runs-{uuid.uuid4().hex}"
    object_store.bucket(name)
    return f"s3://{name}/team/first"


def keys(object_store: ObjectStore, url: str) -> list[str]:
    bucket, _, prefix = url.removeprefix("s3://").partition("/")
    found: list[str] = [key.removeprefix(f"{prefix}/") for key in object_store.keys(bucket)]
    return found


def killed(reprokit: Reprokit, object_store: ObjectStore, count: Callable[[], int], *arguments: str) -> int:
    """Start a command, kill it when a few files are there; returns how many there were then."""
    process = reprokit.start(*arguments, env={**os.environ, **object_store.environment})
    wait_until(lambda: count() > 3 or process.poll() is not None, "the first files")
    process.kill()
    process.communicate()
    return count()


@pytest.mark.slow
def test_a_run_is_pushed_and_pulled_though_both_are_killed(
    recorded: Reprokit, object_store: ObjectStore, url: str, tmp_path: Path
) -> None:
    environment = object_store.environment
    there = killed(recorded, object_store, lambda: len(keys(object_store, url)), "push", "run", url)
    assert 3 < there < OUTPUTS
    assert "bundle.json" not in keys(object_store, url)
    refused = recorded.run("pull", url, str(tmp_path / "again"), environment=environment)
    assert refused.returncode == 2
    assert "bad-bundle" in refused.stderr

    pushed = recorded.run("push", "run", url, environment=environment)
    assert pushed.returncode == 0, pushed.stderr
    assert f" {there} of them were there\n" in pushed.stdout
    names = keys(object_store, url)
    assert "bundle.json" in names
    assert not [name for name in names if name.endswith((".entropy", "variables.key"))]

    scratch = tmp_path / ".pull-again"
    pulled = ["pull", url, str(tmp_path / "again")]
    there = killed(recorded, object_store, lambda: sum(path.is_file() for path in scratch.rglob("*")), *pulled)
    assert 3 < there < OUTPUTS
    assert not (tmp_path / "again").exists()
    done = recorded.run(*pulled, environment=environment)
    assert done.returncode == 0, done.stderr
    reused = int(done.stdout.partition(" of them were there")[0].rpartition(" ")[2])
    assert there - 1 <= reused <= there  # the last one may have been cut
    assert not scratch.exists()
    assert recorded.run("verify", "run", str(tmp_path / "again")).returncode == 0
    assert recorded.run("check", str(tmp_path / "again")).returncode == 0
    held = [path for path in (tmp_path / "again").rglob("*") if path.is_file()]
    assert len(held) > OUTPUTS
    assert not [path for path in held if SECRET.encode() in path.read_bytes()]
    assert recorded.run("pull", *pulled[1:], environment=environment).returncode == 2  # it exists


def test_entropy_goes_along_if_it_is_asked_for_and_nothing_is_overwritten(
    recorded: Reprokit, object_store: ObjectStore, url: str
) -> None:
    environment = object_store.environment
    assert recorded.run("push", "run", url, "--with-entropy", environment=environment).returncode == 0
    assert [name for name in keys(object_store, url) if name.endswith(".entropy")]
    before = keys(object_store, url)
    other = recorded.run("push", "run", url, environment=environment)
    assert other.returncode == 2
    assert "choose another prefix" in other.stderr
    assert keys(object_store, url) == before
    again = recorded.run("push", "run", url, "--with-entropy", environment=environment)
    assert f" {len(before) - 1} of them were there\n" in again.stdout


def test_a_hostile_store_writes_nothing_outside(
    recorded: Reprokit, object_store: ObjectStore, url: str, tmp_path: Path
) -> None:
    environment = object_store.environment
    assert recorded.run("push", "run", url, environment=environment).returncode == 0
    bucket, _, prefix = url.removeprefix("s3://").partition("/")
    body = object_store.client.get_object(Bucket=bucket, Key=f"{prefix}/bundle.json")["Body"].read()
    object_store.put(bucket, f"{prefix}/run/run.json", b"{}")
    done = recorded.run("pull", url, str(tmp_path / "a"), environment=environment)
    assert (done.returncode, "run.json differs" in done.stderr) == (2, True)
    listed = json.loads(body)
    listed["files"]["../escaped"] = {"size": 2, "digest": "sha256:" + "0" * 64}
    object_store.put(bucket, f"{prefix}/bundle.json", json.dumps(listed).encode())
    done = recorded.run("pull", url, str(tmp_path / "b"), environment=environment)
    assert (done.returncode, "which no run directory has" in done.stderr) == (2, True)
    assert [path.name for path in tmp_path.iterdir()] == [".pull-a"]


def test_a_place_that_is_none_is_refused(recorded: Reprokit, object_store: ObjectStore) -> None:
    for url in ("s3://no-such-bucket/run", "nowhere"):
        done = recorded.run("push", "run", url, environment=object_store.environment)
        assert (done.returncode, "store-unreachable" in done.stderr) == (2, True)


def test_large_objects_go_in_parts_and_small_ones_overwrite_nothing(
    object_store: ObjectStore, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in object_store.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(object_stores, "MOST_AT_ONCE", 1 << 20)
    store = object_stores.open_store(url)
    large = tmp_path / "large"
    large.write_bytes(bytes(range(256)) * (44 << 10))  # 11 MiB, three parts
    object_stores.create(store, url, "large", large)
    assert b"".join(object_stores.content(store, url, "large")) == large.read_bytes()
    bucket, _, prefix = url.removeprefix("s3://").partition("/")
    assert object_store.client.head_object(Bucket=bucket, Key=f"{prefix}/large")["ETag"].endswith('-3"')
    object_stores.create(store, url, "small", b"first")
    with pytest.raises(StoreUnreachable):
        object_stores.create(store, url, "small", b"second")
    assert b"".join(object_stores.content(store, url, "small")) == b"first"


@pytest.mark.torch
@pytest.mark.slow
def test_tensors_are_read_from_the_store_while_the_training_runs(
    reprokit: Reprokit, object_store: ObjectStore, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in object_store.environment.items():
        monkeypatch.setenv(name, value)
    script = reprokit.script("train.py", training_text("pushed_tensors.py"))
    command = ["record", "--push", url, "--tensors", "weights", "-o", "run", "--", sys.executable, str(script), "go"]
    process = reprokit.start(*command, env={**os.environ})
    wait_until(lambda: any(key.endswith(".jsonl") for key in keys(object_store, url)), "the first tensors")
    meanwhile = trial(url)
    meanwhile.wait_for_steps([2])
    first = meanwhile.tensor("net.weight" if meanwhile.has_tensor("net.weight") else meanwhile.tensor_names()[0])
    assert process.poll() is None
    assert not meanwhile.loaded_all_steps
    early = first.value(2)
    (reprokit.directory / "go").touch()
    _, errors = process.communicate()
    assert process.returncode == 0, errors
    stored, local = trial(url), trial(reprokit.directory / "run")
    assert stored.loaded_all_steps
    assert stored.steps() == local.steps()
    assert stored.tensor_names() == local.tensor_names()
    for tensor in map(stored.tensor, stored.tensor_names()):
        for step, array in tensor.values().items():
            assert array.tobytes() == local.tensor(tensor.name).value(step).tobytes()
    assert early.tobytes() == local.tensor(first.name).value(2).tobytes()
    with pytest.raises(NothingSaved):
        _ = stored.run
    run = reprokit.directory / "run"
    held = [path for path in run.rglob("*") if path.is_file()]
    assert not [path for path in held if SECRET.encode() in path.read_bytes()]
    assert reprokit.run("pull", url, "pulled").returncode == 0
    assert reprokit.run("verify", "run", "pulled").returncode == 0
    done = reprokit.run("push", "run", f"{url}-whole")
    assert "not in it: saved tensors" in done.stdout
    with pytest.raises(NothingSaved, match=f"{url}-whole holds no tensors; 'reprokit push --follow' writes"):
        trial(f"{url}-whole")
    assert "saved tensors" not in reprokit.run("push", "run", f"{url}-whole", "--follow").stdout
    assert trial(f"{url}-whole").tensor_names() == local.tensor_names()


def test_a_store_that_fails_does_not_fail_the_training(reprokit: Reprokit, object_store: ObjectStore) -> None:
    command = ["-o", "run", "--", sys.executable, "-c", "print('trained')"]
    done = reprokit.run("record", "--push", "s3://no-such-bucket/run", *command, environment=object_store.environment)
    assert (done.returncode, done.stdout) == (0, "trained\n"), done.stderr
    assert "store-unreachable" in done.stderr
    assert "--push: the run is not whole in the store" in done.stderr
    assert reprokit.run("check", "run").returncode == 0
    refused = reprokit.run("record", "--push", "somewhere", *command)
    assert (refused.returncode, "name a place in a store" in refused.stderr) == (125, True)
