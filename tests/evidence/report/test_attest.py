"""Signed statements: who verifies needs the public key and the artifacts only, and everything false is refused."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import shlex
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import msgspec
import pytest
from in_toto_attestation.v1.statement import Statement
from securesystemslib.dsse import Envelope
from securesystemslib.signer._crypto_signer import CryptoSigner

from reprokit.core.errors import BadEnvelope, PolicyNotMet, Refused
from reprokit.evidence.attest import envelope, keys, predicate
from reprokit.evidence.attest.policy import Policy, check_materials
from reprokit.evidence.report.gather import gather
from tests.support import Done, Reprokit, schema_of
from tests.verify.runs import replayed, training

PAYLOAD = "application/vnd.in-toto+json"


@pytest.fixture(scope="module")
def made(real: Reprokit, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with keys, a signed statement and the artifact, and nothing else."""
    place = tmp_path_factory.mktemp("signed")
    for name in ("key", "other"):
        keys.make(place / name)
    signing = ["--sign", str(place / "key"), "-o", str(place / "signed.json")]
    assert real.run("report", "first", "second", "--format", "bitwise-rerun", *signing).returncode == 0
    shutil.copy(real.directory / "model.bin", place / "model.bin")
    return place


@pytest.fixture
def signed(made: Path, tmp_path: Path) -> Reprokit:
    """A copy of it to change."""
    return Reprokit(Path(shutil.copytree(made, tmp_path / "signed")))


def read(at: Reprokit) -> envelope.Signed:
    """Read the statement as the command does."""
    return envelope.read(at.directory / "signed.json", keys.read_public(at.directory / "key.pub"))


def verify(at: Reprokit, *arguments: str, key: str = "key.pub") -> Done:
    return at.run("attest", "verify", "signed.json", "--key", key, *arguments)


def payload(at: Reprokit) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(
        base64.b64decode(json.loads((at.directory / "signed.json").read_text())["payload"])
    )
    return content


def signed_again(at: Reprokit, payload: bytes, kind: str = PAYLOAD, key: str = "key") -> None:
    """Sign something with the same key, as another tool would, or a program that errs."""
    dsse = Envelope(payload, kind, {})
    dsse.sign(CryptoSigner(keys.read_private(at.directory / key)))
    (at.directory / "signed.json").write_text(json.dumps(dsse.to_dict()))


def test_a_signed_statement_holds(signed: Reprokit) -> None:
    done = verify(signed, "model.bin")
    assert done.returncode == 0
    for words in ("verdict: identical", "did not execute", "not compared: weights: neither", "limit: ", "source: "):
        assert words in done.stdout
    assert verify(signed, ".").returncode == 0
    dsse = Envelope.from_dict(json.loads((signed.directory / "signed.json").read_text()))
    assert dsse.verify([keys.read_public(signed.directory / "key.pub")], 1)
    done = verify(signed, "model.bin", "--json")
    assert json.loads(done.stdout)["checked"] == ["model.bin"]
    assert (signed.directory / "key").stat().st_mode & 0o777 == 0o600


def test_a_statement_is_one_by_the_library_and_the_schema(signed: Reprokit, real: Reprokit) -> None:
    content = payload(signed)
    result = json.loads(real.run("report", "first", "other", "--format", "test-result").stdout)
    for one, kind in ((content, predicate.Rerun), (result, predicate.TestResult)):
        jsonschema.validate(one["predicate"], schema_of(kind, ""))
        made = Statement([], one["predicateType"], one["predicate"])
        for subject in one["subject"]:
            made.pb.subject.add(name=subject["name"], digest=subject["digest"])
        made.validate()
    assert result["predicate"]["result"] == "FAILED"
    assert result["predicate"][predicate.RERUN]["verdict"] == "different"
    assert any(name.startswith("outputs: model.bin") for name in result["predicate"]["failedTests"])


@pytest.mark.slow
def test_what_this_key_has_not_signed_is_told_apart(signed: Reprokit) -> None:
    """Forgeries without the key, each with the status of its own."""
    whole = json.loads((signed.directory / "signed.json").read_text())

    def forged(edit: Callable[[dict[str, Any]], object]) -> str:
        content = payload(signed)
        edit(content)
        return base64.b64encode(json.dumps(content).encode()).decode()

    (signature,) = whole["signatures"]
    bad = {**signature, "sig": base64.b64encode(bytes(64)).decode()}
    forgeries: list[tuple[str, dict[str, Any]]] = [
        ("changed since", {"payload": forged(lambda content: content["predicate"].update(verdict="different"))}),
        ("changed since", {"payload": forged(lambda content: content.update(subject=[]))}),
        ("changed since", {"payloadType": "application/x-of-another-tool"}),
        ("holds no signature", {"signatures": []}),
        ("changed since", {"signatures": [bad, {"sig": "no base64!"}, {"sig": ""}]}),
    ]
    for words, changes in forgeries:
        (signed.directory / "signed.json").write_text(json.dumps({**whole, **changes}))
        done = verify(signed, "model.bin")
        assert (done.returncode, done.stdout) == (3, ""), done.stderr
        assert words in done.stderr
    (signed.directory / "signed.json").write_text(json.dumps(whole))
    assert verify(signed, "model.bin", key="other.pub").returncode == 3


def test_key_ids_decide_nothing_and_any_good_signature_will_do(signed: Reprokit) -> None:
    whole = json.loads((signed.directory / "signed.json").read_text())
    (signature,) = whole["signatures"]
    good = signature["sig"]
    bad = base64.b64encode(bytes(64)).decode()
    url_safe = good.replace("+", "-").replace("/", "_")
    for signatures in (
        [{"sig": good}],
        [{"sig": good, "keyid": ""}],
        [{"sig": good, "keyid": None}],
        [{"sig": url_safe, "keyid": "of another"}],
        [{"sig": bad, "keyid": signature["keyid"]}, {"sig": "?"}, {"sig": good, "keyid": signature["keyid"]}],
    ):
        (signed.directory / "signed.json").write_text(json.dumps({**whole, "signatures": signatures}))
        assert read(signed).rerun.verdict == "identical"
    assert verify(signed, "model.bin").returncode == 0


@pytest.mark.slow
def test_artifacts_must_be_those_that_were_signed(signed: Reprokit) -> None:
    (signed.directory / "empty").mkdir()
    (signed.directory / "fifo").mkdir()
    os.mkfifo(signed.directory / "fifo" / "model.bin")
    for words, arguments in [
        ("were not checked", ()),
        ("were not checked", ("empty", "--json")),
        ("not among", ("key.pub", "model.bin")),
        ("not a regular file", ("fifo/model.bin",)),
    ]:
        done = verify(signed, *arguments)
        assert (done.returncode, done.stdout) == (1, "")
        assert words in done.stderr
    assert verify(signed, "--partial").returncode == 0
    (signed.directory / "model.bin").write_bytes(b"another model")
    assert "not the artifact that was signed" in verify(signed, "model.bin", "--partial").stderr


@pytest.mark.slow
def test_a_policy_is_met_or_the_status_says_so(signed: Reprokit, real: Reprokit) -> None:
    command = shlex.join(payload(signed)["predicate"]["runs"][0]["command"])
    met = ["--verdict", "identical", "--predicate", "bitwise-rerun", "--command", command, "--max-age", "1d"]
    assert verify(signed, "model.bin", *met).returncode == 0
    for unmet in (
        ["--verdict", "different"],
        ["--predicate", predicate.TEST_RESULT],
        ["--command", "python other.py"],
        ["--max-age", "0s"],
        ["--executed"],
    ):
        done = verify(signed, "model.bin", *unmet)
        assert (done.returncode, done.stdout) == (4, ""), unmet
        assert "policy-not-met" in done.stderr
    refused = [("--commit", "main"), ("--require", "nothing"), ("--max-age", "soon"), ("--predicate", "slsa")]
    for wrong in (*refused, ("--command", "'")):
        assert "usage" in verify(signed, "model.bin", *wrong).stderr
    failed = real.run("report", "first", "other", "--format", "test-result").stdout
    signed_again(signed, failed.encode())
    assert verify(signed, "--partial", "--verdict", "identical").returncode == 4
    assert "\nverdict: different" in verify(signed, "--partial").stdout


def test_a_statement_of_last_year_signed_today_is_old(signed: Reprokit) -> None:
    """The age that counts is that of the re-run; and nothing comes from the future."""
    content = payload(signed)
    content["predicate"]["runs"][1]["ended"] = "2025-01-02T03:04:05Z"
    signed_again(signed, json.dumps(content).encode())
    assert "the re-run ended at 2025" in verify(signed, "--partial", "--max-age", "7d").stderr
    content["predicate"]["made"] = "2999-01-02T03:04:05Z"
    signed_again(signed, json.dumps(content).encode())
    done = verify(signed, "--partial")
    assert (done.returncode, "in the future" in done.stderr) == (4, True)


def test_what_is_signed_and_malformed_is_trouble(signed: Reprokit) -> None:
    """Each by the right key: a schema, not a signature, refuses them."""
    whole = json.dumps(payload(signed))

    def changed(edit: Callable[[dict[str, Any]], object]) -> bytes:
        content = json.loads(whole)
        edit(content)
        return json.dumps(content).encode()

    for data in (
        whole.replace('"_type"', '"predicateType": "x", "_type"', 1).encode(),
        whole.replace('"verdict"', '"verdict": "different", "verdict"', 1).encode(),
        changed(lambda content: content.pop("predicate")),
        changed(lambda content: content.pop("predicateType")),
        changed(lambda content: content.update(subject=[])),
        changed(lambda content: content["subject"].append(content["subject"][0])),
        changed(lambda content: content["subject"][0]["digest"].update(sha256="0" * 63)),
        changed(lambda content: content["predicate"].pop("executedBy")),
        changed(lambda content: content["predicate"].update(surprise=1)),
        changed(lambda content: content["predicate"].update(made="2026-01-02T03:04:05+01:00")),
        changed(lambda content: content["predicate"].update(made="2026-13-02T03:04:05Z")),
        b"[" * 200_000,
        b"\xff{}",
    ):
        signed_again(signed, data)
        with pytest.raises(BadEnvelope):
            read(signed)
    done = verify(signed, "model.bin")
    assert (done.returncode, done.stdout, len(done.stderr.splitlines())) == (2, "", 1), done.stderr
    assert "bad-envelope" in done.stderr


def test_a_test_result_that_contradicts_itself_is_malformed(signed: Reprokit, real: Reprokit) -> None:
    content = json.loads(real.run("report", "first", "other", "--format", "test-result").stdout)
    content["predicate"]["result"] = "PASSED"
    signed_again(signed, json.dumps(content).encode())
    assert "contradicts" in verify(signed, "--partial").stderr


@pytest.mark.slow
def test_the_envelopes_of_other_tools_are_refused(signed: Reprokit) -> None:
    """Signed by the same key, and whole: a statement of where something was built is none of a re-run."""
    statement = {
        **payload(signed),
        "predicateType": "https://slsa.dev/provenance/v1",
        "predicate": {"result": "PASSED"},
    }
    for kind, content, status in [
        (PAYLOAD, statement, 1),
        (PAYLOAD, {**statement, "predicateType": "urn:reprokit:bitwise-rerun:1"}, 1),
        (PAYLOAD, {**statement, "_type": "https://in-toto.io/Statement/v0.1"}, 1),
        (PAYLOAD, {"_type": "link", "name": "build"}, 2),
        ("application/vnd.dev.cosign.simplesigning.v1+json", {"critical": {}}, 1),
    ]:
        signed_again(signed, json.dumps(content).encode(), kind)
        done = verify(signed, "model.bin")
        assert (done.returncode, len(done.stderr.splitlines())) == (status, 1), done.stderr
        assert "PASSED" not in done.stdout
    inner = json.loads((signed.directory / "signed.json").read_text())
    bundle = {"mediaType": "application/vnd.dev.sigstore.bundle.v0.3+json", "dsseEnvelope": inner}
    (signed.directory / "signed.json").write_text(json.dumps(bundle))
    assert verify(signed, "model.bin").returncode == 2


def test_what_cannot_be_read_is_trouble(signed: Reprokit) -> None:
    whole = (signed.directory / "signed.json").read_text()
    for content in (
        *("", "{", "[]", "{}", "[" * 200_000, '{"a":' * 100_000),
        json.dumps({"payload": 1, "payloadType": 2, "signatures": [3]}),
        json.dumps({**json.loads(whole), "payload": "no base64!"}),
        whole.replace('"payload"', '"payload": "", "payload"', 1),
        json.dumps({**json.loads(whole), "signatures": [{"sig": ""}] * 65}),
    ):
        (signed.directory / "signed.json").write_text(content)
        with pytest.raises(BadEnvelope, match=r"^[^\n]+$"):
            read(signed)
    assert verify(signed, key="key").returncode == 2
    assert verify(signed, key="nowhere").returncode == 2


def test_a_page_names_the_statement_that_was_signed_beside_it(real: Reprokit, signed: Reprokit) -> None:
    at = signed.directory
    done = real.run("report", "first", "second", "--sign", str(at / "key"), "-o", str(at / "page.html"))
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    path = at / "page.html.statement.json"
    assert signed.run("attest", "verify", path.name, "model.bin", "--key", "key.pub").returncode == 0
    written = json.loads(path.read_text())
    page = (at / "page.html").read_text()
    assert hashlib.sha256(base64.b64decode(written["payload"])).hexdigest() in page
    assert written["signatures"][0]["keyid"] in page
    assert written["signatures"][0]["sig"] in page.replace("&#43;", "+")


def test_keys_are_kept_from_others(real: Reprokit, signed: Reprokit) -> None:
    key = signed.directory / "key"
    assert signed.run("keygen", "key").returncode == 2
    key.chmod(0o644)
    done = real.run("report", "first", "second", "--format", "test-result", "--sign", str(key))
    assert (done.returncode, done.stdout) == (2, "")
    assert "may be read by others" in done.stderr


COMMIT = "0123456789abcdef0123456789abcdef01234567"


def stated(tmp_path: Path, **used: Any) -> envelope.Signed:
    """What is signed of a training and its replay, of a checkout that used these files."""
    from reprokit.evidence.attest.statement import statement

    left = training(tmp_path / "left")
    git = {"commit": COMMIT, "dirty": False, "untracked": {}, "changes": "", "repository": "https://host.example/a.git"}
    left.environment |= {"git": {**git, "used": {"changed": {}, "outside": {}, "same": 2, "not_compared": 0, **used}}}
    left.environment |= {"packages": {"numpy": "2.1", "click": "8"}, "imported": ["numpy"]}
    left.environment["code"] = {"train.py": f"sha256:{hashlib.sha256(b'pass').hexdigest()}"}
    left.add("seed", call="torch.manual_seed", argument="0", where="train.py:4", thread="main")
    facts = gather([left.write(), replayed(left, tmp_path / "right").write()])
    keys.make(tmp_path / "key")
    text = envelope.sign(statement(facts, "bitwise-rerun"), keys.read_private(tmp_path / "key"))
    (tmp_path / "signed.json").write_text(text)
    return envelope.read(tmp_path / "signed.json", keys.read_public(tmp_path / "key.pub"))


def test_a_statement_has_what_an_auditor_asks_for(tmp_path: Path) -> None:
    signed = stated(tmp_path)
    assert [(package.name, package.version, package.imported) for package in signed.rerun.packages] == [
        ("click", "8", False),
        ("numpy", "2.1", True),
    ]
    assert "torch.manual_seed(0), at train.py:4" in signed.rerun.seeds
    assert {run.source.repository for run in signed.rerun.runs} == {"https://host.example/a.git"}
    older = payload_of(signed)
    for run in older["runs"]:
        del run["source"]["repository"]
    del older["packages"], older["seeds"]
    assert predicate.read(predicate.RERUN, older).packages == ()


def payload_of(signed: envelope.Signed) -> Any:
    return json.loads(json.dumps(signed.content["predicate"]))


def test_a_policy_names_commit_categories_and_materials(tmp_path: Path) -> None:
    signed = stated(tmp_path)
    Policy(commit=COMMIT[:9], required=("trail", "weights")).require(signed)
    for unmet in (
        Policy(commit="f" * 40),
        Policy(required=("weights", "metrics in files")),
        Policy(required=("times",)),
    ):
        with pytest.raises(PolicyNotMet):
            unmet.require(signed)
    of_one = msgspec.structs.replace(signed.rerun.compared[0], name="metrics in files: a.csv", verdict="missing")
    alone = msgspec.structs.replace(signed.rerun, compared=(*signed.rerun.compared, of_one))
    with pytest.raises(PolicyNotMet, match="nothing of metrics in files was compared"):
        Policy(required=("metrics in files",)).require(replace(signed, rerun=alone))
    (tmp_path / "train.py").write_text("pass")
    assert check_materials(signed, [tmp_path / "train.py"]) == ("train.py",)
    (tmp_path / "train.py").write_text("other")
    with pytest.raises(Refused, match=r"another than that of train\.py"):
        check_materials(signed, [tmp_path / "train.py"])
    with pytest.raises(Refused):
        check_materials(signed, [tmp_path])


@pytest.mark.parametrize(
    "used", [{"changed": {"a.py": "sha256:1"}}, {"outside": {"b.py": "sha256:1"}}, {"not_compared": 1}, {"same": 0}]
)
def test_a_commit_is_required_of_all_files_that_were_used(used: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(PolicyNotMet, match="did not use that commit's files alone"):
        Policy(commit=COMMIT).require(stated(tmp_path, **used))
