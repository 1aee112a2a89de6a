"""PyTorch: the operator that made of finite values something that is not, its line and what is said of it."""

from __future__ import annotations

import copy
import inspect
import io
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from reprokit.agent.operators.pytorch.explain import HANDED_ON, OWN_MODE, OperatorExplainer
from reprokit.agent.pytorch.decisions import replace_targets
from reprokit.agent.pytorch.tensor_names import TensorNames

pytestmark = pytest.mark.torch

ROWS = 8
Case = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def square_root_times_zero(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    x = x * (torch.arange(ROWS) != 3)[:, None]
    length = torch.sqrt(((x * weight) ** 2).sum(1))  # here
    return (length * (length > 0)).mean()


def logarithm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    x = x * (torch.arange(ROWS) != 3)[:, None]
    return -torch.log(x * weight).mean()  # here


def logarithm_left_out(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    x = (x * weight) * (torch.arange(ROWS) != 3)[:, None]
    logarithms = torch.log(x)  # here
    return torch.where(x > 0, logarithms, torch.zeros(())).mean()


def masked_mean(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    mask = (torch.arange(ROWS) != 3)[:, None].float().expand(ROWS, 4)
    total = (x * weight * mask).sum(1)
    return (total / mask.sum(1)).mean()  # here


def half_precision(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    with torch.autocast("cpu", dtype=torch.float16):
        out = (x * 300) @ torch.diag(weight)
        squares = out * out  # here
        return squares.mean().float()


def bfloat(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = (x * 1e20) @ torch.diag(weight)
        return (out * out).mean().float()  # here


def softmax_by_hand(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    exponentials = torch.exp(x * weight * 100)  # here
    return (exponentials / exponentials.sum(1, keepdim=True)).pow(2).mean()


def softmax_in_place(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    logits = x * weight * 100
    logits.exp_()  # here
    return logits.div(logits.sum(1, keepdim=True)).pow(2).mean()


def masked_softmax(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    mask = (torch.arange(ROWS) == 3)[:, None].expand(ROWS, 4)
    scores = (x * weight).masked_fill(mask, float("-inf"))
    return torch.softmax(scores, 1).pow(2).mean()  # here


def square_root(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    x = x * (torch.arange(ROWS) != 3)[:, None]
    return torch.sqrt((x * weight).sum(1)).mean()  # here


def negative_root(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return torch.sqrt(x * weight - 2).mean()  # here


def divided_by_a_count(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    count = int((x > 2).sum())
    return (x * weight).relu().sum() / count  # here


def padding_divided_by_a_count(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    count = int((x > 2).sum())
    return ((x * (x > 0.5)).detach() / count).sum() * weight.sum()  # here


CASES: list[tuple[Case, str, str, str]] = [
    (square_root_times_zero, "backward", "SqrtBackward0", "sqrt of 0 has an infinite gradient; 1 of 8 inputs is 0"),
    (logarithm, "forward", "aten::log", "log of 0 is infinite; 4 of 32 inputs are 0"),
    (logarithm_left_out, "backward", "LogBackward0", "log of 0 has an infinite gradient; 4 of 32 inputs are 0"),
    (masked_mean, "forward", "aten::div", "0/0 is NaN; 1 of 8 divisors is 0"),
    (divided_by_a_count, "forward", "aten::div", "a division by 0 is infinite; 1 of 1 divisors is 0"),
    (padding_divided_by_a_count, "forward", "aten::div", "0/0 is NaN; 1 of 1 divisors is 0"),
    (half_precision, "forward", "aten::mul", "aten::mul overflows float16, whose largest number is 65504"),
    (bfloat, "forward", "aten::mul", "aten::mul overflows bfloat16, whose largest number is 3.38953e+38"),
    (softmax_by_hand, "forward", "aten::exp", "exp overflows float32 above 88.72; the largest input is 9"),
    (softmax_in_place, "forward", "aten::exp_", "exp overflows float32 above 88.72; the largest input is 9"),
    (masked_softmax, "forward", "aten::_softmax", "softmax of nothing but -inf is NaN"),
    (square_root, "backward", "SqrtBackward0", "sqrt of 0 has an infinite gradient; 1 of 8 inputs is 0"),
    (negative_root, "forward", "aten::sqrt", "sqrt of a negative number is NaN; 32 of 32 inputs are negative"),
]


def explained(case: Case, known: list[tuple[str, torch.Tensor]] | None = None) -> dict[str, Any]:
    """What is found out about the loss of a case, or about the gradient of its weight."""
    explainer, target = watched(case, known)
    found = explainer.cause([target], ROWS)
    assert found is not None
    return found


def watched(case: Case, known: list[tuple[str, torch.Tensor]] | None = None) -> tuple[OperatorExplainer, torch.Tensor]:
    """Who has watched a case, and what of it is not finite."""
    torch.manual_seed(0)
    weight = nn.Parameter(torch.ones(4))
    explainer = OperatorExplainer(torch)
    explainer.set_names(TensorNames([], []), known or [])
    explainer.begin()
    try:
        loss = case(torch.rand(ROWS, 4) * 0.9 + 0.1, weight)
        loss.backward()
    finally:
        explainer.end()
    target = weight.grad if torch.isfinite(loss) else loss
    assert target is not None
    assert not torch.isfinite(target).all()
    return explainer, target


def line_of(case: Case) -> int:
    """The line that is marked."""
    lines, first = inspect.getsourcelines(case)
    return first + next(number for number, line in enumerate(lines) if "# here" in line)


@pytest.mark.parametrize(("case", "phase", "operation", "words"), CASES, ids=[case[0].__name__ for case in CASES])
def test_the_operator_is_named(case: Case, phase: str, operation: str, words: str) -> None:
    found = explained(case)
    assert (found["phase"], found["operation"]) == (phase, operation)
    assert found["words"].startswith(words)
    assert found["where"][0] == [__file__, line_of(case), case.__name__]


def test_statistics_are_told_of_inputs_and_results() -> None:
    found = explained(logarithm)
    (told,) = found["inputs"]
    assert (told["dtype"], told["shape"], told["zeros"], told["nonfinite"]) == ("float32", [ROWS, 4], 4, 0)
    assert found["outputs"][0]["nonfinite"] == 4
    assert found["first_nonfinite"] == {"output": 0, "index": [3, 0], "value": "-inf"}
    assert found["words"].endswith("4 of 32 results are not finite, in sample 3")


def test_what_a_node_kept_of_the_forward_pass_is_told() -> None:
    kept = {one["name"]: one for one in explained(square_root)["inputs"]}
    assert kept["saved result"]["zeros"] == 1
    assert explained(square_root)["gradient_of"] == "aten::sqrt"


def test_a_batch_that_was_not_finite_is_named() -> None:
    torch.manual_seed(0)
    x = torch.rand(ROWS, 4)
    x[2, 1] = float("nan")
    found = explained(lambda _, weight: (x * weight).mean(), [("the batch", x)])
    assert found["words"] == "the batch was not finite before any operator worked on it: 1 of 32 elements"


def test_what_no_operator_made_is_said_to_come_from_elsewhere() -> None:
    stranger = torch.full((4,), float("nan"))
    found = explained(lambda x, weight: (x * weight + stranger).mean())
    assert found["operation"] == "aten::add"
    assert "no operator of this process made it" in found["words"]


def test_a_number_of_the_script_that_is_not_finite_is_told() -> None:
    found = explained(lambda x, weight: (x * weight * float("inf")).mean())
    assert found["words"] == "aten::mul was given a number that is not finite, which the script has made"
    assert found["where"][0][2] == "<lambda>"


def test_the_way_back_leads_past_memory_that_no_operator_wrote() -> None:
    """As that of DDP's buckets, which a collective writes to."""

    def through_a_bucket(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        bucket = torch.zeros(())
        bucket.numpy()[...] = float(torch.log(x.detach() * 0).sum())
        return (x * weight).mean() + bucket

    assert explained(through_a_bucket)["words"].startswith("log of 0 is infinite")


def test_the_layer_is_named() -> None:
    class Norm(nn.Module):  # type: ignore[misc]
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x / x.pow(2).sum(1, keepdim=True).sqrt()

    model = nn.Sequential(nn.Linear(4, 4, bias=False), Norm())
    explainer = OperatorExplainer(torch)
    explainer.set_names(TensorNames([model], []), [])
    explainer.begin()
    try:
        loss = model(torch.zeros(ROWS, 4)).sum()
        loss.backward()
    finally:
        explainer.end()
    found = explainer.cause([loss], ROWS)
    assert found is not None
    assert (found["layer"], found["operation"]) == ("1", "aten::div")


def pickled(x: torch.Tensor) -> torch.Tensor:
    loaded: torch.Tensor = pickle.loads(pickle.dumps(x))
    return loaded


def saved(x: torch.Tensor) -> torch.Tensor:
    file = io.BytesIO()
    torch.save({"values": x}, file)
    file.seek(0)
    values: torch.Tensor = torch.load(file)["values"]
    return values


def of_a_storage(x: torch.Tensor) -> torch.Tensor:
    x.storage(), x.untyped_storage(), len(x.untyped_storage().tolist())
    return torch.empty(0).set_(x.untyped_storage().clone(), 0, x.shape)


def quantized(x: torch.Tensor) -> torch.Tensor:
    torch.quantize_per_tensor(x.nan_to_num(), 0.1, 0, torch.quint8).dequantize()
    return x


def on_meta(x: torch.Tensor) -> torch.Tensor:
    (torch.rand(3, 3, device="meta") @ torch.rand(3, 3, device="meta")).sum()
    return x


def cleared(x: torch.Tensor) -> torch.Tensor:
    torch._foreach_zero_([x.clone()])  # returns None
    return torch._foreach_mul([x, x], 1.0)[0]


PAST_OPERATORS = [pickled, saved, lambda x: torch.from_numpy(x.numpy())]
KINDS = [
    copy.copy,
    copy.deepcopy,
    of_a_storage,
    quantized,
    on_meta,
    cleared,
    lambda x: x.to_sparse().coalesce().to_dense(),
    lambda x: (x.to_sparse_csr() * 2).to_dense(),
    lambda x: x.to_mkldnn().to_dense() if torch.backends.mkldnn.is_available() else x,
    lambda x: x.view(torch.int32).clone().view(torch.float32),
    torch.func.vmap(lambda row: row * 2),
]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("hand_on", [*KINDS, *PAST_OPERATORS])
def test_the_origin_is_found_whatever_the_script_does_with_tensors(hand_on: Callable[..., torch.Tensor]) -> None:
    def case(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        x = x * (torch.arange(ROWS) != 3)[:, None]
        return (hand_on(torch.log(x)) * weight).mean()  # here

    explainer, target = watched(case)
    found = explainer.cause([target], ROWS)
    assert (found["operation"], found["where"][0][1]) == ("aten::log", line_of(case))
    assert list(explainer.problems()) == ([HANDED_ON.format("aten::log")] if hand_on in PAST_OPERATORS else [])


@pytest.mark.filterwarnings("ignore")
def test_what_cannot_be_inspected_is_named_and_harms_nothing() -> None:
    def case(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        assert torch.nested.nested_tensor([x, x[:1]]).unbind()[1].shape == (1, 4)
        return torch.log(x * 0 * weight).mean()  # here

    explainer, target = watched(case)
    assert explainer.cause([target], ROWS)["where"][0][1] == line_of(case)
    (problem,) = explainer.problems()
    assert problem.startswith("calls of 1 operator could not be inspected: aten::_nested_tensor_from_tensor_list (")


def test_the_agent_s_own_mode_which_passes_on_losses_hides_no_operator() -> None:
    replace_targets(torch, lambda target: target)
    try:
        found = explained(logarithm)
    finally:
        torch.overrides._pop_mode()
    assert (found["operation"], found["where"][0][1]) == ("aten::log", line_of(logarithm))


def test_operators_that_a_mode_of_the_script_hides_are_no_finding() -> None:
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False):
        explainer, target = watched(logarithm)
    found = explainer.cause([target], ROWS)
    assert (found["operation"], found["words"]) == (None, OWN_MODE)
    assert list(explainer.problems()) == [OWN_MODE]
