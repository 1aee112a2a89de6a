"""Says what pip is about to download, and asks before CUDA's libraries: python download.py REPORT [--cuda].

REPORT is the file of `pip install --dry-run --report`. Exits with 2 if the answer is no, or nobody is there to answer.
"""

from __future__ import annotations

import json
import sys
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

PATIENCE = 5.0  # seconds for an index to say how large a file is
NAMED = 12


def size(url: str) -> int:
    """Return the bytes of a file; 0 if the index does not say."""
    try:
        request = urllib.request.Request(url, method="HEAD")
        with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
            return int(answer.headers["Content-Length"])
    except (OSError, ValueError, TypeError):
        return 0


def in_words(total: int, *, is_whole: bool) -> str:
    """Return a sum of sizes, such as "250 MB"."""
    unit, words = (1e9, "GB") if total >= 1e9 else (1e6, "MB")
    text = f"{total / unit:.1f} {words}" if total >= 1e9 else f"{max(1, round(total / unit))} {words}"
    return text if is_whole else f"at least {text}" if total else "of unknown size"


def main(report: str, *options: str) -> int:
    """Print what is missing here, and ask where CUDA is among it."""
    listed = json.loads(Path(report).read_text())["install"]
    packages = [package for package in listed if "dir_info" not in package["download_info"]]  # but this checkout
    if not packages:
        return 0
    with ThreadPoolExecutor(8) as pool:
        sizes = list(pool.map(size, (package["download_info"]["url"] for package in packages)))
    names = [f"{package['metadata']['name']} {package['metadata']['version']}" for package in packages]
    shown = [name for _, name in sorted(zip(sizes, names, strict=True), reverse=True)][:NAMED]
    more = f" and {len(names) - len(shown)} more" if len(names) > len(shown) else ""
    print(f"to download, {in_words(sum(sizes), is_whole=all(sizes))}: {', '.join(shown)}{more}", flush=True)
    if "--cuda" in options or not any(name.startswith("nvidia-") for name in names):
        return 0
    if sys.stdin.isatty():
        print("CUDA's libraries are among it, as no index of wheels for the CPU was reached. Go on? [y/N] ", end="")
        return 0 if input().strip().lower() in ("y", "yes") else 2
    print("stopped: CUDA's libraries are among it. CUDA=1 takes them, FRAMEWORK=numpy needs none", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
