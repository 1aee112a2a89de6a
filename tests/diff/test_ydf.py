"""Models of Yggdrasil Decision Forests: the order of maps is no difference, values are named."""

from __future__ import annotations

from tests.diff.objects import named, same


def field(number: int, content: bytes | int) -> bytes:
    """One field of a message: a short text or message, or a number."""
    if isinstance(content, int):
        return bytes([number << 3]) + varint(content)
    return bytes([number << 3 | 2]) + varint(len(content)) + content


def varint(number: int) -> bytes:
    data = b""
    while number >= 128:
        data += bytes([number & 127 | 128])
        number >>= 7
    return data + bytes([number])


def header(created: int, *importances: tuple[bytes, int], uid: int = 7) -> bytes:
    entries = [field(7, field(1, name) + field(2, field(1, field(1, column)))) for name, column in importances]
    metadata = field(1, b"") + field(2, created) + field(3, uid) + field(4, b"Python YDF")
    return field(1, b"RANDOM_FOREST") + field(2, 1) + b"".join(entries) + field(10, metadata)


FIRST, SECOND = (b"NUM_NODES", 1), (b"SUM_SCORE", 2)


def test_the_order_of_a_map_is_no_difference() -> None:
    left, right = header(1_795_944_001, FIRST, SECOND), header(1_795_944_001, SECOND, FIRST)
    assert left != right
    assert same(left, right, "header.pb")


def test_what_differs_is_named() -> None:
    left, right = header(1_795_944_001, FIRST), header(1_795_944_002, (b"NUM_NODES", 3))
    found = named(left, right, "header.pb")
    assert found["metadata/created_date"].startswith("1795944001 | 1795944002")
    assert len(found) == 2
    assert any(name.endswith("attribute_idx") for name in found)


def test_the_items_of_a_column_have_no_order() -> None:
    items = [field(7, field(1, name) + field(2, field(1, index))) for name, index in ((b"a", 1), (b"b", 2))]
    left, right = (field(1, field(1, 4) + field(2, b"y") + field(6, b"".join(pair))) for pair in (items, items[::-1]))
    assert same(left, right, "data_spec.pb")
    changed = left.replace(b"\x0a\x01a", b"\x0a\x01c")
    assert not same(left, changed, "data_spec.pb")
