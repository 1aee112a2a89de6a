"""Makes and reads signed envelopes (DSSE) around in-toto Statements; those to read are untrusted.

The size of an envelope is bounded, nothing in it is trusted before its signature has been verified, and only the signed
bytes are read. https://github.com/secure-systems-lab/dsse specifies the format.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import msgspec
from msgspec import Meta

from reprokit.core import untrusted_json
from reprokit.core.bounds import read_whole
from reprokit.core.errors import BadEnvelope, NotSigned, Refused
from reprokit.evidence.attest import predicate
from reprokit.evidence.attest.statement import PREDICATES, STATEMENT

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from securesystemslib.signer._key import SSlibKey

PAYLOAD: Final = "application/vnd.in-toto+json"
MAX_ENVELOPE = 256 << 20  # bytes
MAX_SIGNATURES = 64


class _Signature(msgspec.Struct, frozen=True):
    """A signature; the keyid beside it is a hint that anybody can change, and is not looked at."""

    sig: str


class _Envelope(msgspec.Struct, frozen=True, rename="camel"):
    """The envelope as it is written."""

    payload: str
    payload_type: str
    signatures: Annotated[list[_Signature], Meta(max_length=MAX_SIGNATURES)] = []


class Subject(msgspec.Struct, frozen=True):
    """An artifact that a statement is about."""

    name: Annotated[str, Meta(min_length=1)]
    digest: dict[str, str]

    @property
    def sha256(self) -> str:
        return self.digest["sha256"]


class _Statement(msgspec.Struct, frozen=True):
    """An in-toto Statement; what its predicate must be depends on the predicate's type."""

    type: str = msgspec.field(name="_type")
    predicate_type: str = msgspec.field(name="predicateType")
    subject: Annotated[list[Subject], Meta(min_length=1)]
    predicate: dict[str, Any]


@dataclass(frozen=True)
class Signed:
    """What a verified envelope holds."""

    content: dict[str, Any]  # the statement as it was signed
    predicate_type: str
    subjects: tuple[Subject, ...]
    rerun: predicate.Rerun


def sign(statement: dict[str, Any], private: Ed25519PrivateKey) -> str:
    """Return the statement in an envelope, as JSON text."""
    from securesystemslib.dsse import Envelope
    from securesystemslib.signer._crypto_signer import CryptoSigner

    payload = json.dumps(statement, sort_keys=True, separators=(",", ":")).encode()
    envelope = Envelope(payload, PAYLOAD, {})
    envelope.sign(CryptoSigner(private))
    return json.dumps(envelope.to_dict(), indent=2) + "\n"


def identities(statement: dict[str, Any], text: str) -> tuple[tuple[str, str], ...]:
    """Return what a page names of a statement and its envelope, as `sign` made them."""
    envelope = json.loads(text)
    payload = base64.b64decode(envelope["payload"])
    return (
        ("statement", statement["predicateType"]),
        ("what was signed", f"sha256:{hashlib.sha256(payload).hexdigest()}"),
        ("key", envelope["signatures"][0]["keyid"]),
        ("signature", envelope["signatures"][0]["sig"]),
    )


def read(path: Path, key: SSlibKey) -> Signed:
    """Return what this key has signed in an envelope.

    Raises NotSigned, BadEnvelope for what is not of its format, and Refused for another tool's statement.
    """
    envelope = _convert(path, _json(path, read_whole(path, MAX_ENVELOPE, BadEnvelope)), _Envelope, "a DSSE envelope")
    payload = _base64(envelope.payload)
    if payload is None:
        raise BadEnvelope(f"{path} is not a DSSE envelope: its payload is not base64")
    if not envelope.signatures:
        raise NotSigned(f"{path} is not signed: it holds no signature")
    signed = _pre_authentication(envelope.payload_type, payload)
    if not any(_holds(key, signature.sig, signed) for signature in envelope.signatures):
        raise NotSigned(f"{path} was not signed by this key, or was changed since")
    if envelope.payload_type != PAYLOAD:
        raise Refused(f"{path} holds {envelope.payload_type[:200]}, which is not an in-toto statement")
    return _statement(path, _json(path, payload))


def _statement(path: Path, content: dict[str, Any]) -> Signed:
    version, kind = (content.get(key) for key in ("_type", "predicateType"))
    if not (isinstance(version, str) and isinstance(kind, str)):
        raise BadEnvelope(f"{path} holds no in-toto Statement: its _type or predicateType is missing")
    if version != STATEMENT:
        raise Refused(f"{path} holds {version[:200]}, not an in-toto Statement of version 1")
    if kind not in PREDICATES.values():
        raise Refused(f"{path} states {kind[:200]}, which is another tool's and not about a re-run")
    statement = _convert(path, content, _Statement, "an in-toto Statement")
    try:
        rerun = predicate.read(statement.predicate_type, statement.predicate)
    except ValueError as error:
        raise BadEnvelope(f"{path}: its predicate is not by the schema of {kind}: {error}") from None
    names = {subject.name for subject in statement.subject}
    if len(names) < len(statement.subject):
        raise BadEnvelope(f"{path}: two artifacts of the statement have the same name")
    if not all(re.fullmatch("[0-9a-f]{64}", subject.digest.get("sha256", "")) for subject in statement.subject):
        raise BadEnvelope(f"{path}: an artifact of the statement has no SHA-256 digest")
    return Signed(content, statement.predicate_type, tuple(statement.subject), rerun)


def _pre_authentication(kind: str, payload: bytes) -> bytes:
    """Return DSSE's pre-authentication encoding of type and payload, which is what gets signed."""
    name = kind.encode("utf-8", "surrogatepass")
    return b"DSSEv1 %d %b %d %b" % (len(name), name, len(payload), payload)


def _holds(key: SSlibKey, text: str, signed: bytes) -> bool:
    """Return whether the signature over the text was made by this key."""
    from securesystemslib.exceptions import UnverifiedSignatureError, VerificationError
    from securesystemslib.signer._signature import Signature

    signature = _base64(text)
    if signature is None:
        return False
    try:
        key.verify_signature(Signature(key.keyid, signature.hex()), signed)
    except (UnverifiedSignatureError, VerificationError):
        return False
    return True


def _base64(text: str) -> bytes | None:
    """Decode standard or URL-safe base64, as DSSE allows both; None for anything else."""
    alphabet = b"-_" if "-" in text or "_" in text else b"+/"
    try:
        return base64.b64decode(text.encode("ascii"), altchars=alphabet, validate=True)
    except (binascii.Error, ValueError):
        return None


def _json(path: Path, data: bytes) -> dict[str, Any]:
    try:
        content = untrusted_json.loads(data)
    except ValueError as error:
        raise BadEnvelope(f"{path} is not JSON: {error}") from None
    if not isinstance(content, dict):
        raise BadEnvelope(f"{path} is not a JSON object, so it is not a DSSE envelope")
    return content


def _convert(path: Path, content: dict[str, Any], kind: Any, kind_in_words: str) -> Any:
    try:
        return msgspec.convert(content, kind)
    except msgspec.ValidationError as error:
        raise BadEnvelope(f"{path} is not {kind_in_words}: {error}") from None
