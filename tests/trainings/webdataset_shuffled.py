"""A logistic regression over WebDataset's shards, which shuffles by the process id and the time; prints a digest."""

from __future__ import annotations

import hashlib
import io
import tarfile
from pathlib import Path

import numpy as np
import torch
import webdataset

SHARDS, SAMPLES = 3, 40


def write_shards(directory: Path) -> list[str]:
    """Shards with the same samples in every run."""
    numbers = np.random.RandomState(1)
    paths = []
    for shard in range(SHARDS):
        path = directory / f"shard-{shard}.tar"
        with tarfile.open(path, "w") as archive:
            for sample in range(SAMPLES):
                for suffix, content in (
                    ("npy", array_file(numbers.rand(8).astype("float32"))),
                    ("cls", str(numbers.randint(2)).encode()),
                ):
                    member = tarfile.TarInfo(f"{shard:03d}{sample:04d}.{suffix}")
                    member.size = len(content)
                    archive.addfile(member, io.BytesIO(content))
        paths.append(str(path))
    return paths


def array_file(array: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array)
    return buffer.getvalue()


def train(paths: list[str], workers: int, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
    dataset = (
        webdataset.WebDataset(paths, shardshuffle=SHARDS, empty_check=False)
        .shuffle(100, initial=50)
        .decode()
        .to_tuple("npy", "cls")
    )
    loader = torch.utils.data.DataLoader(dataset, batch_size=8, num_workers=workers)
    for features, labels in loader:
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(features), labels).backward()
        optimizer.step()


def main() -> None:
    directory = Path("shards")
    directory.mkdir(exist_ok=True)
    torch.manual_seed(1)
    torch.set_num_threads(1)
    paths = write_shards(directory)
    model = torch.nn.Linear(8, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for workers in (0, 2):
        train(paths, workers, model, optimizer)
    data = b"".join(parameter.detach().numpy().tobytes() for parameter in model.parameters())
    print(hashlib.sha256(data).hexdigest())


if __name__ == "__main__":
    main()
