"""Brings tensors from a GPU to this side beside the training: on a stream of their own, into pinned memory."""

from __future__ import annotations

from collections import deque

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any


class DeviceCopies:
    """Copies that are on their way, in order, and what is to be done when they are here."""

    def __init__(self, torch: Any, room: int) -> None:
        self._torch, self._room = torch, room
        self._streams: dict[Any, Any] = {}
        self._waiting: deque[tuple[Any, int, Callable[[], object]]] = deque()  # event, bytes, what then
        self._bytes = 0

    def begin(self, tensor: Any, then: Callable[[Any], object]) -> None:
        """Copy a tensor as it is now, and hand over what arrives."""
        torch, device = self._torch, tensor.device
        cuda = torch.cuda
        if device.type != "cuda":
            then(tensor.detach().cpu())
            return
        if cuda.is_current_stream_capturing():
            raise RuntimeError("no tensors are saved while a CUDA graph is being recorded")
        if device not in self._streams:
            self._streams[device] = cuda.Stream(device)
        stream, copy = self._streams[device], tensor.detach().contiguous().clone()  # the training may change its own
        here = torch.empty(copy.shape, dtype=copy.dtype, pin_memory=True)
        stream.wait_stream(cuda.current_stream(device))
        with cuda.stream(stream):
            here.copy_(copy, non_blocking=True)
            event = cuda.Event()
            event.record(stream)
        copy.record_stream(stream)
        size = here.numel() * here.element_size()
        self._waiting.append((event, size, lambda: then(here)))
        self._bytes += size
        while self._bytes > self._room and len(self._waiting) > 1:
            self._take(waits=True)

    def behind(self, then: Callable[[], object]) -> None:
        """Do something once all that is on its way is here."""
        if self._waiting:
            self._waiting.append((None, 0, then))
        else:
            then()

    def _take(self, *, waits: bool) -> bool:
        event, size, then = self._waiting[0]
        if event is not None and not event.query():
            if not waits:
                return False
            event.synchronize()
        self._waiting.popleft()
        self._bytes -= size
        then()
        return True

    def put_arrived(self, *, all_of_them: bool) -> None:
        """Hand over what is here, or all, which is waited for."""
        while self._waiting and self._take(waits=all_of_them):
            pass
