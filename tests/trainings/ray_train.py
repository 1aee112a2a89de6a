"""Data-parallel training by Ray Train: two workers on the CPU, whose weights and batches come from no fixed seed."""

import random
import tempfile
from pathlib import Path

import ray
import ray.train
import torch
from ray.train.torch import TorchTrainer, prepare_data_loader, prepare_model

EPOCHS = 3


def train(config):
    torch.set_num_threads(1)
    torch.manual_seed(config["seed"])
    model = prepare_model(torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Dropout(0.2), torch.nn.Linear(16, 1)))
    x = torch.randn(64, 8)
    data = torch.utils.data.TensorDataset(x, x.sum(1, keepdim=True))
    loader = prepare_data_loader(torch.utils.data.DataLoader(data, 16, shuffle=True))
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    for epoch in range(EPOCHS):
        loader.sampler.set_epoch(epoch)
        for inputs, targets in loader:
            optimizer.zero_grad()
            loss = torch.nn.functional.mse_loss(model(inputs), targets)
            loss.backward()
            optimizer.step()
        with tempfile.TemporaryDirectory() as place:
            torch.save(model.state_dict(), Path(place, "model.pt"))
            ray.train.report({"loss": loss.item()}, checkpoint=ray.train.Checkpoint.from_directory(place))


def main():
    ray.init(num_cpus=3, include_dashboard=False, log_to_driver=False)
    with tempfile.TemporaryDirectory() as place:
        result = TorchTrainer(
            train,
            train_loop_config={"seed": random.SystemRandom().randrange(1 << 31)},
            scaling_config=ray.train.ScalingConfig(num_workers=2),
            run_config=ray.train.RunConfig(storage_path=place),
        ).fit()
        print(result.metrics["loss"])


if __name__ == "__main__":
    main()
