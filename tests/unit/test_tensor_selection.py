"""What --tensors asks for, and what is said where it cannot be meant."""

from __future__ import annotations

from pathlib import Path

import pytest

from reprokit.core.errors import UsageError
from reprokit.model.question import StepRange, StepSpan
from reprokit.model.tensor_selection import selection

BUFFER = 1 << 20


def test_words_become_collections_patterns_steps_modes_and_reductions() -> None:
    found = selection(["weights,losses fc[12]{1,2} 100-200:10,7 mode=train,eval reduce=l2,abs_max"], BUFFER)
    (rule,) = found.rules
    assert (rule.collections, rule.patterns) == (("weights", "losses"), ("fc[12]{1,2}",))
    assert rule.steps == (StepSpan(first=100, last=200, every=10), StepSpan(first=7, last=7))
    assert (rule.modes, rule.reductions) == (("train", "eval"), ("l2", "abs_max"))
    assert found.steps == StepRange(first=7, last=200)


@pytest.mark.parametrize(
    ("text", "steps"),
    [
        ("all", StepSpan()),
        ("all every=10", StepSpan(every=10)),
        ("all 5-", StepSpan(first=5)),
        ("all 5-:3", StepSpan(first=5, every=3)),
        ("all steps=0-9", StepSpan(last=9)),
    ],
)
def test_steps(text: str, steps: StepSpan) -> None:
    found = selection([text], BUFFER)
    assert found.rules[0].steps == (steps,)
    assert found.steps.last == steps.last


def test_rules_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "rules.toml"
    path.write_text(
        '[[tensors]]\nselect = ["gradients"]\nsteps = "every=2"\n\n[[tensors]]\nselect = ["conv"]\nmode = "eval"\n'
    )
    first, second = selection([str(path)], BUFFER).rules
    assert first.collections == ("gradients",)
    assert (second.patterns, second.modes) == (("conv",), ("eval",))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("wieghts", "there is no collection 'wieghts'; did you mean weights?"),
        ("fc(1", "is no regular expression"),
        ("weights 9-3", "end before they begin"),
        ("weights steps=1..3", "are no steps"),
        ("weights steps=190:195", "'190:195' is 190-195, or 190-:195 for each 195th step; write one"),
        ("weights 190:195", "write one"),
        ("weights mode=trian", "there is no mode 'trian'; there are train"),
        ("weights reduce=avg", "there is no reduction 'avg'"),
        ("weights 1 2", "gives steps twice"),
        ("every=3", "name a collection"),
        ("missing.toml", "missing.toml: No such file or directory"),
    ],
)
def test_what_cannot_be_meant_is_said_in_one_line(text: str, said: str) -> None:
    with pytest.raises(UsageError) as error:
        selection([text], BUFFER)
    assert said in str(error.value)
    assert "\n" not in str(error.value)


def test_a_file_with_an_error_names_the_place(tmp_path: Path) -> None:
    path = tmp_path / "rules.toml"
    path.write_text('[[tensors]]\nselect = ["weights"]\nstep = "3"\n')
    with pytest.raises(UsageError, match="unknown field `step`"):
        selection([str(path)], BUFFER)
