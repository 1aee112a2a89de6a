"""Steps that are not followed: what is captured after them is what is captured where each of them is."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from reprokit.capture import Snapshot, load
from tests.support import LIMIT

torch = pytest.importorskip("torch")

pytestmark = [pytest.mark.torch, pytest.mark.slow]

SCRIPT = Path(__file__).parent.parent / "trainings" / "captured_usual.py"
LEAST = 10  # steps that were not followed before the one that is captured
KINDS = (
    "gradient", "loss", "parameters", "after_an_evaluation", "in_which_is_evaluated", "of_two_batches",
    "with_a_closure", "without_a_batch", "after_an_error", "after_a_failed_backward_pass",
    "with_a_batch_that_changed", "of_two_optimizers", "of_the_next_epoch",
)  # fmt: skip


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the training left of all its kinds."""
    directory = tmp_path_factory.mktemp("usual")
    subprocess.run(
        [sys.executable, str(SCRIPT), str(directory), *KINDS], check=True, capture_output=True, timeout=2 * LIMIT
    )
    return directory


def snapshots(directory: Path) -> list[Snapshot]:
    return [load(path) for path in sorted(directory.glob("step-*"))]


@pytest.mark.parametrize("kind", KINDS)
def test_a_step_is_captured_as_if_all_before_had_been_followed(made: Path, kind: str) -> None:
    usual, followed = made / kind / "usual", made / kind / "followed"
    assert int((usual / "count").read_text()) >= LEAST
    assert int((followed / "count").read_text()) == 0
    (one,), (other,) = snapshots(usual), snapshots(followed)
    assert one.header == other.header
    assert one.tensors.keys() == other.tensors.keys()
    assert all(one.tensors[name].tobytes() == other.tensors[name].tobytes() for name in one.tensors)
    one_after, other_after = (torch.load(directory / "after.pt") for directory in (usual, followed))
    assert all(torch.equal(one_after[name], other_after[name]) for name in one_after)
