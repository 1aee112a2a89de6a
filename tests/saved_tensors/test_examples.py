"""The examples of asking a run: unmodified trainings, and scripts that read nothing but reprokit.trial."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import Reprokit

ROOT = Path(__file__).parent.parent.parent
EXAMPLES = ROOT / "examples" / "asked"

pytestmark = [pytest.mark.slow, pytest.mark.torch]


def asked(reprokit: Reprokit, training: list[str], *question: str) -> None:
    """Record a training, then ask for its tensors."""
    name, *arguments = training
    recorded = reprokit.run("record", "-o", "run", "--", sys.executable, str(EXAMPLES / name), *arguments)
    assert recorded.returncode == 0, recorded.stderr
    done = reprokit.run("ask", "run", *question)
    assert done.returncode == 0, done.stderr
    assert "which the trail does not see, are the same in a second replay" in done.stdout


def example(reprokit: Reprokit, name: str, *arguments: str) -> list[str]:
    """Run an example where the runs are, and return the lines that it printed."""
    command = [sys.executable, str(EXAMPLES / name), *arguments]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=reprokit.directory, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.extended
def test_rare_classes_are_found(reprokit: Reprokit) -> None:
    asked(reprokit, ["imbalanced_digits.py"], "labels,predictions", "--mode", "train,eval")
    _, *lines = example(reprokit, "class_imbalance.py", "run")
    assert [line.split()[0] for line in lines if line.endswith("rare")] == ["3", "8"]
    assert [line.split()[1] for line in lines] == ["600", "600", "600", "36", "600", "600", "600", "600", "48", "600"]


@pytest.mark.extended
def test_a_network_is_pruned_round_by_round(reprokit: Reprokit) -> None:
    lines = example(reprokit, "pruning.py", "3")
    found = [re.fullmatch(r"round \d: widths (.*) accuracy (.*) parameters (\d+)", line) for line in lines]
    rounds = [(line[1], float(line[2]), int(line[3])) for line in found if line]
    assert [widths for widths, _, _ in rounds] == ["[24, 24]", "[18, 18]", "[14, 14]"]
    assert rounds[0][2] > rounds[1][2] > rounds[2][2]
    assert min(accuracy for _, accuracy, _ in rounds) > 0.6


def test_weight_times_gradient_is_activation_times_gradient() -> None:
    """The pruning example rests on it."""
    import torch

    convolution = torch.nn.Conv2d(3, 5, 3, padding=1, bias=False).double()
    output = convolution(torch.randn(4, 3, 6, 6, dtype=torch.double))
    output.retain_grad()
    output.square().sum().backward()
    assert output.grad is not None
    assert convolution.weight.grad is not None
    by_activation = (output * output.grad).sum(dim=(0, 2, 3))
    torch.testing.assert_close((convolution.weight * convolution.weight.grad).sum(dim=(1, 2, 3)), by_activation)


@pytest.mark.extended
def test_saliency_by_captum(reprokit: Reprokit) -> None:
    asked(reprokit, ["residual_digits.py", "8,8"], "weights,biases,inputs", "--steps", "80")
    lines = example(reprokit, "saliency.py", "run", "80")
    assert len([line for line in lines if re.fullmatch(r"image \d of step 80, taken for a \d", line)]) == 3
    pictures = [line.split("|") for line in lines if "|" in line]
    assert len(pictures) == 24
    assert all("@" in "".join(side) for side in zip(*pictures, strict=True))


@pytest.mark.extended
def test_attention_of_a_transformer(reprokit: Reprokit) -> None:
    asked(reprokit, ["attention_digits.py"], "attention_output_1", "--steps", "0-112:56")
    labels = reprokit.run("ask", "run", "labels", "--steps", "112")
    assert labels.returncode == 0, labels.stderr
    lines = example(reprokit, "attention.py", "run")
    entropies = [float(line.split()[3]) for line in lines if line.startswith("step ")]
    assert len(entropies) == 3
    assert entropies[-1] < entropies[0] <= 2.20  # it learned to look somewhere
    shares = [[float(share) for share in line.split("; ")[1].split()] for line in lines if line.startswith("class ")]
    assert len(shares) >= 5
    assert all(sum(row) <= 1.05 for row in shares)
