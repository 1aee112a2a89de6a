"""Facts for the sample ledger on how a DataLoader chooses its samples, found without calling code of the user."""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_ALL = frozenset(["SequentialSampler", "RandomSampler", "SubsetRandomSampler"])  # yield each sample once
_OWN = ("torch.utils.data", "torchdata.stateful_dataloader")


def loader_facts(loader: Any) -> dict[str, object]:
    """Return the classes of data set and sampler, and the number of samples per epoch if it is known."""
    sampler, batches = loader.sampler, loader.batch_sampler
    facts: dict[str, object] = {"dataset": type(loader.dataset).__name__, "workers": loader.num_workers}
    if isinstance(loader.dataset, sys.modules["torch.utils.data"].IterableDataset):
        return facts
    if batches is not None and _own_name(batches) != "BatchSampler":
        return {**facts, "sampler": type(batches).__name__}
    if batches is not None:
        sampler, left_over = batches.sampler, batches.batch_size - 1 if batches.drop_last else 0
    else:
        left_over = 0
    name = _own_name(sampler)
    replaces = bool(getattr(sampler, "__dict__", {}).get("replacement"))
    facts.update(sampler=type(sampler).__name__, replacement=replaces, left_over=left_over)
    if name in _ALL and not replaces:
        size = len(sampler)
        is_all = name != "RandomSampler" or size == len(sampler.data_source)  # else a part, or some repeated
        facts.update({"samples": size} if is_all else {})
    return facts


def _own_name(sampler: Any) -> str:
    """Return the class name of a sampler if it is PyTorch's own, or torchdata's of that name; else an empty text."""
    kind = type(sampler)
    return kind.__name__ if kind.__module__.startswith(_OWN) else ""
