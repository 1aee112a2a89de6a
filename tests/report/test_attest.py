"""Signed statements: who verifies needs the public key and the artifacts only, and everything false is refused."""

from __future__ import annotations

import base64
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from in_toto_attestation.v1.statement import Statement
from securesystemslib.dsse import Envelope
from securesystemslib.signer._crypto_signer import CryptoSigner

from reprokit.report import keys, statement
from tests.support import Done, Reprokit


@pytest.fixture
def signed(real: Reprokit, tmp_path: Path) -> Reprokit:
    """A directory with keys, a signed statement and the artifact, and nothing else."""
    signing = ["--sign", str(tmp_path / "key"), "-o", str(tmp_path / "signed.json")]
    for arguments in (
        ["keygen", str(tmp_path / "key")],
        ["keygen", str(tmp_path / "other")],
        ["report", "first", "second", "--format", "bitwise-rerun", *signing],
    ):
        assert real.run(*arguments).returncode == 0
    shutil.copy(real.directory / "model.bin", tmp_path / "model.bin")
    return Reprokit(tmp_path)


def verify(at: Reprokit, *arguments: str, key: str = "key.pub") -> Done:
    return at.run("attest", "verify", "signed.json", "--key", key, *arguments)


def change(at: Reprokit, edit: Callable[[dict[str, Any]], object]) -> None:
    path = at.directory / "signed.json"
    envelope = json.loads(path.read_text())
    edit(envelope)
    path.write_text(json.dumps(envelope))


def payload(at: Reprokit) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(
        base64.b64decode(json.loads((at.directory / "signed.json").read_text())["payload"])
    )
    return content


def test_a_signed_statement_holds(signed: Reprokit) -> None:
    assert verify(signed, "model.bin").returncode == 0
    assert verify(signed, ".").returncode == 0
    done = verify(signed, "model.bin", "--json")
    assert json.loads(done.stdout)["checked"] == ["model.bin"]
    assert (signed.directory / "key").stat().st_mode & 0o777 == 0o600


def test_a_statement_is_one_by_the_library_and_the_schema(signed: Reprokit, real: Reprokit) -> None:
    content = payload(signed)
    jsonschema.validate(content["predicate"], statement.schema())
    result = json.loads(real.run("report", "first", "other", "--format", "test-result").stdout)
    assert result["predicate"]["result"] == "FAILED"
    assert any(name.startswith("outputs: model.bin") for name in result["predicate"]["failedTests"])
    for one in (content, result):
        made = Statement([], one["predicateType"], one["predicate"])
        for subject in one["subject"]:
            made.pb.subject.add(name=subject["name"], digest=subject["digest"])
        made.validate()


def test_everything_false_is_refused(signed: Reprokit) -> None:
    whole = (signed.directory / "signed.json").read_text()

    def refused(words: str, *arguments: str, key: str = "key.pub") -> None:
        done = verify(signed, *(arguments or ("model.bin",)), key=key)
        assert done.returncode == 1, done.stdout
        assert words in done.stderr
        (signed.directory / "signed.json").write_text(whole)

    refused("not signed by this key", key="other.pub")

    def altered(edit: Callable[[dict[str, Any]], object]) -> str:
        content = payload(signed)
        edit(content)
        return base64.b64encode(json.dumps(content).encode()).decode()

    for edit in (
        lambda content: content["predicate"].update(verdict="different"),
        lambda content: content.update(subject=[]),
        lambda content: content["subject"][0]["digest"].update(sha256="0" * 64),
    ):
        forged = altered(edit)
        change(signed, lambda envelope, forged=forged: envelope.update(payload=forged))  # type: ignore[misc]
        refused("was changed since")
    change(signed, lambda envelope: envelope.update(signatures=[]))
    refused("holds no signature")
    change(signed, lambda envelope: envelope.pop("signatures"))
    refused("holds no signature")
    change(signed, lambda envelope: envelope["signatures"][0].update(sig=base64.b64encode(bytes(64)).decode()))
    refused("not signed by this key")
    change(signed, lambda envelope: envelope.update(payloadType="application/x-of-another-tool"))
    refused("no in-toto statement")
    refused("were not checked", "--json")
    refused("not among", "key.pub", "model.bin")
    (signed.directory / "model.bin").write_bytes(b"another model")
    refused("not the artifact that was signed")


def test_the_envelopes_of_other_tools_are_refused(signed: Reprokit) -> None:
    """Signed by the same key, and whole: a statement of where something was built is none of a re-run."""
    key = keys.read_private(signed.directory / "key")
    statement = {
        **payload(signed),
        "predicateType": "https://slsa.dev/provenance/v1",
        "predicate": {"result": "PASSED"},
    }
    for kind, content in [
        ("application/vnd.in-toto+json", statement),
        ("application/vnd.in-toto+json", {"_type": "link", "name": "build"}),
        ("application/vnd.dev.cosign.simplesigning.v1+json", {"critical": {}}),
    ]:
        envelope = Envelope(json.dumps(content).encode(), kind, {})
        envelope.sign(CryptoSigner(key))
        (signed.directory / "signed.json").write_text(json.dumps(envelope.to_dict()))
        done = verify(signed, "model.bin")
        assert (done.returncode, len(done.stderr.splitlines())) == (1, 1), done.stderr
        assert "PASSED" not in done.stdout
    bundle = {"mediaType": "application/vnd.dev.sigstore.bundle.v0.3+json", "dsseEnvelope": envelope.to_dict()}
    (signed.directory / "signed.json").write_text(json.dumps(bundle))
    assert verify(signed, "model.bin").returncode == 1


def test_what_cannot_be_read_is_trouble(signed: Reprokit) -> None:
    for content in ("", "{", "[]", "{}", json.dumps({"payload": 1, "payloadType": 2, "signatures": [3]})):
        (signed.directory / "signed.json").write_text(content)
        done = verify(signed, "model.bin")
        assert done.returncode in (1, 2)
        assert len(done.stderr.splitlines()) == 1
    assert verify(signed, key="key").returncode == 2
    assert verify(signed, key="nowhere").returncode == 2


def test_keys_are_kept_from_others(real: Reprokit, signed: Reprokit) -> None:
    key = signed.directory / "key"
    assert signed.run("keygen", "key").returncode == 2
    key.chmod(0o644)
    done = real.run("report", "first", "second", "--format", "test-result", "--sign", str(key))
    assert (done.returncode, done.stdout) == (2, "")
    assert "may be read by others" in done.stderr
