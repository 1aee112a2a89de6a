"""Compares the commands and their working directories."""

from __future__ import annotations

import re
import shlex
from itertools import zip_longest
from pathlib import PurePosixPath

from reprokit.core.difference import Difference, Verdict, compared, group, information
from reprokit.core.redaction import shown_document
from reprokit.model.run import RunFile
from reprokit.verify.categories.match import RunPair
from reprokit.verify.read.normalization import INTERPRETER, WORKING_DIRECTORY, Normalizations

_PYTHON = re.compile(r"^(python|pypy)[0-9.]*t?$")


def compare(runs: RunPair) -> Difference:
    """Compare the command's words and the working directory."""
    return group("command", (_words(*runs.files, runs.normalizations), _directory(*runs.files)))


def _words(left: RunFile, right: RunFile, normalizations: Normalizations) -> Difference:
    plain = _plain(left), _plain(right)
    same = plain[0] == plain[1]
    for number, words in enumerate(zip(left.command, right.command, strict=False)):
        if words[0] != words[1] and words != (plain[0][number], plain[1][number]):
            normalizations.add(INTERPRETER if not number and _is_python(words[0]) else WORKING_DIRECTORY)
    meaning = "" if same else _meaning(*plain)
    return compared("words", shlex.join(left.command), shlex.join(right.command), meaning, same=same)


def _meaning(left: list[str], right: list[str]) -> str:
    number = next(number for number, (one, other) in enumerate(zip_longest(left, right)) if one != other)
    one, other = list(zip_longest(shown_document(left), shown_document(right)))[number]
    if one == other:
        return f"another command was run: word {number} is another password or token"
    return f"another command was run: word {number} is {_word(one)} on the left and {_word(other)} on the right"


def _word(word: str | None) -> str:
    return "absent" if word is None else shlex.quote(word)


def _plain(run: RunFile) -> list[str]:
    """Return the command without the directories of its interpreter and working directory."""
    directory = run.working_directory.rstrip("/") + "/"
    words = [word.replace(directory, "", 1) if word.startswith(directory) else word for word in run.command]
    if words and _is_python(words[0]):
        words[0] = PurePosixPath(words[0]).name
    return words


def _is_python(word: str) -> bool:
    return _PYTHON.match(PurePosixPath(word).name) is not None


def _directory(left: RunFile, right: RunFile) -> Difference:
    name = "working directory"
    if left.working_directory == right.working_directory:
        return Difference(name, Verdict.IDENTICAL, left.working_directory, right.working_directory)
    meaning = "can change results: relative paths lead to other files"
    return information(name, left.working_directory, right.working_directory, meaning, can_change_results=True)
