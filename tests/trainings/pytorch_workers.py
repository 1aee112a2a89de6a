"""PyTorch with DataLoader workers that augment with NumPy, and dropout: pytorch_workers.py WORKERS METHOD."""

import hashlib
import sys

import numpy as np
import torch
from torch import nn


class Augmented(torch.utils.data.Dataset):
    def __init__(self):
        from sklearn.datasets import load_digits  # not by each worker that is spawned

        images, labels = load_digits(return_X_y=True)
        self.images, self.labels = (images[:512] / 16).astype("float32"), labels[:512]

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        # A generator of its own for each worker: forked copies of NumPy's global one would agree.
        if not hasattr(self, "generator"):
            self.generator = np.random.default_rng()
        noise = self.generator.normal(scale=0.1, size=64).astype("float32")
        return self.images[index] + noise + np.float32(np.random.random() * 0.01), self.labels[index]


def main(workers, method):
    torch.set_num_threads(1)
    model = nn.Sequential(nn.Linear(64, 48), nn.ReLU(), nn.Dropout(0.3), nn.Linear(48, 10))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    context = method if workers else None
    loader = torch.utils.data.DataLoader(
        Augmented(), batch_size=32, shuffle=True, num_workers=workers, multiprocessing_context=context
    )
    for _ in range(2):
        for images, labels in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(images), labels)
            loss.backward()
            optimizer.step()
        print(loss.item())
    torch.save(model.state_dict(), "model.pt")
    print(hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in model.parameters())).hexdigest())


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
