"""Resolves rules as users name them: ID[=PARAM=VALUE,...], auto, FILE.py[:CLASS], or FILE.toml with a list."""

from __future__ import annotations

import ast
import dataclasses
import difflib
import importlib.util
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from reprokit.core import toml_text
from reprokit.core.bounds import read_whole
from reprokit.core.errors import BadRule, reason
from reprokit.rules import activations, boosting, conduct, data, losses, weights
from reprokit.saved_tensors.trial import TensorTrial

AUTOMATIC = (  # rules that apply to every training; the others are matters of opinion
    weights.ExplodingTensor,
    weights.FiniteExplosion,
    weights.VanishingGradient,
    weights.AllZero,
    weights.UnchangedTensor,
    weights.WeightUpdateRatio,
    activations.DyingReLU,
    activations.SaturatedActivation,
    losses.LossNotDecreasing,
    losses.Overfit,
    losses.Overtraining,
    losses.Underfitting,
    losses.StalledTraining,
    losses.DoubleSoftmax,
    data.ClassImbalance,
    data.CheckInputImages,
    data.NLPSequenceRatio,
    conduct.RankWeightsDiverge,
    conduct.GradientsNeverZeroed,
    conduct.EvaluationWithDropout,
    conduct.TrainedInEvalMode,
)
ASKED_FOR = (
    weights.PoorWeightInitialization,
    weights.TensorVariance,
    data.Confusion,
    boosting.TreeDepth,
    boosting.FeatureImportanceOverweight,
)
RULES: dict[str, type] = {rule.__name__: rule for rule in (*AUTOMATIC, *ASKED_FOR)}
HOOKS = ("invoke_at_step", "invoke_at_evaluation", "invoke_when_idle")
OWN = re.compile(r"(.+\.py)(?::([A-Za-z_]\w*))?")
AUTO, SUFFIX = "auto", ".toml"
MAX_FILE = 1 << 20  # bytes
ADVICE = "name a file of rules"


class RuleList(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The contents of a TOML file: rules = ["VanishingGradient=threshold=1e-6", "own.py:LargeGradient"]"""

    rules: list[str]


def chosen(specs: Sequence[str], trial: TensorTrial) -> dict[str, Any]:
    """Return the requested rules by name; without a request, those that apply to every training."""
    return {name: rule for spec in listed(specs or [AUTO]) for name, rule in _instances(spec, trial)}


def listed(specs: Sequence[str]) -> Iterator[str]:
    """Yield the requested rules; `auto` and TOML files are replaced by the rules that they stand for."""
    for spec in specs:
        if spec == AUTO:
            yield from (rule.__name__ for rule in AUTOMATIC)
        elif spec.endswith(SUFFIX):
            yield from toml_text.read(Path(spec), RuleList, MAX_FILE, BadRule, ADVICE).rules
        else:
            yield spec


def checked(specs: Sequence[str]) -> tuple[str, ...]:
    """Return the requested rules; raises BadRule for errors that are visible without executing a rule."""
    rule_specs = tuple(listed(specs))
    for spec in rule_specs:
        head, parameters = _split(spec)
        if own := OWN.fullmatch(head):
            try:
                ast.parse(read_whole(Path(own[1]), MAX_FILE, BadRule, ADVICE).decode())
            except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
                raise BadRule(f"{own[1]} is no Python: {reason(error)}") from None
        else:
            _typed(_built_in(head), parameters)
    return rule_specs


def known(name: str) -> str | None:
    """Return a rule's name for any spelling (VanishingGradient, vanishing-gradient); None if there is no such rule."""
    spelled = {name_of_rule.lower(): name_of_rule for name_of_rule in RULES}
    return spelled.get(re.sub("[-_]", "", name).lower())


def _instances(spec: str, trial: TensorTrial) -> list[tuple[str, Any]]:
    head, parameters = _split(spec)
    own = OWN.fullmatch(head)
    kinds = _own_classes(Path(own[1]), own[2], trial.path) if own else [_built_in(head)]
    try:
        return [(kind.__name__, kind(trial, **(parameters if own else _typed(kind, parameters)))) for kind in kinds]
    except (TypeError, ValueError) as error:
        raise BadRule(f"{spec}: {reason(error)}") from None
    except Exception as error:  # raised by the user's code
        raise BadRule(f"{spec}: {type(error).__name__}: {reason(error)}") from error


def _split(spec: str) -> tuple[str, dict[str, Any]]:
    head, _, rest = spec.partition("=")
    return head, dict(_parameter(spec, text) for text in rest.split(",") if rest)


def _built_in(head: str) -> Any:
    name = known(head)
    if name is None:
        near_names = difflib.get_close_matches(head, RULES, 3, 0.3)
        advice = f"near ones: {', '.join(near_names)}" if near_names else f"there are {', '.join(RULES)}"
        raise BadRule(f"there is no rule {head!r}; {advice}; FILE.py:CLASS is one of your own")
    return RULES[name]


def _parameter(spec: str, text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not equals or not name.isidentifier():
        raise BadRule(f"{spec}: {text!r} is not PARAM=VALUE")
    for kind in (int, float):
        try:
            return name, kind(value)
        except ValueError:
            continue
    return name, {"true": True, "false": False}.get(value.lower(), value)


def _typed(kind: Any, parameters: dict[str, Any]) -> dict[str, Any]:
    """Return the parameters of a built-in rule, converted to the types of their defaults."""
    fields = [field for field in dataclasses.fields(kind) if field.name != "trial" and not field.name.startswith("_")]
    defaults: dict[str, Any] = {field.name: field.default for field in fields}
    for name, value in parameters.items():
        if name not in defaults:
            raise BadRule(f"{kind.__name__} has no parameter {name!r}; it has {', '.join(defaults)}")
        if isinstance(defaults[name], bool) != isinstance(value, bool) or (
            isinstance(value, str) and not isinstance(defaults[name], str)
        ):
            raise BadRule(f"{kind.__name__}: {name}={value} is not of the kind of {defaults[name]}")
    return {name: type(defaults[name])(value) for name, value in parameters.items()}


def _own_classes(path: Path, name: str | None, run: Path) -> list[Any]:
    """Return one or all rule classes of a user's file; refuses files in the run directory, which are never executed."""
    real = Path(os.path.realpath(path))
    if real.is_relative_to(os.path.realpath(run)):
        raise BadRule(f"{path} lies in the run directory, from where nothing is executed; copy it elsewhere")
    specification = importlib.util.spec_from_file_location(f"reprokit_rule_{real.stem}", real)
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    try:
        specification.loader.exec_module(module)
    except Exception as error:  # whatever the user's file does
        raise BadRule(f"{path} cannot be imported: {type(error).__name__}: {reason(error)}") from error
    own = [value for value in vars(module).values() if getattr(value, "__module__", "") == module.__name__]
    classes = [value for value in (own if name is None else [getattr(module, name, None)]) if _is_rule(value)]
    if not classes:
        raise BadRule(f"{path} has no class{f' {name}' if name else ''} with a method invoke_at_step(step)")
    return classes


def _is_rule(value: object) -> bool:
    return isinstance(value, type) and any(hasattr(value, hook) for hook in HOOKS)
