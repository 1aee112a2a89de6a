"""Digests of PyTorch's tensors: the short way gives what the long one does, and nobody's else."""

from __future__ import annotations

import pytest

from reprokit.agent.pytorch import tensors

pytestmark = pytest.mark.torch


def test_the_short_way_to_a_digest_gives_what_the_long_one_does() -> None:
    import torch

    turned = torch.randn(4, dtype=torch.complex64).conj()
    every = [
        torch.nn.Parameter(torch.randn(16, 8)),
        torch.randn(5, 3).t(),
        torch.randn(10)[::2],
        turned,
        turned.imag,
        torch.zeros(0, 3),
        torch.tensor(3),
        torch.randn(3, 4).bfloat16(),
        torch.randn(3, 4).to_sparse(),
        torch.quantize_per_tensor(torch.randn(6), 0.1, 0, torch.qint8),
    ]
    for tensor in every:
        assert tensors.entry("weight", tensor) == tensors._any_entry("weight", tensor)


def test_shape_and_dtype_count_beside_the_bytes() -> None:
    import torch

    zeros = [torch.zeros(4), torch.zeros(2, 2), torch.zeros(4, dtype=torch.int32), torch.zeros(1, 4)]
    assert len({tensors.entry("", tensor)[3] for tensor in zeros}) == len(zeros)
