"""python -m benchmarks [requests] [startup] [supervisor] [training] [--runs N]: all of them, or those named."""

from __future__ import annotations

import argparse

from benchmarks import requests, startup, supervisor, training
from benchmarks.measure import machine

BENCHMARKS = {
    "requests": requests.main,
    "startup": startup.main,
    "supervisor": supervisor.main,
    "training": training.main,
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument(
        "names", nargs="*", choices=[[], *BENCHMARKS], help="requests, startup, supervisor or training; all by default"
    )
    parser.add_argument("--runs", type=int, default=16, help="of each side, in turn (default 16)")
    options = parser.parse_args()
    print(machine())
    for name in options.names or BENCHMARKS:
        print(f"\n== {name}")
        BENCHMARKS[name](options.runs)


if __name__ == "__main__":
    main()
