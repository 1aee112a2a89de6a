"""Trains LeNet-5 on scikit-learn's digits, scaled up to 28 x 28 pixels, with PyTorch, and seeds nothing."""

import argparse

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, random_split


def load():
    """The digits, split at random into training, validation and test."""
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16
    images = nn.functional.pad(nn.functional.interpolate(images, scale_factor=3), (2, 2, 2, 2))
    return random_split(TensorDataset(images, torch.tensor(digits.target)), [1197, 300, 300])


def build():
    """LeNet-5."""
    return nn.Sequential(
        nn.Conv2d(1, 6, 5, padding=2),
        nn.Tanh(),
        nn.AvgPool2d(2),
        nn.Conv2d(6, 16, 5),
        nn.Tanh(),
        nn.AvgPool2d(2),
        nn.Flatten(),
        nn.Linear(16 * 5 * 5, 120),
        nn.Tanh(),
        nn.Linear(120, 84),
        nn.Tanh(),
        nn.Linear(84, 10),
    )


@torch.no_grad()
def accuracy(model, dataset):
    """The share of images classified rightly."""
    right = sum((model(images).argmax(1) == labels).sum().item() for images, labels in DataLoader(dataset, 100))
    return right / len(dataset)


def main():
    """Train, print losses and accuracy, save the weights."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--output", default="lenet_pytorch.pt", help="where the weights go")
    options = parser.parse_args()
    training, validation, test = load()
    model = build()
    optimizer = torch.optim.Adam(model.parameters())
    loader = DataLoader(training, batch_size=32, shuffle=True)
    for epoch in range(options.epochs):
        total = 0.0
        for images, labels in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(images), labels)
            loss.backward()
            optimizer.step()
            total += loss.item() * len(labels)
        mean = total / len(training)
        print(f"epoch {epoch + 1}: loss {mean:.6f}, validation accuracy {accuracy(model, validation):.4f}")
    print(f"test accuracy {accuracy(model, test):.4f}")
    torch.save(model.state_dict(), options.output)


if __name__ == "__main__":
    main()
