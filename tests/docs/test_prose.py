"""The pages that a newcomer reads first have short sentences."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.budgets import LONGEST_SENTENCE, sentences
from tests.docs.console import DOCS

FIRST = [
    DOCS.parent / "README.md",
    *(DOCS / name for name in ("index.md", "getting-started.md", "what-will-bite-you.md", "concepts.md")),
    *sorted((DOCS / "tutorials").glob("*.md")),
]


@pytest.mark.parametrize("page", FIRST, ids=lambda page: page.stem)
def test_sentences_are_short(page: Path) -> None:
    assert [sentence for sentence in sentences(page) if len(sentence.split()) > LONGEST_SENTENCE] == []
