"""python -m benchmarks [NAME...]

capture, clock, collectives, diff, ledger, locate, orders, patches, profile, recording, requests, resume, startup,
supervisor, tensors, throughput, trail, training, trees; or all of these. And paper, alone: the paper's trainings in its
setups, 512 runs in some 45 minutes, which go on where they stopped.
"""

from __future__ import annotations

import argparse

from benchmarks import (
    capture,
    clock,
    collectives,
    diff,
    ledger,
    locate,
    orders,
    patches,
    profiling,
    recording,
    requests,
    resume,
    startup,
    supervisor,
    tensors,
    throughput,
    trail,
    training,
    trees,
)
from benchmarks.measure import machine
from benchmarks.paper import measure as paper

BENCHMARKS = {
    "capture": capture.main,
    "clock": clock.main,
    "collectives": collectives.main,
    "ledger": ledger.main,
    "locate": locate.main,
    "orders": orders.main,
    "patches": patches.main,
    "profile": profiling.main,
    "recording": recording.main,
    "requests": requests.main,
    "resume": resume.main,
    "startup": startup.main,
    "supervisor": supervisor.main,
    "tensors": tensors.main,
    "throughput": throughput.main,
    "trail": trail.main,
    "training": training.main,
    "trees": trees.main,
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument(
        "names", nargs="*", choices=[[], "diff", *BENCHMARKS, "paper"], help="which ones: all by default"
    )
    parser.add_argument("--runs", type=int, default=16, help="of each side, in turn (default 16)")
    parser.add_argument("--size", type=int, default=2 << 30, help="bytes of the files of diff (default 2 GiB)")
    parser.add_argument("--quick", action="store_true", help="of paper only one pair of each setup")
    parser.add_argument("--tables", action="store_true", help="of paper only the tables of what was measured so far")
    options = parser.parse_args()
    print(machine())
    for name in options.names or ("diff", *BENCHMARKS):
        print(f"\n== {name}")
        if name == "diff":
            diff.main(options.runs, options.size)
        elif name == "paper":
            paper.main(options.quick, options.tables)
        else:
            BENCHMARKS[name](options.runs)


if __name__ == "__main__":
    main()
