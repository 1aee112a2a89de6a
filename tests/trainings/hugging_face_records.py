"""Trains by pipelines of Hugging Face's datasets over two files of each kind, each with an optimizer of its own.

Writes down what each step was given: a sample's number says which file and record it is.
"""

import json
from pathlib import Path

import datasets
import pyarrow
import pyarrow.parquet
import torch

SIZE, BUFFER = 40, {"seed": 1, "buffer_size": 15}
torch.set_num_threads(1)
torch.manual_seed(1)
for shard in range(2):
    numbers = list(range(shard * SIZE, (shard + 1) * SIZE))
    table = pyarrow.table({"text": [f"text {number}" for number in numbers], "number": numbers})
    pyarrow.parquet.write_table(table, f"{shard}.parquet", row_group_size=10)
    Path(f"{shard}.jsonl").write_text("".join(json.dumps({"number": number}) + "\n" for number in numbers))


def opened(kind="parquet", builder="parquet", **options):
    files = [f"{shard}.{kind}" for shard in range(2)]
    return datasets.load_dataset(builder, data_files=files, split="train", cache_dir="cache", **options)


def train(dataset, **options):
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), 1e-4)
    steps = []
    for batch in torch.utils.data.DataLoader(dataset, 8, **options):
        steps.append(batch["number"].tolist())
        model(batch["number"].float().reshape(-1, 1)).square().mean().backward()
        optimizer.step()
    return steps


def renamed(row):
    return {"number": row["number"]}


class Wrapped(torch.utils.data.IterableDataset):
    """Of these samples nobody tells which records they are."""

    def __iter__(self):
        return ({"number": row["number"]} for row in streamed)


streamed = opened(streaming=True)
other = opened("jsonl", "json", streaming=True)
seen = {
    "plain": train(streamed),
    "tensors": train(streamed.with_format("torch")),
    "shuffled": train(streamed.shuffle(**BUFFER).with_format("torch")),
    "mapped": train(streamed.map(renamed).shuffle(**BUFFER)),
    "mapped later": train(streamed.shuffle(**BUFFER).map(renamed)),
    "filtered": train(streamed.filter(lambda row: row["number"] % 3).select_columns(["number"])),
    "skipped": train(streamed.skip(13).take(30)),
    "lines": train(other.with_format("torch")),
    "rows": train(opened().with_format("torch"), shuffle=True),  # by index: the data set is not streamed
    "wrapped": train(Wrapped()),
    "workers": train(streamed, num_workers=2),
    "batched": train(streamed.map(renamed, batched=True)),  # may make any samples of any
}
Path("seen.json").write_text(json.dumps(seen))
