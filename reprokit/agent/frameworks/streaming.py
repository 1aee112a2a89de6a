"""MosaicML's streaming: which sample of a StreamingDataset a loader got, for the ledger of samples."""

from __future__ import annotations

from ..core.agent import Adapter
from ..core.patching import Function, replace
from ..core.reader_names import named

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class StreamingAdapter(Adapter):
    """Patches streaming.base.dataset."""

    def instrument(self, name: str, module: Any) -> None:
        replace(module.StreamingDataset, "__iter__", self._make_iter)

    def _make_iter(self, original: Function) -> Function:
        def __iter__(dataset: Any) -> Any:  # noqa: N807
            return named(original(dataset), lambda _: self._agent.attempt(_last_index, dataset))

        return __iter__


def _last_index(dataset: Any) -> int:
    """Return the index of the last sample among all streams; seen in 0.13: it is counted when the next one is asked."""
    iterator = dataset._iterator
    return int(iterator.sample_ids[iterator.yield_index])
