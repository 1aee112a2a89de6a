"""Reads which tensors a user wants: words of the command line, or rules of a TOML file.

weights,gradients 100-200:10 mode=train reduce=l2,mean
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import msgspec

from reprokit.core import toml_text
from reprokit.core.errors import UsageError, reason
from reprokit.model.question import BUFFER, StepSpan, TensorRule, TensorSelection

COLLECTIONS = (
    "weights", "biases", "gradients", "losses", "metrics", "inputs", "outputs", "optimizer_variables", "conduct",
    "hyperparameters", "predictions", "labels", "feature_importance", "average_shap", "full_shap", "trees",
)  # fmt: skip
ALL = "all"
MODES_FOR_RULES = "train,eval"
FOR_RULES = ("all mode=train,eval 0-49,50-:10", "losses,conduct mode=train,eval")  # where nothing else is asked for
MODES = ("train", "eval", "predict", "global")
_PLAIN = ("min", "max", "mean", "std", "variance", "sum", "prod", "l1", "l2")
REDUCTIONS = (*_PLAIN, *(f"abs_{name}" for name in _PLAIN))
SUFFIX = ".toml"
MAX_FILE = 1 << 20
MAX_RULES, MAX_WORDS, MAX_PATTERN = 100, 1000, 1000
# What an error blames, by part of a rule: all stand in --tensors of record, and apart in the words of ask.
IN_TENSORS = dict.fromkeys(("select", "steps", "mode", "reduce"), "--tensors")
OWN_OPTIONS = {"select": "TENSORS", "steps": "--steps", "mode": "--mode", "reduce": "--reduce"}
_SPAN = re.compile(r"(\d{1,15})(?:(-)(\d{1,15})?)?(?::([1-9]\d{0,14}))?")
_EVERY = re.compile(r"every=([1-9]\d{0,14})")
_WORD = re.compile(r"[a-z_]+")


class RuleText(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A rule as it is written in a file."""

    select: list[str]
    steps: str = ""
    mode: str = ""
    reduce: str = ""


class RuleFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The contents of a TOML file: [[tensors]] for each rule."""

    tensors: list[RuleText]


def selection(specifications: Sequence[str], buffer: int = BUFFER) -> TensorSelection:
    """Return what is asked for; raises UsageError for what cannot be meant."""
    return _selection([rule for text in specifications for rule in _rules(text)], buffer)


def selection_of_words(words: Sequence[str], steps: str, mode: str, reduce: str, buffer: int) -> TensorSelection:
    """Return what words, or files of rules among them, ask for; the options hold for the words."""
    select = [word for word in words if not word.endswith(SUFFIX)]
    rules = [rule for word in words if word.endswith(SUFFIX) for rule in _of_file(Path(word))]
    if select or steps or mode or reduce:
        rules.append(rule(select, steps, mode, reduce, OWN_OPTIONS))
    return _selection(rules, buffer)


def _selection(rules: Sequence[TensorRule], buffer: int) -> TensorSelection:
    if not 0 < len(rules) <= MAX_RULES:
        raise UsageError(f"--tensors: give between 1 and {MAX_RULES} rules, not {len(rules)}")
    return TensorSelection(rules=tuple(rules), buffer=buffer)


def _rules(text: str) -> Iterable[TensorRule]:
    if text.endswith(SUFFIX):
        return _of_file(Path(text))
    select, options = [], {"steps": "", "mode": "", "reduce": ""}
    for word in text.split():
        key, equals, value = word.partition("=")
        if _EVERY.fullmatch(word) or _SPAN.fullmatch(word.split(",")[0]):
            key, value = "steps", word
        elif not (equals and key in options):
            select.append(word)
            continue
        if options[key]:
            raise UsageError(f"--tensors: {text!r} gives {key} twice; use --tensors again for another rule")
        options[key] = value
    return [rule(select, options["steps"], options["mode"], options["reduce"])]


def _of_file(path: Path) -> list[TensorRule]:
    rule_file = toml_text.read(path, RuleFile, MAX_FILE, UsageError, "name a file of rules with --tensors")
    return [rule(line.select, line.steps, line.mode, line.reduce) for line in rule_file.tensors]


def rule(
    select: Sequence[str], steps: str = "", mode: str = "", reduce: str = "", options: Mapping[str, str] = IN_TENSORS
) -> TensorRule:
    """Return one rule; `options` are what an error blames, by part of the rule."""
    collections, patterns = _selected(select, options["select"])
    if not (collections or patterns):
        raise UsageError(
            f"{options['select']}: name a collection ({', '.join(COLLECTIONS)}, all) or a regular expression"
        )
    return TensorRule(
        collections=collections,
        patterns=patterns,
        steps=_spans(steps, options["steps"]),
        modes=_known(mode or "train", MODES, "mode", options["mode"]),
        reductions=_known(reduce, REDUCTIONS, "reduction", options["reduce"]),
    )


def _selected(words: Sequence[str], option: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the collections and the regular expressions among the words; commas part words of letters only."""
    collections: list[str] = []
    patterns: list[str] = []
    parted = [
        part for word in words for part in (word.split(",") if _WORD.fullmatch(word.replace(",", "")) else [word])
    ]
    for word in parted[:MAX_WORDS]:
        near = difflib.get_close_matches(word, COLLECTIONS, 1, 0.8) if _WORD.fullmatch(word) else []
        if word == ALL:
            patterns.append("")
        elif word in COLLECTIONS:
            collections.append(word)
        elif near:
            advice = f"did you mean {near[0]}? As a regular expression write ({word})"
            raise UsageError(f"{option}: there is no collection {word!r}; {advice}")
        elif word:
            patterns.append(_pattern(word, option))
    return tuple(dict.fromkeys(collections)), tuple(dict.fromkeys(patterns))


def _pattern(text: str, option: str) -> str:
    try:
        re.compile(text)
    except (re.error, RecursionError, OverflowError) as error:
        raise UsageError(f"{option}: {text[:80]!r} is no regular expression: {reason(error)}") from None
    if len(text) > MAX_PATTERN:
        raise UsageError(f"{option}: a regular expression has more than {MAX_PATTERN} characters")
    return text


def _spans(text: str, option: str) -> tuple[StepSpan, ...]:
    """Return the steps that a text such as 0,5,100-200:10 or every=10 stands for."""
    return tuple(_span(part, option) for part in text.split(",")) if text else (StepSpan(),)


def _span(text: str, option: str) -> StepSpan:
    if every := _EVERY.fullmatch(text):
        return StepSpan(every=int(every[1]))
    match = _SPAN.fullmatch(text)
    if match is None:
        raise UsageError(f"{option}: {text[:80]!r} are no steps; give such as 5, 100-200, 100-200:10, 100- or every=10")
    first, is_range, last, step = int(match[1]), match[2], match[3], int(match[4] or 1)
    if match[4] and not is_range:  # a range in other tools
        ways = f"{first}-{step}, or {first}-:{step} for each {step}th step"
        raise UsageError(f"{option}: {text!r} is {ways}; write one")
    end = int(last) if last else None if is_range else first
    if end is not None and end < first:
        raise UsageError(f"{option}: the steps {text!r} end before they begin")
    return StepSpan(first=first, last=end, every=step)


def _known(text: str, names: Sequence[str], kind: str, option: str) -> tuple[str, ...]:
    words = [word for word in text.split(",") if word]
    for word in words:
        if word not in names:
            raise UsageError(f"{option}: there is no {kind} {word[:80]!r}; there are {', '.join(names)}")
    return tuple(dict.fromkeys(words))
