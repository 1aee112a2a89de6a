"""python -m benchmarks [NAME...]

capture, diff, patches, profile, requests, startup, supervisor, trail, training; or all.
"""

from __future__ import annotations

import argparse

from benchmarks import capture, diff, patches, profiling, requests, startup, supervisor, trail, training
from benchmarks.measure import machine

BENCHMARKS = {
    "capture": capture.main,
    "patches": patches.main,
    "profile": profiling.main,
    "requests": requests.main,
    "startup": startup.main,
    "supervisor": supervisor.main,
    "trail": trail.main,
    "training": training.main,
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", choices=[[], "diff", *BENCHMARKS], help="which ones: all by default")
    parser.add_argument("--runs", type=int, default=16, help="of each side, in turn (default 16)")
    parser.add_argument("--size", type=int, default=2 << 30, help="bytes of the files of diff (default 2 GiB)")
    options = parser.parse_args()
    print(machine())
    for name in options.names or ("diff", *BENCHMARKS):
        print(f"\n== {name}")
        if name == "diff":
            diff.main(options.runs, options.size)
        else:
            BENCHMARKS[name](options.runs)


if __name__ == "__main__":
    main()
