"""PyTorch: the reason why an operator's results are not finite, as its arguments show it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch.nn import functional

from reprokit.agent.operators.pytorch.explain import OperatorExplainer

pytestmark = pytest.mark.torch

INF = float("inf")
Computation = Callable[[torch.Tensor], torch.Tensor]  # of eight rows of four numbers between 0.1 and 1


def ctc(targets: list[list[int]], lengths: list[int], steps: int = 3, joined: bool = False) -> Computation:
    numbers = torch.tensor([label for target in targets for label in target] if joined else targets)
    given = torch.full((len(targets),), steps)

    def compute(x: torch.Tensor) -> torch.Tensor:
        probabilities = x[:steps, None].expand(steps, len(targets), 4).log_softmax(-1)
        return functional.ctc_loss(probabilities, numbers, given, torch.tensor(lengths))

    return compute


def labels(x: torch.Tensor, number: int) -> torch.Tensor:
    return torch.full((len(x),), number)


IS_NOT_FINITE = {
    "ctc": (
        ctc([[1, 2], [2, 2]], [2, 2], 2),
        "the target of sample 1 (2 labels, 3 with blanks between repeats) does not",
    ),
    "ctc joined": (
        ctc([[1], [1, 2, 3, 1]], [1, 4], joined=True),
        "the target of sample 1 (4 labels) does not fit into 3",
    ),
    "ctc several": (
        ctc([[1, 1], [2, 2]], [2, 2], 2),
        "the target of sample 0 (2 labels, 3 with blanks between repeats)",
    ),
    "deviation": (lambda x: x[:1].std(0).sum(), "the standard deviation of 1 value divides by n - 1 = 0 (correction=0"),
    "variance": (lambda x: x[0, 0].var(), "the variance of 1 value divides by n - 1 = 0 (correction=0 divides by n)"),
    "correction": (lambda x: x.std(1, correction=4).sum(), "the standard deviation of 4 values divides by n - 4 = 0"),
    "both": (lambda x: torch.var_mean(x[:, :1], dim=1)[0].sum(), "the variance of 1 value divides by n - 1 = 0"),
    "mean": (lambda x: x[x > 2].mean(), "the mean of no values is 0/0, which is NaN"),
    "loss of nothing": (lambda x: functional.mse_loss(x[:0], x[:0]), "the loss is the mean over no values: 0/0, which"),
    "ignored": (
        lambda x: functional.cross_entropy(x, labels(x, -100)),
        "all 8 labels are ignore_index (-100): the loss",
    ),
    "of none": (
        lambda x: functional.cross_entropy(x[:0], labels(x[:0], 0)),
        "the loss is the mean over no labels: 0/0",
    ),
    "weights": (
        lambda x: functional.cross_entropy(x, labels(x, 1), weight=torch.tensor([1.0, 0, 1, 1])),
        "the classes of all 8 labels have the weight 0: their weighted mean is 0/0",
    ),
    "images": (
        lambda x: functional.cross_entropy(x.view(2, 4, 2, 2), torch.full((2, 2, 2), 7), ignore_index=7),
        "all 8 labels are ignore_index (7): the loss is the mean over none, 0/0",
    ),
    "masked": (
        lambda x: x.masked_fill((torch.arange(8) == 3)[:, None], -INF).log_softmax(1).mean(),
        "log_softmax of nothing but -inf is NaN, as where a mask leaves nothing of a row; 1 of 8 rows is such",
    ),
    "logit": (lambda x: x.gt(0.5).float().logit().sum(), "logit of 0 or 1 is infinite; 32 of 32 inputs are"),
    "outside": (lambda x: (x + 1).logit().sum(), "logit of a number outside of 0 to 1 is NaN; 32 of 32 inputs are"),
    "erfinv": (lambda x: (x > 0.0).float().erfinv().sum(), "erfinv is infinite at 1 and -1, and NaN beyond; 32 inputs"),
    "rows": (
        lambda x: functional.layer_norm(x * 0 + 1, (4,), eps=0).sum(),
        "eps is 0, and the values of a row are equal",
    ),
    "determinant": (
        lambda x: torch.logdet(x[:4] * 0 + 1),
        "the matrix is singular: the logarithm of its determinant, 0",
    ),
    "sum": (lambda x: x[:, :0].logsumexp(1).sum(), "logsumexp of no values is -inf, the logarithm of 0"),
}


def words(compute: Computation) -> str:
    torch.manual_seed(0)
    explainer = OperatorExplainer(torch)
    explainer.begin()
    try:
        result = compute(torch.rand(8, 4) * 0.9 + 0.1)
    finally:
        explainer.end()
    assert not torch.isfinite(result)
    assert [*explainer.problems()] == []
    found: str = explainer.cause([result], None)["words"]
    return found


@pytest.mark.parametrize("what", IS_NOT_FINITE)
def test_the_reason_is_that_of_the_field(what: str) -> None:
    compute, expected = IS_NOT_FINITE[what]
    assert words(compute).startswith(expected)


@pytest.mark.parametrize("compute", [lambda x: (x.half() * 60000).sum(), lambda x: (x * 1e38 * 1e2).sum()])
def test_an_overflow_is_still_one(compute: Computation) -> None:
    assert "overflows float" in words(compute)


def test_infinities_of_operators_that_do_not_add_are_no_overflow() -> None:
    assert words(lambda x: torch.special.zeta(x * 0 + 1, x).sum()).startswith("aten::special_zeta made infinities of")
