"""Copies tensors from a GPU to host memory in parallel to the training: on a separate stream, into pinned memory."""

from __future__ import annotations

from collections import deque

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any


class DeviceCopies:
    """Asynchronous copies in order, with the callbacks to be called on completion."""

    def __init__(self, torch: Any, max_bytes: int) -> None:
        self._torch, self._max_bytes = torch, max_bytes
        self._streams: dict[Any, Any] = {}
        self._pending: deque[tuple[Any, int, Callable[[], object]]] = deque()  # event, bytes, callback
        self._bytes = 0

    def begin(self, tensor: Any, callback: Callable[[Any], object]) -> None:
        """Start to copy a tensor's current values; the callback gets the copy in host memory."""
        torch, device = self._torch, tensor.device
        cuda = torch.cuda
        if device.type != "cuda":
            callback(tensor.detach().cpu())
            return
        if device not in self._streams:
            self._streams[device] = cuda.Stream(device)
        stream, copy = (
            self._streams[device],
            tensor.detach().contiguous().clone(),
        )  # the training may change it
        host_copy = torch.empty(copy.shape, dtype=copy.dtype, pin_memory=True)
        stream.wait_stream(cuda.current_stream(device))
        with cuda.stream(stream):
            host_copy.copy_(copy, non_blocking=True)
            event = cuda.Event()
            event.record(stream)
        copy.record_stream(stream)
        size = host_copy.numel() * host_copy.element_size()
        self._pending.append((event, size, lambda: callback(host_copy)))
        self._bytes += size
        while self._bytes > self._max_bytes and len(self._pending) > 1:
            self._finish_first(waits=True)

    def after_copies(self, callback: Callable[[], object]) -> None:
        """Call a callback once all copies started so far are complete."""
        if self._pending:
            self._pending.append((None, 0, callback))
        else:
            callback()

    def _finish_first(self, *, waits: bool) -> bool:
        event, size, callback = self._pending[0]
        if event is not None and not event.query():
            if not waits:
                return False
            event.synchronize()
        self._pending.popleft()
        self._bytes -= size
        callback()
        return True

    def finish(self, *, all_of_them: bool) -> None:
        """Call the callbacks of completed copies, or wait for all copies."""
        while self._pending and self._finish_first(waits=all_of_them):
            pass
