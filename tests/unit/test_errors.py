"""Every error has a slug of its own, and docs/errors.md explains it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from reprokit.core import errors

PAGE = Path(__file__).parent.parent.parent / "docs" / "errors.md"

ANSWERS = (errors.Refused, errors.NotSigned, errors.PolicyNotMet)  # of attest verify, and no trouble


def classes(base: type[errors.ReprokitError] = errors.ReprokitError) -> Iterator[type[errors.ReprokitError]]:
    yield base
    for inner in base.__subclasses__():
        if inner.__module__ == errors.__name__:  # others add facts to one of these, and have its slug
            yield from classes(inner)


def test_slugs_are_distinct_and_every_one_is_explained() -> None:
    slugs = [error.slug for error in classes()]
    assert len(slugs) == len(set(slugs))
    assert sorted(slugs) == re.findall(r"^## (\S+)$", PAGE.read_text(), re.MULTILINE)


def test_every_error_says_what_it_is_and_has_an_exit_code_of_its_kind() -> None:
    for error in classes():
        assert error.__doc__
        assert error.exit_code in (2, 125, 126, 127) or error in ANSWERS
        assert (error.exit_code >= 125) == issubclass(error, errors.LaunchError)
