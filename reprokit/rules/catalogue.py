"""The rules by name, and what users ask for: ID[=PARAM=VALUE,...], or FILE:CLASS with a rule of their own."""

from __future__ import annotations

import dataclasses
import difflib
import importlib.util
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from reprokit.errors import BadRule, reason
from reprokit.rules import activations, data, losses, weights
from reprokit.saved_tensors.trial import TensorTrial

AUTOMATIC = (  # which hold for every training; the others are matters of opinion
    weights.ExplodingTensor,
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
    data.ClassImbalance,
    data.CheckInputImages,
    data.NLPSequenceRatio,
)
ASKED_FOR = (
    weights.PoorWeightInitialization,
    weights.TensorVariance,
    data.Confusion,
)
RULES: dict[str, type] = {rule.__name__: rule for rule in (*AUTOMATIC, *ASKED_FOR)}
HOOKS = ("invoke_at_step", "invoke_at_evaluation", "invoke_when_idle")
OWN = re.compile(r"(.+\.py):([A-Za-z_]\w*)")


def chosen(specs: Sequence[str], trial: TensorTrial) -> dict[str, Any]:
    """Return the rules that are asked for, by name; without any, those that hold for every training."""
    return dict(_made(spec, trial) for spec in specs or [rule.__name__ for rule in AUTOMATIC])


def known(name: str) -> str | None:
    """Return the name of a rule however it is spelled: VanishingGradient, vanishing-gradient."""
    spelled = {one.lower(): one for one in RULES}
    return spelled.get(re.sub("[-_]", "", name).lower())


def _made(spec: str, trial: TensorTrial) -> tuple[str, Any]:
    head, _, rest = spec.partition("=")
    parameters = dict(_parameter(spec, text) for text in rest.split(",") if rest)
    own = OWN.fullmatch(head)
    name = own[2] if own else known(head)
    if name is None:
        near = difflib.get_close_matches(head, RULES, 3, 0.3)
        raise BadRule(
            f"there is no rule {head!r}; near ones: {', '.join(near or RULES)}; FILE.py:CLASS is one of your own"
        )
    kind = _own_class(Path(own[1]), name, trial.path) if own else RULES[name]
    try:
        return name, kind(trial, **(parameters if own else _typed(kind, parameters)))
    except (TypeError, ValueError) as error:
        raise BadRule(f"{spec}: {reason(error)}") from None
    except Exception as error:  # of somebody else's code
        raise BadRule(f"{spec}: {type(error).__name__}: {reason(error)}") from error


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
    """Return parameters of a rule of ours, with the types of their defaults."""
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


def _own_class(path: Path, name: str, run: Path) -> Any:
    """Return a class from a file of the user's: nothing in a run directory is ever executed."""
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
    found = getattr(module, name, None)
    if not (isinstance(found, type) and any(hasattr(found, hook) for hook in HOOKS)):
        raise BadRule(f"{path} has no class {name} with a method invoke_at_step(step)")
    return found
