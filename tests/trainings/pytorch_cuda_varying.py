"""Computes on a GPU, again and again on the same inputs, what PyTorch calls nondeterministic there, and some others.

Arguments: names of operators; all without. Prints how many different results each had: 1 where it repeats.
"""

import sys

import torch
from torch import nn
from torch.nn import functional

TIMES = 20
torch.manual_seed(1)
device = "cuda"
index = torch.randint(0, 16, (400_000,), device=device)
values = torch.randn(400_000, device=device)
image = torch.randn(8, 16, 32, 32, device=device)


def gradient(function, tensor):
    """What a backward pass gives for the tensor."""
    leaf = tensor.detach().clone().requires_grad_()
    out = function(leaf)
    out.backward(torch.linspace(0.1, 1, out.numel(), device=device).view_as(out))
    return leaf.grad


table = torch.randn(16, 8, device=device)
convolution = nn.Conv2d(16, 32, 3, padding=1).to(device)
probabilities = torch.randn(50, 16, 20, device=device)
targets = torch.randint(1, 20, (16, 30), device=device)
lengths = torch.full((16,), 50), torch.full((16,), 30)


def convolved():
    """The weights' gradient."""
    convolution.weight.grad = None
    convolution(image).square().sum().backward()
    return convolution.weight.grad


OPERATORS = {
    "index_add": lambda: torch.zeros(16, device=device).index_add(0, index, values),
    "index_add_": lambda: torch.zeros(16, device=device).index_add_(0, index, values),
    "scatter_add": lambda: torch.zeros(16, device=device).scatter_add(0, index, values),
    "scatter_reduce": lambda: torch.zeros(16, device=device).scatter_reduce(0, index, values, "sum"),
    "index_put accumulate": lambda: torch.zeros(16, device=device).index_put((index,), values, accumulate=True),
    "index_put of several": lambda: torch.zeros(16, device=device).index_put((index,), values),
    "scatter of several": lambda: torch.zeros(16, device=device).scatter(0, index, values),
    "put accumulate": lambda: torch.zeros(16, device=device).put(index, values, accumulate=True),
    "bincount weights": lambda: torch.bincount(index, values, 16),
    "histc": lambda: torch.histc(values, 16),
    "cumsum": lambda: values.cumsum(0),
    "index gather backward": lambda: gradient(lambda p: p[index], table[:, 0]),
    "gather backward": lambda: gradient(lambda p: p.gather(0, index), table[:, 0]),
    "index_select backward": lambda: gradient(lambda p: p.index_select(0, index), table[:, 0]),
    "embedding backward": lambda: gradient(lambda p: functional.embedding(index, p), table),
    "embedding backward of texts": lambda: gradient(
        lambda p: functional.embedding(index[:8192] * 61 + index[8192:16384], p), torch.randn(1000, 64, device=device)
    ),
    "embedding backward of few": lambda: gradient(lambda p: functional.embedding(index[:2048], p), table),
    "embedding_bag backward": lambda: gradient(
        lambda p: functional.embedding_bag(index.view(-1, 100), p, mode="sum"), table
    ),
    "repeat_interleave backward": lambda: gradient(lambda p: p.repeat_interleave(25_000, 0), table[:, 0]),
    "interpolate bilinear backward": lambda: gradient(
        lambda p: functional.interpolate(p, scale_factor=3.7, mode="bilinear"), image
    ),
    "interpolate nearest backward": lambda: gradient(lambda p: functional.interpolate(p, scale_factor=3), image),
    "grid_sample backward": lambda: gradient(
        lambda p: functional.grid_sample(
            p,
            torch.rand(8, 64, 64, 2, device=device, generator=torch.Generator(device).manual_seed(1)) * 2 - 1,
            align_corners=False,
        ),
        image,
    ),
    "adaptive_avg_pool2d backward": lambda: gradient(lambda p: functional.adaptive_avg_pool2d(p, 7), image),
    "max_pool2d backward": lambda: gradient(lambda p: functional.max_pool2d(p, 3, 1), image),
    "max_pool3d backward": lambda: gradient(lambda p: functional.max_pool3d(p, 3, 1), image),
    "adaptive_max_pool2d backward": lambda: gradient(lambda p: functional.adaptive_max_pool2d(p, 7), image),
    "reflection_pad2d backward": lambda: gradient(lambda p: functional.pad(p, (3,) * 4, "reflect"), image),
    "replication_pad2d backward": lambda: gradient(lambda p: functional.pad(p, (3,) * 4, "replicate"), image),
    "ctc_loss backward": lambda: gradient(
        lambda p: functional.ctc_loss(p.log_softmax(2), targets, *lengths).reshape(1), probabilities
    ),
    "nll_loss2d": lambda: functional.nll_loss(image.log_softmax(1), index[: 8 * 32 * 32].view(8, 32, 32)),
    "conv2d weight": convolved,
    "matmul": lambda: image.view(8, 16, -1) @ image.view(8, 16, -1).transpose(1, 2),
    "sum": values.sum,
    "median": lambda: values.median(0).values,
    "kthvalue": lambda: values.kthvalue(77).values,
    "sort": lambda: values.sort().indices,
    "layer_norm backward": lambda: gradient(lambda p: functional.layer_norm(p, (32,)), image),
    "batch_norm backward": lambda: gradient(lambda p: functional.batch_norm(p, None, None, training=True), image),
    "group_norm backward": lambda: gradient(lambda p: functional.group_norm(p, 4), image),
    "attention backward": lambda: gradient(
        lambda p: functional.scaled_dot_product_attention(p, p, p),
        torch.linspace(-1, 1, 8 * 4 * 512 * 64, device=device).view(8, 4, 512, 64).half(),
    ),
}

for name, compute in OPERATORS.items():
    if len(sys.argv) > 1 and name not in sys.argv[1:]:
        continue
    try:
        results = {compute().detach().float().cpu().numpy().tobytes() for _ in range(TIMES)}
        print(f"{name}: {len(results)}")
    except RuntimeError as error:
        print(f"{name}: {str(error).splitlines()[0]}")
