"""python -m benchmarks [NAME...]

boosting, calls, capture, clock, collectives, device, diff, ledger, locate, orders, patches, profile, recording,
requests, resume, seek, startup, supervisor, tensors, throughput, trail, training, trees; or all of these. Alone:
reading, which records a million steps first, and paper: the paper's trainings in its setups, 512 runs in some 45
minutes, which go on where they stopped.
"""

from __future__ import annotations

import argparse

from benchmarks import (
    boosting,
    calls,
    capture,
    clock,
    collectives,
    device,
    diff,
    ledger,
    locate,
    orders,
    patches,
    profiling,
    reading,
    recording,
    requests,
    resume,
    seek,
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
    "boosting": boosting.main,
    "calls": calls.main,
    "capture": capture.main,
    "clock": clock.main,
    "collectives": collectives.main,
    "device": device.main,
    "ledger": ledger.main,
    "locate": locate.main,
    "orders": orders.main,
    "patches": patches.main,
    "profile": profiling.main,
    "recording": recording.main,
    "requests": requests.main,
    "resume": resume.main,
    "seek": seek.main,
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
        "names", nargs="*", choices=[[], "diff", *BENCHMARKS, "reading", "paper"], help="which ones: all by default"
    )
    parser.add_argument("--runs", type=int, default=16, help="of each side, in turn (default 16)")
    parser.add_argument("--size", type=int, default=2 << 30, help="bytes of the files of diff (default 2 GiB)")
    parser.add_argument("--quick", action="store_true", help="of paper only one pair of each setup, of reading 1 %%")
    parser.add_argument("--tables", action="store_true", help="of paper only the tables of what was measured so far")
    options = parser.parse_args()
    print(machine())
    for name in options.names or ("diff", *BENCHMARKS):
        print(f"\n== {name}")
        if name == "diff":
            diff.main(options.runs, options.size)
        elif name == "reading":
            reading.main(min(options.runs, 3), 0.01 if options.quick else 1)
        elif name == "paper":
            paper.main(options.quick, options.tables)
        else:
            BENCHMARKS[name](options.runs)


if __name__ == "__main__":
    main()
