"""Decides which tensors are saved: the rules of the plan, by name, collection, step and mode."""

from __future__ import annotations

import re

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from typing import Any

TRAIN, EVAL, PREDICT, GLOBAL = "train", "eval", "predict", "global"
MAX_NAMES = 10_000  # that are remembered to name those near to a pattern that matched none
MAX_NEAR = 3


class Choice:
    """What is saved of a tensor: all of it, or what its numbers come to."""

    def __init__(self, rules: Sequence[TensorMatcher]) -> None:
        self.is_full = any(not rule.reductions for rule in rules)
        self.reductions = tuple(dict.fromkeys(name for rule in rules for name in rule.reductions))


class TensorMatcher:
    """One rule: a tensor is chosen if one of its collections is named, or a pattern is found in its name."""

    def __init__(self, rule: Mapping[str, Any]) -> None:
        self.collections = frozenset(rule["collections"])
        self.patterns = [re.compile(pattern) for pattern in rule["patterns"]]
        self.modes = frozenset(rule["modes"])
        self.reductions: tuple[str, ...] = tuple(rule["reductions"])
        self._spans = [(span["first"], span["last"], span["every"]) for span in rule["steps"]]
        self.unmatched = {*self.collections, *rule["patterns"]}  # what has chosen nothing so far

    def is_due(self, step: int) -> bool:
        """Return whether it is about this step."""
        for first, last, every in self._spans:
            if first <= step and (last is None or step <= last) and not (step - first) % every:
                return True
        return False

    def chooses(self, name: str, collections: Sequence[str], mode: str) -> bool:
        """Return whether it is about this tensor."""
        if not (mode in self.modes or GLOBAL in self.modes):
            return False
        by = self.collections.intersection(collections)
        by = by.union(pattern.pattern for pattern in self.patterns if pattern.search(name))
        self.unmatched -= by
        return bool(by)


class TensorRules:
    """All rules, and those of the present step."""

    def __init__(self, rules: Sequence[Mapping[str, Any]]) -> None:
        self._rules = [TensorMatcher(rule) for rule in rules]
        self._known: dict[Any, Choice | None] = {}
        self._due: tuple[TensorMatcher, ...] = ()
        self._names: set[str] = set()
        self.begin(0)

    def are_due(self, step: int) -> bool:
        """Return whether any rule is about a step."""
        return any(rule.is_due(step) for rule in self._rules)

    def begin(self, step: int) -> None:
        """Note which step is under way."""
        due = tuple([rule for rule in self._rules if rule.is_due(step)])
        if due != self._due:
            self._due, self._known = due, {}

    def wants(self, *collections: str, ever: bool = False) -> bool:
        """Return whether tensors of one of these collections may be saved, in this step or ever."""
        rules = self._rules if ever else self._due
        return any(rule.patterns or not rule.collections.isdisjoint(collections) for rule in rules)

    def asks_for(self, name: str) -> bool:
        """Return whether a rule of this step names a collection of one tensor, be it by a pattern, beside `all`."""
        return any(
            name in rule.collections or any(pattern.pattern and pattern.search(name) for pattern in rule.patterns)
            for rule in self._due
        )

    def choice(self, name: str, collections: Sequence[str], mode: str) -> Choice | None:
        """Return what of a tensor is saved in this step, if anything."""
        key = name, mode
        if key not in self._known:
            rules = [rule for rule in self._due if rule.chooses(name, collections, mode)]
            self._known[key] = Choice(rules) if rules else None
            if len(self._names) < MAX_NAMES:
                self._names.add(name)
        return self._known[key]

    def problems(self) -> Iterator[str]:
        """Yield a line for each pattern and collection that has chosen nothing."""
        from difflib import get_close_matches

        for rule in self._rules:
            for word in sorted(rule.unmatched):
                near = get_close_matches(word, sorted(self._names), MAX_NEAR, 0.4)
                advice = f"; names near to it: {', '.join(near)}" if near else ""
                if word in rule.collections:
                    yield f"--tensors: no tensor of the collection {word} was seen in these steps"
                else:
                    yield (
                        f"--tensors: no name matches {word!r}{advice}"
                        if word
                        else "--tensors: no tensor was seen in these steps"
                    )
