"""Digests tensors of devices in logged calls: computed there, and fetched to the host together."""

from __future__ import annotations

from _thread import allocate_lock

from ..core import trail_library
from ..pytorch.devices import digester_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

PAGE_SIZE = 1 << 13  # tensors of a device whose sums are fetched together


class SumPage:
    """Sums of tensors, which lie on the tensors' device until one of them is needed."""

    def __init__(self, torch: Any, device: Any) -> None:
        self._torch, self.device = torch, device
        self.sums = torch.zeros(PAGE_SIZE, dtype=torch.int64, device=device)
        self.count = 0
        self.values: list[int] = []  # on the host; empty before they are fetched
        self._synchronize()  # streams other than the current one add to them

    def _synchronize(self) -> None:
        if self.device.type == "cuda":
            self._torch.cuda.synchronize(self.device)

    def fetch(self) -> list[int]:
        """Return the sums, which wait for the device the first time."""
        if not self.values:
            self._synchronize()
            self.values = self.sums[: self.count].tolist()
        return self.values


class PendingDigest:
    """The digest of values of which some are on devices: an integer, once it is asked for as such."""

    def __init__(self, digest: int) -> None:
        self._digest = digest
        self._sums: list[tuple[SumPage, int, int]] = []  # page, position, salt

    def add(self, page: SumPage, position: int, salt: int) -> None:
        """Fold a tensor into the digest."""
        self._sums.append((page, position, salt))

    def __int__(self) -> int:
        mix, digest = trail_library.mix, self._digest
        for page, position, salt in self._sums:
            digest = mix(digest + mix(page.fetch()[position] + salt))
        return digest


class DeviceSums:
    """Starts to sum tensors on their devices."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._digesters: dict[Any, Any] = {}  # by device
        self._pages: dict[Any, SumPage] = {}
        self._lock = allocate_lock()  # backward passes have threads of their own

    def begin(self, pending: PendingDigest, tensor: Any, salt: int) -> None:
        """Fold a tensor into a pending digest, as it is in the current stream now."""
        device = tensor.device
        with self._lock:
            page = self._pages.get(device)
            if page is None or page.values or page.count == PAGE_SIZE:
                page = self._pages[device] = SumPage(self._torch, device)
            position, page.count = page.count, page.count + 1
            if device not in self._digesters:
                self._digesters[device], _ = digester_of(self._torch, device)
            self._digesters[device].add_sum(tensor, page.sums, position)
        pending.add(page, position, salt)
