"""Objects of stores: which a run read, by what each library tells, and what changed since."""

from __future__ import annotations

import json
import sys
import uuid
from pathlib import Path
from typing import Any

import pytest

from tests.evidence.report.test_trackers import PYTHON
from tests.object_store import SECRET, ObjectStore
from tests.support import Reprokit, rest_slow, training_text

LIBRARIES = ["boto3", "obstore", "obstore-ranges", "obstore-async", "fsspec", "s3torchconnector"]
ARROW = pytest.param("pyarrow", marks=pytest.mark.extended)  # in an environment that has it: scikit-learn would see it
TELL_NO_VERSION = ["s3torchconnector"]


@pytest.fixture
def bucket(object_store: ObjectStore) -> str:
    """A bucket that keeps versions, with two shards."""
    name = f"data-{uuid.uuid4().hex}"
    object_store.bucket(name, versioned=True)
    for number in range(2):
        object_store.put(name, f"shards/{number}", b"shard%d" % number)
    return name


def command(reprokit: Reprokit, library: str, bucket: str) -> list[str]:
    python = str(PYTHON) if library == "pyarrow" else sys.executable
    return [python, str(reprokit.script("train.py", training_text("stored_objects.py"))), library, bucket]


def objects_of(run: Path) -> dict[str, dict[str, Any]]:
    """Return the entries of environment.json that are of objects."""
    data = json.loads((run / "environment.json").read_text())["data"]
    return {entry["path"]: entry for entry in data if entry["path"].startswith("s3://")}


@pytest.mark.parametrize("library", [*rest_slow(LIBRARIES), ARROW])
def test_what_is_read_is_known_by_its_etag(
    reprokit: Reprokit, object_store: ObjectStore, bucket: str, library: str
) -> None:
    done = reprokit.run(
        "record", "-o", "run", "--", *command(reprokit, library, bucket), environment=object_store.environment
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) == sum(b"shard0shard1")
    found = objects_of(reprokit.directory / "run")
    assert sorted(found) == [f"s3://{bucket}/shards/0", f"s3://{bucket}/shards/1"]
    for url, entry in found.items():
        head = object_store.client.head_object(Bucket=bucket, Key=url.removeprefix(f"s3://{bucket}/"))
        assert entry["digest"] == "etag:" + head["ETag"].strip('"')
        assert entry["size"] == 6
        assert entry.get("version") == (None if library in TELL_NO_VERSION else head["VersionId"])
    assert not [path for path in (reprokit.directory / "run").rglob("*") if holds_a_secret(path)]


@pytest.mark.parametrize(
    ("library", "scheme", "digest"),
    [
        ("fsspec-https", "https://host", "etag:of-the-web"),
        pytest.param("tensorflow", "ram:/", "", marks=pytest.mark.extended),
    ],
)
def test_what_other_file_systems_tell(reprokit: Reprokit, library: str, scheme: str, digest: str) -> None:
    assert reprokit.run("record", "-o", "run", "--", *command(reprokit, library, "data")).returncode == 0
    data = json.loads((reprokit.directory / "run" / "environment.json").read_text())["data"]
    found = {entry["path"]: (entry["digest"], entry["size"]) for entry in data if "://" in entry["path"]}
    places = [f"{scheme}/data/shards/{number}" for number in range(2)]
    assert found == dict.fromkeys(places, (digest, 6))
    assert not [path for path in (reprokit.directory / "run").rglob("*") if b"X-Amz-" in read(path)]


def read(path: Path) -> bytes:
    """Return a file's content; nothing of a directory."""
    return path.read_bytes() if path.is_file() else b""


def holds_a_secret(path: Path) -> bool:
    """Return whether a file holds the key, or a signature made of it."""
    content = read(path)
    return SECRET.encode() in content or b"X-Amz-" in content or b"AWS4-HMAC" in content


@pytest.mark.slow
def test_an_object_that_was_overwritten_is_named(reprokit: Reprokit, object_store: ObjectStore, bucket: str) -> None:
    training = command(reprokit, "boto3", bucket)
    assert reprokit.run("record", "-o", "run", "--", *training, environment=object_store.environment).returncode == 0
    object_store.put(bucket, "shards/1", b"others")
    replayed = reprokit.run("replay", "run", "-o", "again", environment=object_store.environment)
    assert int(replayed.stdout) == sum(b"shard0others")
    url = f"s3://{bucket}/shards/1"
    start, _, _ = replayed.stderr.partition("entropy requests")
    assert f"changed: {url}: it was overwritten since (another ETag)" in start  # before the training began
    assert f"{url}: it was overwritten since (another ETag)" in reprokit.facts("again")["changed"]
    compared = reprokit.run("verify", "run", "again", "--json")
    leaves = [leaf for leaf in flat(json.loads(compared.stdout)) if leaf["name"] == f"data.{url}"]
    assert [leaf["can_change_results"] for leaf in leaves] == [True]
    assert compared.returncode == 1


def flat(tree: Any) -> list[dict[str, Any]]:
    """Return every object in a document that has a name."""
    if isinstance(tree, list):
        return [leaf for part in tree for leaf in flat(part)]
    if not isinstance(tree, dict):
        return []
    return ([tree] if "name" in tree else []) + [leaf for part in tree.values() for leaf in flat(part)]


@pytest.mark.parametrize(
    "library", rest_slow(["boto3-download", "obstore-ranges", "boto3"], extended=["obstore", "obstore-async"])
)
def test_the_recorded_versions_can_be_read_again(
    reprokit: Reprokit, object_store: ObjectStore, bucket: str, library: str
) -> None:
    training = command(reprokit, library, bucket)
    assert reprokit.run("record", "-o", "run", "--", *training, environment=object_store.environment).returncode == 0
    object_store.put(bucket, "shards/1", b"others")
    replayed = reprokit.run("replay", "run", "--pin-versions", "-o", "again", environment=object_store.environment)
    assert int(replayed.stdout) == sum(b"shard0shard1")
    assert objects_of(reprokit.directory / "run") == objects_of(reprokit.directory / "again")
    assert reprokit.run("verify", "run", "again").returncode == 0


@pytest.mark.slow
def test_a_store_that_does_not_answer_delays_no_replay_for_long(
    reprokit: Reprokit, object_store: ObjectStore, bucket: str
) -> None:
    training = command(reprokit, "boto3", bucket)
    assert reprokit.run("record", "-o", "run", "--", *training, environment=object_store.environment).returncode == 0
    nobody = {**object_store.environment, "AWS_ENDPOINT_URL": "http://127.0.0.1:1"}
    replayed = reprokit.run("replay", "run", "-o", "again", "--", "true", environment=nobody)
    assert "2 objects were not looked at before the start" in replayed.stderr
    assert replayed.returncode == 0
