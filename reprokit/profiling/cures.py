"""Proposes cures for findings: those of known facts, with the values that patches need, and general ones."""

from __future__ import annotations

from collections.abc import Collection

from reprokit.knowledge import Fact
from reprokit.run_files.findings import Confirmed, Cure

REPEATS = "repeats"  # outcome for a number of threads with which the bits repeated, unlike with the present number
OPERATOR = "torch-operator="
LOWERED = {"aten::index_put", "aten::index_put_"}  # Inductor lowers index_add and others to these
SINGLE_THREAD = Cure("threads=1", "compute with one thread", "as much slower as it has threads")


def of_fact(fact: Fact | None, subject: str) -> list[Cure]:
    """Return the mitigations of a fact, in its order; a patch for one operator gets its name."""
    mitigations = () if fact is None else fact.mitigation
    about = {"torch-operator": OPERATOR + subject, "": None}
    return [
        Cure(about.get(mitigation.patch, mitigation.patch), mitigation.does, mitigation.cost)
        for mitigation in mitigations
    ]


def of_unknown_operator(framework: str, subject: str, device: str, confirmed: Confirmed | None) -> list[Cure]:
    """Return cures to try for an operator without a known fact."""
    offered = []
    repeats = [number for number, outcome in (confirmed.threads if confirmed else {}).items() if outcome == REPEATS]
    if repeats:
        number = min(repeats, key=lambda text: (len(text), text))
        offered.append(Cure(f"threads={number}", f"compute with {number} threads", "measured: with it the bits repeat"))
    is_custom = framework == "pytorch" and not subject.startswith(("aten::", "torch."))
    if framework == "pytorch" and not is_custom:
        offered.append(Cure("torch-deterministic", "ask PyTorch for deterministic algorithms", "some are slower"))
    if device == "cpu" and not repeats and (confirmed is None or not confirmed.threads):
        offered.append(SINGLE_THREAD)
    offered.append(Cure(None, "replace it by an operator that repeats, or ask its author for one", ""))
    return offered


def of_compiled(framework: str, fact: Fact | None, within: Collection[str]) -> list[Cure]:
    """Return cures to try for compiled code that consists of these operators."""
    offered = of_fact(fact, "")
    if not LOWERED.intersection(within):
        offered = [cure for cure in offered if not (cure.patch or "").startswith(OPERATOR) or _operator(cure) in within]
    if not offered and framework == "pytorch":
        offered = [Cure("torch-inductor", "ask the compiler for deterministic code", ""), SINGLE_THREAD]
    elif not offered and framework in ("tensorflow", "jax"):
        offered = [Cure("xla-deterministic", "ask XLA for deterministic code", "")]
    return [*offered, Cure(None, "run it without the compiler", "slower")]


def _operator(cure: Cure) -> str:
    return (cure.patch or "").removeprefix(OPERATOR)
