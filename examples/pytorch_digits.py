"""Trains a small classifier on scikit-learn's digits with PyTorch. It sets no seed."""

import hashlib

import torch
from sklearn.datasets import load_digits
from torch.utils.data import DataLoader, TensorDataset

EPOCHS = 5


def digest(model: torch.nn.Module) -> str:
    weights = (tensor.numpy().tobytes() for tensor in model.state_dict().values())
    return hashlib.sha256(b"".join(weights)).hexdigest()


def main() -> None:
    digits = load_digits()
    images = torch.tensor(digits.data / 16, dtype=torch.float32)
    labels = torch.tensor(digits.target)
    data = TensorDataset(images[:1500], labels[:1500])
    model = torch.nn.Sequential(
        torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Dropout(0.2), torch.nn.Linear(64, 10)
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=0.003)
    loss = torch.tensor(0.0)
    for epoch in range(EPOCHS):
        for batch, target in DataLoader(data, batch_size=32, shuffle=True):
            loss = torch.nn.functional.cross_entropy(model(batch), target)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch}: last loss {loss.item()!r}")
    model.eval()
    correct = (model(images[1500:]).argmax(1) == labels[1500:]).sum().item()
    torch.save(model.state_dict(), "digits.pt")
    print(f"loss {loss.item()!r} correct {correct}/297 weights {digest(model)}")


if __name__ == "__main__":
    main()
