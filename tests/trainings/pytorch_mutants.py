"""Small trainings, some like those of pytorch/examples; a result can be changed from below all of PyTorch's hooks.

MODEL [STEP NUMBER KIND]: in that step, a result from the NUMBER-th operator on is changed once: by one unit in the last
place (ulp), a sign (sign), two elements that change places (swap) or a zero that becomes negative (zero). The file
`mutated` then names the operator.
"""

import ctypes
import itertools
import sys
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn.functional import cross_entropy, leaky_relu, log_softmax, mse_loss, nll_loss, relu, softmax

STEPS = 6
OPERATORS = [
    "_log_softmax",
    "_log_softmax_backward_data",
    "_softmax",
    "_softmax_backward_data",
    "addmm",
    "bmm",
    "convolution",
    "elu",
    "embedding",  # which calls index_select, so that one is not here
    "exp",
    "leaky_relu",
    "log_sigmoid_forward",
    "mm",
    "native_batch_norm",
    "native_batch_norm_backward",
    "nll_loss_forward",
    "nll_loss_backward",
    "relu",
    "sigmoid",
    "sigmoid_backward",
    "tanh",
    "tanh_backward",
    "threshold_backward",
    "leaky_relu_backward",
    "add.Tensor",
    "sub.Tensor",
    "mul.Tensor",
    "div.Tensor",
    "mean",
    "sum.dim_IntList",
    "max_pool2d_with_indices_backward",
    "convolution_backward",
    "cat",
    "gather",
    "index.Tensor",
    "index_add",
    "index_put",
    "mse_loss",
    "scatter_add",
    "upsample_nearest2d",
    "upsample_nearest2d_backward",
]


class Mutation:
    """The change of one result."""

    def __init__(self, step: int, number: int, kind: str) -> None:
        self.step, self.number, self.kind = step, number, kind
        self.now = self.calls = 0
        self.library = torch.library.Library("aten", "IMPL")
        for name in OPERATORS:
            self.library.impl(name, self.kernel(name), "BackendSelect", with_keyset=True)

    def kernel(self, name: str):
        """Return what stands before the operator."""
        base, _, overload = name.partition(".")

        def call(keyset, *args, **kwargs):
            operator = getattr(getattr(torch.ops.aten, base), overload or "default")
            below = keyset & torch._C._dispatch_keyset_full_after(torch._C.DispatchKey.BackendSelect)
            args = [
                torch.tensor(one) if is_number(one, kind) else one
                for one, kind in zip(args, kinds(operator), strict=False)
            ]
            result = operator.redispatch(below, *args, **kwargs)
            if self.kind and self.now == self.step:
                self.calls += 1
                first = result[0] if isinstance(result, tuple) else result
                if self.calls > self.number and self.change(first):
                    Path("mutated").write_text(f"aten::{base}")
                    self.kind = ""
            return result

        return call

    def change(self, tensor) -> bool:
        """Change it, unless there is nothing to change."""
        if tensor is None or tensor.dtype != torch.float32 or tensor.numel() < 2 or not is_dense(tensor):
            return False
        bits = (ctypes.c_uint32 * tensor.numel()).from_address(tensor.data_ptr())
        if self.kind == "swap":
            pair = next((i for i in range(len(bits) - 1) if bits[i] != bits[i + 1]), None)
            if pair is not None:
                bits[pair], bits[pair + 1] = bits[pair + 1], bits[pair]
            return pair is not None
        place = next((i for i in range(len(bits)) if (bits[i] == 0) == (self.kind == "zero")), None)
        if place is not None:
            bits[place] = bits[place] + 1 if self.kind == "ulp" else bits[place] ^ 0x80000000
        return place is not None


def is_dense(tensor) -> bool:
    """Return whether a tensor's elements are all of its memory, in order or with the channels last."""
    is_image = tensor.dim() == 4 and tensor.is_contiguous(memory_format=torch.channels_last)
    return tensor.is_contiguous() or is_image


def kinds(operator) -> list[str]:
    """Return the types of an operator's arguments."""
    return [str(argument.type) for argument in operator._schema.arguments]


def is_number(value, kind: str) -> bool:
    """Return whether a number stands where an operator takes a tensor."""
    return kind == "Tensor" and isinstance(value, (int, float))


def mnist(step):
    step.model = nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Dropout(0.25), nn.Flatten(), nn.Linear(64, 10)
    )
    step.begin(torch.optim.Adam)
    images, labels = torch.randn(STEPS, 8, 1, 10, 10), torch.randint(10, (STEPS, 8))
    for image, label in zip(images, labels, strict=True):
        step.take(nll_loss(log_softmax(step.model(image), dim=1), label))


def vae(step):
    step.model = nn.ModuleList([nn.Linear(16, 8), nn.Linear(8, 8), nn.Linear(4, 16)])
    step.begin(torch.optim.Adam)
    for data in torch.rand(STEPS, 8, 16):
        mean, log_variance = step.model[1](relu(step.model[0](data))).chunk(2, dim=1)
        code = mean + torch.randn_like(mean) * torch.exp(0.5 * log_variance)
        made = torch.sigmoid(step.model[2](code))
        spread = (1 + log_variance - mean * mean - log_variance.exp()).sum()
        step.take(((made - data) * (made - data)).sum() - 0.5 * spread)


def dcgan(step):
    maker = nn.Sequential(nn.ConvTranspose2d(4, 8, 4), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 1, 1), nn.Tanh())
    judge = nn.Sequential(nn.Conv2d(1, 4, 4), nn.LeakyReLU(0.2), nn.Flatten(), nn.Linear(4, 1), nn.Sigmoid())
    step.model = nn.ModuleList([maker, judge])
    step.begin(torch.optim.Adam)
    for real in torch.randn(STEPS, 8, 1, 4, 4):
        made = maker(torch.randn(8, 4, 1, 1))
        step.take(((judge(real) - 1) * (judge(real) - 1)).mean() + (judge(made) * judge(made)).mean())


def gat(step):
    step.model = nn.ModuleList([nn.Linear(6, 8), nn.Linear(16, 1), nn.Linear(8, 3)])
    step.begin(torch.optim.SGD)
    nodes, links, labels = torch.randn(10, 6), torch.rand(10, 10) < 0.4, torch.randint(3, (10,))
    for _ in range(STEPS):
        hidden = step.model[0](nodes)
        pairs = torch.cat([hidden[:, None].expand(10, 10, 8), hidden[None].expand(10, 10, 8)], dim=2)
        scores = leaky_relu(step.model[1](pairs)[..., 0], 0.2).masked_fill(~links, -1e9)
        step.take(cross_entropy(step.model[2](relu(softmax(scores, dim=1) @ hidden)), labels))


def lstm(step):
    step.model = nn.ModuleList([nn.Embedding(12, 6), nn.LSTMCell(6, 8), nn.Linear(8, 12)])
    step.begin(torch.optim.SGD)
    for tokens in torch.randint(12, (STEPS, 5, 4)):
        state, loss = None, 0.0
        for now, following in itertools.pairwise(tokens):
            state = step.model[1](step.model[0](now), state)
            loss = loss + cross_entropy(step.model[2](state[0]), following)
        step.take(loss)


def unet(step):
    widths = [(2, 8), (8, 16), (24, 8)]
    step.model = nn.ModuleList([nn.Conv2d(before, after, 3, padding=1) for before, after in widths])
    step.model.extend([nn.BatchNorm2d(8), nn.Conv2d(8, 2, 1)])
    step.model.to(memory_format=torch.channels_last)
    step.begin(torch.optim.AdamW)
    down, deep, up, norm, last = step.model
    for data in torch.randn(STEPS, 4, 2, 8, 8):
        image = data.to(memory_format=torch.channels_last)
        fine = relu(norm(down(image)))
        coarse = relu(deep(nn.functional.max_pool2d(fine, 2)))
        made = up(torch.cat([fine, nn.functional.interpolate(coarse, scale_factor=2)], dim=1))
        step.take(mse_loss(last(relu(made)), image * image))


def policy(step):
    step.model = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 2))
    step.begin(torch.optim.Adam)
    world = np.random.default_rng(7)
    for _ in range(STEPS):
        place, chosen, rewards = world.normal(size=3), [], []
        while len(rewards) < 8 and abs(place[0]) < 3:
            scores = log_softmax(step.model(torch.from_numpy(place.astype(np.float32))[None]), dim=1)
            action = torch.multinomial(scores.detach().exp(), 1)
            chosen.append(scores.gather(1, action)[:, 0])
            push = 2.0 * action.item() - 1.0
            place = 0.9 * place + np.array([push, place[0], 0.1]) + world.normal(scale=0.1, size=3)
            rewards.append(-(place[0] ** 2))
        returns = torch.from_numpy(np.cumsum(rewards[::-1])[::-1].copy()).float()
        step.take(-(torch.cat(chosen) * (returns - returns.mean())).mean())


def graph(step):
    step.model = nn.ModuleList([nn.Linear(6, 8), nn.Linear(8, 8), nn.Linear(8, 3)])
    step.begin(torch.optim.Adam)
    nodes, labels = torch.randn(12, 6), torch.randint(3, (12,))
    sources, targets = torch.randint(12, (2, 40))
    for _ in range(STEPS):
        hidden = nodes
        for layer in step.model[:2]:
            messages = layer(hidden)[sources]
            hidden = relu(torch.zeros(12, 8).index_add(0, targets, messages) / 4)
        step.take(cross_entropy(step.model[2](hidden), labels))


def experts(step):
    step.model = nn.ModuleList([nn.Linear(6, 4), *[nn.Linear(6, 6) for _ in range(4)], nn.Linear(6, 3)])
    step.begin(torch.optim.SGD)
    router, *made, last = step.model
    tokens, labels = torch.randn(STEPS, 16, 6), torch.randint(3, (STEPS, 16))
    for batch, label in zip(tokens, labels, strict=True):
        weights = softmax(router(batch), dim=1)
        chosen = weights.detach().topk(2, dim=1).indices
        shares = weights.gather(1, chosen)
        mixed = torch.zeros(16, 6)
        for number, expert in enumerate(made):
            rows, slots = (chosen == number).nonzero(as_tuple=True)
            answered = expert(batch.index_select(0, rows)) * shares[rows, slots][:, None]
            mixed = mixed.scatter_add(0, rows[:, None].expand(-1, 6), answered)
        step.take(cross_entropy(last(mixed), label))


class Steps:
    """Takes the steps of a training."""

    def __init__(self, mutation: Mutation) -> None:
        self.mutation = mutation

    def begin(self, kind) -> None:
        self.optimizer = kind(self.model.parameters(), lr=0.01)

    def take(self, loss) -> None:
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.mutation.now += 1


torch.manual_seed(0)
torch.set_num_threads(1)
model, *mutation = sys.argv[1:]
asked = Mutation(int(mutation[0]), int(mutation[1]), mutation[2]) if mutation else Mutation(-1, 0, "")
TRAININGS = [mnist, vae, dcgan, gat, lstm, unet, policy, graph, experts]
next(training for training in TRAININGS if training.__name__ == model)(Steps(asked))
