"""The sums that TensorFlow keeps of its bytes: CRC-32C, masked, since sums of sums are of little use."""

from __future__ import annotations

from reprokit import native

_MASK_DELTA = 0xA282EAD8


def crc32c(data: bytes, crc: int = 0) -> int:
    """The CRC-32C of bytes that follow on those whose sum is crc."""
    ffi, library = native.artifacts()
    return int(library.rka_crc32c(crc, ffi.from_buffer(data), len(data)))


def masked(crc: int) -> int:
    """A sum as it is stored."""
    return ((crc >> 15 | crc << 17) + _MASK_DELTA) & 0xFFFFFFFF


def unmasked(stored: int) -> int:
    """The sum that is stored so."""
    rotated = (stored - _MASK_DELTA) & 0xFFFFFFFF
    return (rotated >> 17 | rotated << 15) & 0xFFFFFFFF
