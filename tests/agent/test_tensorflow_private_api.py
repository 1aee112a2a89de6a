"""The contract with TensorFlow and Keras: which private names the agent uses, and that a release has them."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from reprokit.agent.tensorflow.private_api import MODULES
from tests.agent.test_pytorch_private_api import AGENT, modules, names_in, seen
from tests.interpreters import lacking, tf114_python

SEEN = seen("tensorflow")
STARTING = {"capture/__init__.py", "frameworks/__init__.py"}  # say which modules they wait for, before any is there
OTHERS = {"frameworks/lightgbm.py": {"_handle"}}  # LightGBM's own, of the same name
PRIVATE_MODULE = re.compile(r"\"((?:tensorflow\.python|keras\.src)\b[\w.]*)\"(?!:)")  # but for those waited for
USE = re.compile(r"private_api\.module\(\"(\w+)\"\)\.(\w+)|private_api\.(ops)\(\)\.(\w+)")
NAMES = {part for path in SEEN for part in re.findall(r"\._(\w+)", path)}


def whole(path: str) -> str:
    """The path with the whole name of its module."""
    first, _, rest = path.partition(".")
    return f"{MODULES.get(first, first)}.{rest}"


def of(version: str) -> list[str]:
    return [whole(path) for path, versions in SEEN.items() if version in versions.split(", ")]


NEWEST = of("2.21") + of("3.15")


@pytest.mark.slow
def test_this_release_has_every_private_name_that_is_used() -> None:
    assert lacking(sys.executable, NEWEST) == set()


@pytest.mark.tf114
@pytest.mark.slow
def test_the_oldest_release_has_those_that_it_had() -> None:
    python = tf114_python()
    if python is None:
        pytest.skip("REPROKIT_TF114_PYTHON names no Python 3.7 with TensorFlow 1.14")
    assert lacking(python, of("1.14")) == set()


def test_each_name_says_in_which_versions_it_was_seen() -> None:
    form = re.compile(r"until \d+\.\d+|\d+\.\d+(, \d+\.\d+)*")
    assert [path for path, versions in SEEN.items() if not form.fullmatch(versions)] == []


def test_what_is_asked_of_its_modules_is_listed() -> None:
    uses = [use for path in modules() for use in USE.findall(path.read_text(encoding="utf-8"))]
    asked = {f"{one or two}.{name or other}" for one, name, two, other in uses}
    listed = [path.replace("()", "") for path in SEEN]
    assert sorted(name for name in asked if not any(f"{path}.".startswith(f"{name}.") for path in listed)) == []


def asks(path: Path) -> set[str]:
    """The private names and modules of TensorFlow and Keras that a module of the agent uses by itself."""
    text = path.read_text(encoding="utf-8")
    own = {name for pair in re.findall(r"(?:self|cls)\.(_\w+)\b(?: *:[^=\n]+)? *=|def (_\w+)", text) for name in pair}
    return (names_in(path) & {f"_{name}" for name in NAMES} - own) | set(PRIVATE_MODULE.findall(text))


def test_only_one_module_uses_private_names() -> None:
    wrong = {}
    for path in modules():
        place = str(path.relative_to(AGENT))
        exempt = path.name == "private_api.py" or place in STARTING or "torch" in place
        asked = asks(path) - OTHERS.get(place, set())
        if not exempt and asked:
            wrong[place] = asked
    assert wrong == {}
