"""Recognizes files that hold private keys by their first bytes; they are never copied."""

from __future__ import annotations

import os
import re
from functools import cache
from typing import IO

HEAD = 64 << 10  # bytes that are looked at: keys in text can follow comments and certificates

_LENGTH = rb"(?:[\x00-\x7f]|\x81.|\x82..|\x83...|\x80)"  # of DER, or indefinite
_OID = rb"\x06.(?:\x2a\x86\x48\x86\xf7\x0d\x01|\x2a\x86\x48\xce|\x2b\x65|\x2b\x81\x04)"  # PKCS, X9.62, RFC 8410, SEC 2
_FIRST_BYTES = tuple(bytes([byte]) for byte in b"\xfe\xce\x03\x30\x94\x95\x9c\x9d\xc5\xc7")  # of what _magics matches
_WORDS = (b"KEY", b"Key", b"key", b"AGE-PLUGIN-")  # each line that _lines matches has one; far faster to look for


@cache
def _lines() -> re.Pattern[bytes]:
    return re.compile(
        rb"^(?:"
        rb"-{4,5} ?BEGIN (?:[A-Z0-9]+ )*PRIVATE KEY(?: BLOCK)? ?-{4,5}"  # RFC 7468, OpenSSH, ssh.com, RFC 9580
        rb"|PuTTY-User-Key-File-\d"
        rb"|SSH PRIVATE KEY FILE FORMAT"  # of SSH 1
        rb"|AGE-SECRET-KEY-1|AGE-PLUGIN-[A-Z0-9-]+1"
        rb"|untrusted comment: .*secret key"  # minisign, signify
        rb"|(?:Key: )?\((?:\d+:)?(?:protected-|shadowed-)?private-key"  # gpg-agent
        rb")",
        re.MULTILINE,
    )


@cache
def _magics() -> re.Pattern[bytes]:
    """Compile the patterns at their first use: it takes long, and most runs copy no file."""
    return re.compile(
        rb"\xfe\xed\xfe\xed\x00\x00\x00[\x01\x02]"  # Java's keystores: JKS
        rb"|\xce\xce\xce\xce\x00\x00\x00[\x01\x02]"  # and JCEKS
        rb"|\x03\xd9\xa2\x9a[\x65-\x67]\xfb\x4b\xb5"  # KeePass
        rb"|\x30%(length)b\x02\x01\x03\x30%(length)b\x06\x09\x2a\x86\x48\x86\xf7\x0d\x01\x07"  # PKCS #12 (RFC 7292)
        rb"|\x30%(length)b\x02\x01[\x00\x01]\x30%(length)b%(oid)b"  # PKCS #8 (RFC 5958)
        rb"|\x30%(length)b\x30%(length)b\x06\x09\x2a\x86\x48\x86\xf7\x0d\x01(?:\x05|\x0c)"  # the same, encrypted
        rb"|\x30\x82..\x02\x01\x00\x02[\x81\x82]"  # PKCS #1 (RFC 8017)
        rb"|\x30%(length)b\x02\x01\x01\x04[\x1c-\x42]"  # SEC 1
        rb"|(?:[\x94\x9c].|[\x95\x9d]..|[\xc5\xc7](?:[\x00-\xbf]|[\xc0-\xdf].|\xff.{4}))"  # OpenPGP: secret key packets
        rb"[\x04-\x06].{4}[\x01-\x03\x10-\x13\x16\x19-\x1c]" % {b"length": _LENGTH, b"oid": _OID},
        re.DOTALL,
    )


def holds_private_key(head: bytes) -> bool:
    """Return whether a file that begins so is a private key, or a store of keys."""
    if head.startswith(_FIRST_BYTES) and _magics().match(head):
        return True
    return any(word in head for word in _WORDS) and _lines().search(head) is not None


def is_private_key(file: IO[bytes]) -> bool:
    """Return the same of an open file, whose position stays."""
    return holds_private_key(os.pread(file.fileno(), HEAD, 0))
