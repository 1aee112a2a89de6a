"""Signed envelopes (DSSE) around in-toto Statements: making one, and holding one against key and artifacts.

An envelope comes from somebody else: it is bounded, nothing in it is believed before its signature has been verified,
and only the bytes that were signed are read.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from reprokit.errors import BadEnvelope, Refused
from reprokit.report import keys
from reprokit.report.statement import PREDICATES, STATEMENT

PAYLOAD: Final = "application/vnd.in-toto+json"
MAX_ENVELOPE = 256 << 20  # bytes
MAX_SIGNATURES = 64


@dataclass(frozen=True)
class Attested:
    """What a verified envelope says."""

    statement: dict[str, Any]
    key: str  # id of the key that signed it
    checked: tuple[str, ...]  # artifacts whose digests are those of the statement
    unchecked: tuple[str, ...]  # subjects for which no artifact was given


def sign(statement: dict[str, Any], key_path: Path) -> str:
    """The statement in an envelope, as JSON text."""
    private = keys.read_private(key_path)
    from securesystemslib.dsse import Envelope
    from securesystemslib.signer._crypto_signer import CryptoSigner

    payload = json.dumps(statement, sort_keys=True, separators=(",", ":")).encode()
    envelope = Envelope(payload, PAYLOAD, {})
    envelope.sign(CryptoSigner(private))
    return json.dumps(envelope.to_dict(), indent=2) + "\n"


def verify(path: Path, key_path: Path, artifacts: Sequence[Path], *, partial: bool = False) -> Attested:
    """Hold an envelope against a public key and artifacts; raises Refused where anything does not fit."""
    key = keys.read_public(key_path)
    statement = _verified(path, key)
    wanted = dict(_subjects(path, statement))
    checked = []
    for name, place, is_named in _artifacts(artifacts):
        subject = _subject_for(name, wanted)
        if subject is None and not is_named:
            continue
        if subject is None:
            raise Refused(f"{place} is not among the {len(wanted)} artifacts that the statement is about")
        if _sha256(place) != wanted[subject]:
            raise Refused(f"{place} is not the artifact that was signed: its digest is another than that of {subject}")
        checked.append(subject)
    unchecked = tuple(name for name in wanted if name not in checked)
    if unchecked and not partial:
        what = "give the artifacts too, or accept that with --partial"
        raise Refused(f"{len(unchecked)} of {len(wanted)} artifacts were not checked, first {unchecked[0]}; {what}")
    return Attested(statement, key.keyid, tuple(checked), unchecked)


def _verified(path: Path, key: Any) -> dict[str, Any]:
    """The statement in an envelope that this key has signed."""
    from securesystemslib.dsse import Envelope

    content = _read(path)
    if not isinstance(content.get("signatures"), list) or not content["signatures"]:
        raise Refused(f"{path} is not signed: it holds no signature")
    if len(content["signatures"]) > MAX_SIGNATURES:
        raise BadEnvelope(f"{path} holds more than {MAX_SIGNATURES} signatures")
    try:
        envelope = Envelope.from_dict(content)
    except Exception as error:
        raise BadEnvelope(f"{path} is no DSSE envelope: {type(error).__name__}: {error}") from None
    if envelope.payload_type != PAYLOAD:
        raise Refused(f"{path} holds {envelope.payload_type}, which is no in-toto statement")
    if not _holds(envelope, key):
        raise Refused(f"{path} was not signed by this key, or was changed since")
    statement = _object(path, envelope.payload)
    if statement.get("_type") != STATEMENT:
        raise Refused(f"{path} holds no in-toto Statement of version 1")
    if statement.get("predicateType") not in PREDICATES.values():
        said = str(statement.get("predicateType"))[:200]
        raise Refused(f"{path} states {said}, and nothing of a re-run: it is another tool's")
    return statement


def _holds(envelope: Any, key: Any) -> bool:
    """Whether one of the signatures does, whatever key id it names: that is a hint and nothing else."""
    from securesystemslib.exceptions import UnverifiedSignatureError

    for signature in envelope.signatures.values():
        try:
            key.verify_signature(signature, envelope.pae())
        except UnverifiedSignatureError:
            continue
        return True
    return False


def _read(path: Path) -> dict[str, Any]:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        with os.fdopen(descriptor, "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise BadEnvelope(f"{path} is not a regular file")
            data = file.read(MAX_ENVELOPE + 1)
    except OSError as error:
        raise BadEnvelope(f"{path}: {error.strerror}") from None
    if len(data) > MAX_ENVELOPE:
        raise BadEnvelope(f"{path} is larger than {MAX_ENVELOPE} bytes")
    return _object(path, data)


def _object(path: Path, data: bytes) -> dict[str, Any]:
    try:
        content = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise BadEnvelope(f"{path} is no JSON: {error}") from None
    if not isinstance(content, dict):
        raise BadEnvelope(f"{path} is no DSSE envelope: not a JSON object")
    return content


def _subjects(path: Path, statement: dict[str, Any]) -> Iterator[tuple[str, str]]:
    subjects = statement.get("subject")
    for one in subjects if isinstance(subjects, list) else ():
        digest = one.get("digest") if isinstance(one, dict) else None
        sha256 = digest.get("sha256") if isinstance(digest, dict) else None
        if not isinstance(sha256, str):
            raise Refused(f"{path}: an artifact of the statement has no SHA-256 digest")
        yield str(one.get("name", "")), sha256


def _artifacts(places: Sequence[Path]) -> Iterator[tuple[str, Path, bool]]:
    """Files by the names that they may have in a statement, and whether they were named one by one."""
    for place in places:
        if place.is_dir():
            files = (path for path in sorted(place.rglob("*")) if path.is_file() and not path.is_symlink())
            yield from ((path.relative_to(place).as_posix(), path, False) for path in files)
        else:
            yield place.as_posix(), place, True


def _subject_for(name: str, wanted: dict[str, str]) -> str | None:
    """The subject that an artifact stands for: the same name, or the only one of the same last part."""
    if name in wanted:
        return name
    last = name.rpartition("/")[2]
    alike = [subject for subject in wanted if subject.rpartition("/")[2] == last]
    return alike[0] if len(alike) == 1 else None


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    try:
        with open(path, "rb") as file:
            for block in iter(lambda: file.read(1 << 20), b""):
                digest.update(block)
    except OSError as error:
        raise Refused(f"{path}: {error.strerror}") from None
    return digest.hexdigest()
