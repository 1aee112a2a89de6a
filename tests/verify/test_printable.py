"""Text from run directories cannot act on a terminal."""

from __future__ import annotations

import unicodedata

from hypothesis import given
from hypothesis import strategies as st

from reprokit.core.printable import printable


@given(st.text(st.characters(categories=["C", "L", "N", "P", "S", "Z"])))
def test_nothing_that_a_terminal_acts_upon_is_left(text: str) -> None:
    for character in printable(text):
        assert unicodedata.category(character) not in {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}


@given(st.text(st.characters(categories=["L", "N", "P", "S", "Zs"]), max_size=400))
def test_ordinary_text_stays_as_it_is(text: str) -> None:
    assert printable(text) == text


def test_what_is_spelt_out_can_be_recognized() -> None:
    assert printable("a\x1b[31m\u202e\U000e0001\n") == r"a\x1b[31m\u202e\U000e0001\x0a"


def test_long_text_is_cut() -> None:
    assert printable("x" * 1000, 10) == "xxxxxxx..."
