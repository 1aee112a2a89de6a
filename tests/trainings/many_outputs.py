"""Writes 200 small files, and logs one step."""

from pathlib import Path

import reprokit

reprokit.log(step=0, loss=0.5)
for number in range(200):
    Path(f"output-{number}.bin").write_bytes(number.to_bytes(8, "little") * 64)
