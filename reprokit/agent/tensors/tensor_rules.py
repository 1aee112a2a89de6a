"""Decides which tensors are saved: the rules of the plan, by name, collection, step and mode."""

from __future__ import annotations

import re

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from typing import Any

TRAIN, EVAL, PREDICT, GLOBAL = "train", "eval", "predict", "global"
MAX_NAMES = 10_000  # remembered, to suggest similar ones for a pattern without a match
MAX_NEAR = 3


class Choice:
    """What is saved of a tensor: all its values, or reductions of them."""

    def __init__(self, rules: Sequence[TensorMatcher]) -> None:
        self.is_full = any(not rule.reductions for rule in rules)
        self.reductions = tuple(dict.fromkeys(name for rule in rules for name in rule.reductions))


class TensorMatcher:
    """One rule: it chooses a tensor if it names one of its collections, or a pattern matches its name."""

    def __init__(self, rule: Mapping[str, Any]) -> None:
        self.collections = frozenset(rule["collections"])
        self.patterns = [re.compile(pattern) for pattern in rule["patterns"]]
        self.modes = frozenset(rule["modes"])
        self.reductions: tuple[str, ...] = tuple(rule["reductions"])
        self._spans = [(span["first"], span["last"], span["every"]) for span in rule["steps"]]
        self.unmatched = {*self.collections, *rule["patterns"]}  # collections and patterns without a match so far

    def is_due(self, step: int) -> bool:
        """Return whether the rule applies to a step."""
        for first, last, every in self._spans:
            if first <= step and (last is None or step <= last) and not (step - first) % every:
                return True
        return False

    def chooses(self, name: str, collections: Sequence[str], mode: str) -> bool:
        """Return whether the rule chooses a tensor."""
        if not (mode in self.modes or GLOBAL in self.modes):
            return False
        matches = self.collections.intersection(collections)
        matches = matches.union(pattern.pattern for pattern in self.patterns if pattern.search(name))
        self.unmatched -= matches
        return bool(matches)


class TensorRules:
    """All rules, and those that apply to the current step."""

    def __init__(self, rules: Sequence[Mapping[str, Any]]) -> None:
        self._rules = [TensorMatcher(rule) for rule in rules]
        self._choices: dict[Any, Choice | None] = {}
        self._wants: dict[Any, bool] = {}
        self._due: tuple[TensorMatcher, ...] = ()
        self._names: set[str] = set()
        self.begin(0)

    def are_due(self, step: int) -> bool:
        """Return whether any rule applies to a step."""
        return any(rule.is_due(step) for rule in self._rules)

    def begin(self, step: int) -> None:
        """Select the rules that apply to a step that begins."""
        due = tuple([rule for rule in self._rules if rule.is_due(step)])
        if due != self._due:
            self._due, self._choices, self._wants = due, {}, {}

    @property
    def is_any_due(self) -> bool:
        """Return whether any rule applies to the current step."""
        return bool(self._due)

    def wants(self, *collections: str, ever: bool = False) -> bool:
        """Return whether tensors of these collections may be saved, in the current step or in any."""
        key = collections, ever
        if key not in self._wants:
            rules = self._rules if ever else self._due
            self._wants[key] = any(rule.patterns or not rule.collections.isdisjoint(collections) for rule in rules)
        return self._wants[key]

    def asks_for(self, name: str) -> bool:
        """Return whether a rule of this step names a collection of one tensor, also by a pattern, but not as `all`."""
        return any(
            name in rule.collections or any(pattern.pattern and pattern.search(name) for pattern in rule.patterns)
            for rule in self._due
        )

    def choice(self, name: str, collections: Sequence[str], mode: str) -> Choice | None:
        """Return what is saved of a tensor in this step; None if nothing."""
        key = (name, mode, *collections)
        if key not in self._choices:
            rules = [rule for rule in self._due if rule.chooses(name, collections, mode)]
            self._choices[key] = Choice(rules) if rules else None
            if len(self._names) < MAX_NAMES:
                self._names.add(name)
        return self._choices[key]

    def problems(self) -> Iterator[str]:
        """Yield a line for each pattern and collection that matched no tensor."""
        from difflib import get_close_matches

        for rule in self._rules:
            for word in sorted(rule.unmatched):
                similar = get_close_matches(word, sorted(self._names), MAX_NEAR, 0.4)
                advice = f"; names near to it: {', '.join(similar)}" if similar else ""
                if word in rule.collections:
                    yield f"--tensors: no tensor of the collection {word} was seen in these steps"
                else:
                    yield (
                        f"--tensors: no name matches {word!r}{advice}"
                        if word
                        else "--tensors: no tensor was seen in these steps"
                    )
