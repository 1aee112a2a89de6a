"""Makes and reads Ed25519 keys for signed statements: PEM files, the private one readable by its owner only."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING

from reprokit.core.bounds import read_whole
from reprokit.core.errors import BadKey, needed_for

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from securesystemslib.signer._key import SSlibKey

PUBLIC = ".pub"
MAX_KEY = 64 << 10  # bytes of a key file
ADVICE = "'reprokit keygen' makes keys"


def make(path: Path) -> Path:
    """Make a pair of keys: the private one at `path`, the public one next to it; neither may exist."""
    _require_library()
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    private = Ed25519PrivateKey.generate()
    public_path = path.with_name(path.name + PUBLIC)
    secret = private.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    public = private.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    _write(path, secret, 0o600)
    try:
        _write(public_path, public, 0o644)
    except BadKey:
        path.unlink()
        raise
    return public_path


def _write(path: Path, data: bytes, mode: int) -> None:
    try:
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode), "wb") as file:
            file.write(data)
    except FileExistsError:
        raise BadKey(f"{path} exists already; a key is never overwritten, choose another name") from None
    except OSError as error:
        raise BadKey(f"{path}: {error.strerror}; the key was not made") from None


def read_private(path: Path) -> Ed25519PrivateKey:
    """Return the private key; refused if other users may read it, or if it is of another type."""
    _require_library()
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    def require_private(status: os.stat_result) -> None:
        if status.st_mode & 0o077:
            mode = f"mode {stat.S_IMODE(status.st_mode):04o}"
            raise BadKey(f"{path} may be read by others ({mode}); make a new key, or chmod 600 it")

    data = read_whole(path, MAX_KEY, BadKey, ADVICE, require_private)
    try:
        key = load_pem_private_key(data, password=None)
    except Exception as error:  # the library raises many classes
        raise BadKey(f"{path} is not an unencrypted private key in PEM ({_first_line(error)}); see keygen") from None
    if not isinstance(key, Ed25519PrivateKey):
        raise BadKey(f"{path} is a key of another kind than Ed25519; 'reprokit keygen' makes keys")
    return key


def read_public(path: Path) -> SSlibKey:
    """Return the public key; a private one is refused, as verifiers must not hold it."""
    _require_library()
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    from cryptography.hazmat.primitives.serialization import load_pem_public_key
    from securesystemslib.signer._key import SSlibKey

    data = read_whole(path, MAX_KEY, BadKey, ADVICE)
    if b"PRIVATE KEY" in data:
        raise BadKey(f"{path} is a private key; verify with the public one, {path.name}{PUBLIC}")
    try:
        key = load_pem_public_key(data)
    except Exception as error:
        raise BadKey(f"{path} is not a public key in PEM ({_first_line(error)})") from None
    if not isinstance(key, Ed25519PublicKey):
        raise BadKey(f"{path} is a key of another kind than Ed25519")
    return SSlibKey.from_crypto(key)


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:200]


def _require_library() -> None:
    with needed_for("signing", "securesystemslib[crypto]"):
        import cryptography  # noqa: F401
        import securesystemslib.signer  # noqa: F401
