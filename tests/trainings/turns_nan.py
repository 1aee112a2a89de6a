"""Trainings that come to a NaN or infinity, each by a line of its own, which ends in a comment with the case's name.

Argument: the name of the case.
"""

import math
import sys
from itertools import pairwise

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset, TensorDataset

ROWS, BATCH, ODD = 96, 16, 50  # the odd sample is what a case goes wrong by
torch.manual_seed(0)
x, y = torch.rand(ROWS, 8) + 0.1, torch.rand(ROWS, 1)


def net(*widths, last=nn.Identity):
    """A small perceptron."""
    layers = [layer for a, b in pairwise(widths) for layer in (nn.Linear(a, b), nn.Tanh())]
    return nn.Sequential(*layers[:-1], last())


def train(loss_of, model, *data, epochs=2, make=torch.optim.Adam, parameters=()):
    """Train in the usual way, on batches in order."""
    optimizer = make([*model.parameters(), *parameters], lr=1e-3)
    for _ in range(epochs):
        for batch in DataLoader(TensorDataset(*(data or (x, y))), BATCH):
            optimizer.zero_grad()
            loss_of(*batch).backward()
            optimizer.step()


def zeroed():
    """The samples, of which one is zeros."""
    found = x.clone()
    found[ODD] = 0
    return found


# Losses by hand


def cross_entropy_of_zero():
    model = net(8, 3)
    labels = torch.arange(ROWS) % 3

    def loss(a, b):
        chances = model(a).softmax(1) * (a.sum(1, keepdim=True) > 0)
        return -torch.log(chances[torch.arange(len(b)), b]).mean()  # cross_entropy_of_zero

    train(loss, model, zeroed(), labels)


def root_at_zero():
    model = net(8, 4)

    def loss(a, b):
        lengths = torch.sqrt((model(a) * a[:, :4]).square().sum(1))  # root_at_zero
        return (lengths - b[:, 0]).mean()

    train(loss, model, zeroed(), y)


def distance_of_equals():
    model = net(8, 4)
    other = x.clone()
    other[:ODD] += 0.1
    other[ODD + 1 :] += 0.1

    def distance(a, b):
        gaps = model(a) - model(b)
        return (gaps * gaps).sum(1).pow(0.5)  # distance_of_equals

    train(lambda a, b: functional.relu(1 - distance(a, b)).mean(), model, x, other)


def cosine_of_zeros():
    model = nn.Linear(8, 4, bias=False)

    def cosine(a, b):
        return (a * b).sum(1) / (a.norm(dim=1) * b.norm(dim=1))  # cosine_of_zeros

    train(lambda a, _: cosine(model(a), torch.ones(len(a), 4)).mean(), model, zeroed(), y)


def binary_entropy_of_certain():
    model, labels = net(8, 1), (torch.arange(ROWS) % 2).float()[:, None]
    data = x.clone()
    data[ODD] = 1e6
    model[0].weight.data.fill_(0.5)

    def loss(a, b):
        chance = torch.sigmoid(model(a))
        return -(b * torch.log(chance) + (1 - b) * torch.log(1 - chance)).mean()  # binary_entropy_of_certain

    train(loss, model, data, labels)


def divergence_of_zero():
    model = net(8, 4)
    target = torch.full((ROWS, 4), 0.25)
    target[ODD] = torch.tensor([0.0, 0.5, 0.25, 0.25])

    def divergence(p, q):
        return (p * torch.log(p / q)).sum(1).mean()  # divergence_of_zero

    train(lambda a, b: divergence(b, model(a).softmax(1)), model, x, target)


def mixture_underflow():
    model, target = net(8, 4), torch.rand(ROWS, 1)
    target[ODD] = 500.0

    def density(means, value):
        return torch.exp(-0.5 * (value - means) ** 2).sum(1)

    train(lambda a, b: -density(model(a), b).log().mean(), model, x, target)  # mixture_underflow


def focal():
    model, labels = net(8, 1), torch.ones(ROWS, 1)
    data = x.clone()
    data[ODD] = 1e4
    model[0].weight.data.fill_(0.5)

    def loss(a, b):
        chance = torch.sigmoid(model(a)) * b
        return ((1 - chance).pow(0.5) * (-chance.clamp(1e-6).log())).mean()  # focal

    train(loss, model, data, labels)


def likelihood_of_flat():
    model = net(8, 2)

    def loss(a, b):
        mean, log_scale = model(a).chunk(2, 1)
        scale = log_scale.exp() * (a.sum(1, keepdim=True) > 0)
        return (0.5 * ((b - mean) / scale).square() + scale.clamp(1e-3).log()).mean()  # likelihood_of_flat

    train(loss, model, zeroed(), y)


def perplexity():
    model = net(8, 1)
    target = y.clone()
    target[ODD] = 2000.0
    train(lambda a, b: torch.exp((model(a) - b).abs()).mean(), model, x, target)  # perplexity


# Normalizations


def standardized_rewards():
    model = net(8, 2)
    rewards = torch.rand(ROWS)
    rewards[48:64] = 1.0

    def advantage(reward):
        return (reward - reward.mean()) / reward.std()  # standardized_rewards

    train(lambda a, r: -(model(a).log_softmax(1)[:, 0] * advantage(r)).mean(), model, x, rewards)


def single_sample_variance():
    model = net(8, 4)
    data = x[: 16 * 3 + 1]

    def normalized(a):
        return (a - a.mean(0)) / (a.var(0) + 1e-5).sqrt()  # single_sample_variance

    train(lambda a, b: (normalized(model(a)).sum(1, keepdim=True) - b).square().mean(), model, data, y[:49])


def min_max():
    model = net(8, 1)
    data = x.clone()
    data[ODD] = 0.5

    def scaled(a):
        low, high = a.min(1, keepdim=True).values, a.max(1, keepdim=True).values
        return (a - low) / (high - low)  # min_max

    train(lambda a, b: (model(scaled(a)) - b).square().mean(), model, data, y)


def softmax_by_hand():
    model = net(8, 3)
    data = x.clone()
    data[ODD] = 1e6
    model[0].weight.data.abs_()

    def softmax(a):
        powers = torch.exp(a)  # softmax_by_hand
        return powers / powers.sum(1, keepdim=True)

    train(lambda a, b: (softmax(model(a))[:, :1] - b).square().mean(), model, data, y)


def mean_of_none():
    model = net(8, 1)
    wanted = torch.ones(ROWS, dtype=torch.bool)
    wanted[48:64] = False

    def loss(a, b, mask):
        errors = (model(a) - b).square()
        return errors[mask].mean()  # mean_of_none

    train(loss, model, x, y, wanted)


def weights_of_zero():
    model, weights = net(8, 1), torch.rand(ROWS, 1)
    weights[48:64] = 0

    def loss(a, b, w):
        return (w * (model(a) - b).square()).sum() / w.sum()  # weights_of_zero

    train(loss, model, x, y, weights)


# Attention and sequences


def all_masked():
    model, lengths = nn.Linear(8, 8), torch.randint(1, 5, (ROWS,))
    lengths[ODD] = 0
    data = torch.rand(ROWS, 5, 8)

    def attended(a, length):
        scores = model(a) @ a.transpose(1, 2)
        hidden = torch.arange(5)[None, None] >= length[:, None, None]
        return scores.masked_fill(hidden, -math.inf).softmax(2) @ a  # all_masked

    train(lambda a, n: attended(a, n).square().mean(), model, data, lengths)


def length_of_none():
    model, lengths = nn.GRU(8, 4), torch.randint(1, 6, (ROWS,)).float()
    lengths[ODD] = 0
    data = torch.rand(ROWS, 5, 8)

    def pooled(a, length):
        out, _ = model(a.transpose(0, 1))
        mask = (torch.arange(5)[:, None] < length).float()[..., None]
        return (out * mask).sum(0) / length[:, None]  # length_of_none

    train(lambda a, n: pooled(a, n).square().mean(), model, data, lengths)


def perplexity_of_padding():
    model, tokens = nn.Sequential(nn.Embedding(10, 8), nn.Linear(8, 10)), torch.randint(1, 10, (ROWS, 6))
    tokens[48:64] = 0

    def loss(a):
        each = functional.cross_entropy(model(a[:, :-1]).flatten(0, 1), a[:, 1:].flatten(), reduction="none")
        real = (a[:, 1:].flatten() != 0).float()
        return (each * real).sum() / real.sum()  # perplexity_of_padding

    train(loss, model, tokens)


def discounted_returns():
    model = net(8, 2)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for episode in range(9):
        rewards = torch.ones(12) if episode != 6 else torch.cat([torch.ones(11), torch.tensor([-5.0])])
        returns = rewards.flip(0).cumsum(0).flip(0)
        optimizer.zero_grad()
        chances = model(torch.rand(12, 8)).log_softmax(1)[:, 0]
        (-chances * returns.log()).mean().backward()  # discounted_returns
        optimizer.step()


# Traps of autograd


def where_does_not_help():
    model = net(8, 1)
    gain = nn.Parameter(torch.ones(8))

    def logs(a):
        scaled = a * gain
        return torch.where(a > 0, torch.log(scaled), torch.zeros_like(a))  # where_does_not_help

    train(lambda a, b: (model(logs(a)) - b).square().mean(), model, zeroed(), y, parameters=[gain])


def arc_cosine():
    model = nn.Linear(8, 8, bias=False)
    model.weight.data.copy_(torch.eye(8))

    def angle(a, b):
        return torch.acos(a.clamp(-1, 1))[:, 0] - b[:, 0]  # arc_cosine

    data = x.clone().clamp(0, 0.9)
    data[ODD] = 1.0
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    for a, b in DataLoader(TensorDataset(data, y), BATCH):
        optimizer.zero_grad()
        angle(model(a), b).mean().backward()
        optimizer.step()


def power_of_nothing():
    gain = nn.Parameter(torch.tensor(0.7))
    model = net(8, 1)

    def curve(a):
        return torch.pow(a * gain, 0.3)  # power_of_nothing

    train(lambda a, b: (model(curve(a)) - b).square().mean(), model, zeroed(), y, parameters=[gain])


def equal_singular_values():
    model = nn.Linear(9, 9)
    matrices = torch.rand(ROWS, 3, 3)
    matrices[ODD] = 0

    def loss(m):
        scaled = m * model.weight[:3, :3] * 10
        u, _, v = torch.linalg.svd(scaled)  # equal_singular_values
        return (u @ v).sum()

    train(loss, model, matrices)


class Inverse(torch.autograd.Function):
    """1 / x, with a gradient of its own."""

    @staticmethod
    def forward(ctx, value):
        ctx.save_for_backward(value)
        return torch.where(value == 0, torch.ones_like(value), 1 / value)

    @staticmethod
    def backward(ctx, gradient):
        (value,) = ctx.saved_tensors
        return -gradient / value**2  # own_backward


def own_backward():
    model = net(8, 1)
    gain = nn.Parameter(torch.ones(8))
    train(lambda a, b: (model(Inverse.apply(a * gain)) - b).square().mean(), model, zeroed(), y, parameters=[gain])


# Numbers that are too large


def exploding_flow():
    model = net(8, 8)
    data = x.clone()
    data[ODD] = 1e5
    model[0].weight.data.fill_(0.2)

    def flow(a):
        return a * torch.exp(model(a))  # exploding_flow

    train(lambda a, b: (flow(a).sum(1, keepdim=True) - b).abs().mean(), model, data, y)


def autoencoder():
    encoder, decoder = net(8, 4), net(2, 8)
    data = x.clone()
    data[ODD] = 1e5
    encoder[0].weight.data.fill_(0.1)

    def loss(a):
        mean, log_variance = encoder(a).chunk(2, 1)
        hidden = mean + torch.randn_like(mean) * (0.5 * log_variance).exp()  # autoencoder
        return (decoder(hidden) - a).square().mean() + mean.square().mean()

    train(loss, nn.ModuleList([encoder, decoder]), data)


def half_precision():
    model = nn.Linear(8, 1)
    data = x.clone()
    data[ODD] = 300.0

    def loss(a, b):
        halves = a.half()
        return (model(a) * (halves * halves).float().sum(1, keepdim=True) - b).mean()  # half_precision

    train(loss, model, data, y)


def hyperbolic():
    model = net(8, 1, last=nn.Tanh)
    data = x.clone()
    data[ODD] = 1e6
    model[0].weight.data.fill_(0.5)

    def loss(a, b):
        return (torch.atanh(model(a)) - b).square().mean()  # hyperbolic

    train(loss, model, data, y)


# Loops of other shapes


def accumulated():
    model = net(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    for number, (a, b) in enumerate(DataLoader(TensorDataset(zeroed(), y), 8)):
        out = model(a) + b
        (torch.log(a.sum(1, keepdim=True)) * out).mean().backward()  # accumulated
        if number % 4 == 3:
            optimizer.step()
            optimizer.zero_grad()


def closure():
    model = net(8, 1)
    optimizer = torch.optim.LBFGS(model.parameters(), lr=1e-3, max_iter=3)
    for a, b in DataLoader(TensorDataset(zeroed(), y), BATCH):

        def evaluate(a=a, b=b):
            optimizer.zero_grad()
            loss = ((model(a) - b) / a.sum(1, keepdim=True)).square().mean()  # closure
            loss.backward()
            return loss

        optimizer.step(evaluate)


def adversaries():
    maker, judge = net(2, 8), net(8, 1, last=nn.Sigmoid)
    of_maker = torch.optim.Adam(maker.parameters(), lr=1e-3)
    of_judge = torch.optim.Adam(judge.parameters(), lr=1e-3)
    for number, (a, _) in enumerate(DataLoader(TensorDataset(x, y), BATCH)):
        fake = maker(torch.randn(len(a), 2))
        of_judge.zero_grad()
        (-(judge(a) + 1e-6).log().mean() - (1 + 1e-6 - judge(fake.detach())).log().mean()).backward()
        of_judge.step()
        of_maker.zero_grad()
        verdict = judge(fake) * (number != 3)
        (-verdict.log().mean()).backward()  # adversaries
        of_maker.step()


def two_views():
    model = net(8, 4)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

    def view(a):
        return a * (torch.rand_like(a) > 0.1)

    def normalized(a):
        return a / a.square().sum(1, keepdim=True).sqrt()  # two_views

    for a, _ in DataLoader(TensorDataset(zeroed(), y), BATCH, shuffle=True):
        first, second = normalized(view(a)), normalized(view(a))
        optimizer.zero_grad()
        scores = model(first) @ model(second).T
        functional.cross_entropy(scores, torch.arange(len(a))).backward()
        optimizer.step()


def mixed_samples():
    model = net(8, 1)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

    def mixed(a, b):
        order = torch.randperm(len(a))
        share = torch.rand(len(a), 1)
        return share * a + (1 - share) * a[order], share * b + (1 - share) * b[order]

    data = x.clone()
    data[ODD] = -100.0
    for batch in DataLoader(TensorDataset(data, y), BATCH):
        a, b = mixed(*batch)
        optimizer.zero_grad()
        (model(torch.log1p(a)) - b).square().mean().backward()  # mixed_samples
        optimizer.step()


class Graph:
    """A batch of a class of the script's."""

    __slots__ = ("edges", "nodes")

    def __init__(self, nodes, edges):
        self.nodes, self.edges = nodes, edges


class Graphs(Dataset):
    """Small graphs, one of which has no edge."""

    def __len__(self):
        return 64

    def __getitem__(self, index):
        return Graph(torch.rand(4, 8), torch.eye(4) * 0 if index == ODD else torch.ones(4, 4))


def isolated_nodes():
    model = nn.Linear(8, 8)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

    def collate(graphs):
        return Graph(torch.stack([one.nodes for one in graphs]), torch.stack([one.edges for one in graphs]))

    def spread(batch):
        degrees = batch.edges.sum(2, keepdim=True)
        return (batch.edges / degrees) @ model(batch.nodes)  # isolated_nodes

    for batch in DataLoader(Graphs(), 8, collate_fn=collate):
        optimizer.zero_grad()
        spread(batch).square().mean().backward()
        optimizer.step()


def teacher():
    model, average = net(8, 4), net(8, 4)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for a, _ in DataLoader(TensorDataset(zeroed(), y), BATCH):
        with torch.no_grad():
            target = average(a) / a.mean(1, keepdim=True)  # teacher
        optimizer.zero_grad()
        (model(a) - target).square().mean().backward()
        optimizer.step()
        with torch.no_grad():
            for mean, new in zip(average.parameters(), model.parameters(), strict=True):
                mean.lerp_(new, 0.1)


def without_a_loader():
    model = net(8, 1)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    data, order = zeroed(), torch.randperm(ROWS)
    for rows in order.split(BATCH):
        optimizer.zero_grad()
        scale = data[rows].amax(1, keepdim=True).reciprocal()  # without_a_loader
        (model(data[rows] * scale) - y[rows]).square().mean().backward()
        optimizer.step()


globals()[sys.argv[1]]()
