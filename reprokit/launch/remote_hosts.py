"""Records what mpirun starts on other hosts: the daemon of each writes a part of its own, beside this host's.

Open MPI starts daemons with ssh, or with what a variable names: remote_shell.sh, which starts reprokit there first.
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from msgspec.structs import replace

from reprokit.plan import RECORD, Plan

AGENTS = ("OMPI_MCA_plm_rsh_agent", "PRTE_MCA_plm_ssh_agent")  # Open MPI 4 and 5
SCRIPT = Path(__file__).with_name("remote_shell.sh")
SHELL = "REPROKIT_REMOTE_SHELL"  # what reaches another host
START = "REPROKIT_REMOTE"  # what is run there for $part, of which the daemon's command is $REPROKIT_DAEMON
DAEMON = 'eval "$REPROKIT_DAEMON"'  # its words hold ports and names of jobs, which a replay has others of


def with_other_hosts(plan: Plan, words: Sequence[str]) -> Plan:
    """Return the plan for a part of a run of several hosts, of which the others are reached from its command.

    words: reprokit's own, of record or replay; the last -o counts.
    """
    assert plan.output is not None
    own = list(words[: words.index("--")] if "--" in words else words)
    parts = shlex.quote(os.path.realpath(plan.output.parent))
    there = f'-o {parts}/"$part"'
    if plan.mode == RECORD:
        there += f" -- sh -c {shlex.quote(DAEMON)}"
    elif plan.replay_of is not None:
        recording = plan.replay_of.path
        own = [word for word in own if os.path.realpath(word) != recording]
        there += f' {shlex.quote(os.path.dirname(recording))}/"$part"'
    start = f"{shlex.join([sys.executable, '-m', 'reprokit', *own])} {there}"
    # A second daemon of the same host is another part, unless parts are replaced.
    count = "" if plan.overwrite else f'while [ -e {parts}/"$part" ]; do n=$((n + 1)); part=$host-$n; done\n'
    lines = [
        f"cd {shlex.quote(str(plan.working_directory))} || exit",
        "n=1 part=$host",
        f"{count}[ -x {shlex.quote(sys.executable)} ] && exec {start}",
        'echo "reprokit: warning: reprokit is not on $host: its ranks are not recorded" >&2',
        DAEMON,
    ]
    given = {**os.environ, **(plan.variables or {})}
    shell = given.get(SHELL) or next((given[name] for name in AGENTS if given.get(name)), "ssh -x")
    variables = dict.fromkeys(AGENTS, f"sh {SCRIPT}")  # installers may drop its mode
    return replace(plan, beside={**variables, SHELL: shell.partition(" : ")[0], START: "\n".join(lines)})
