"""Records what mpirun starts on other hosts: the daemon of each host writes its own part of the run.

Open MPI starts daemons with ssh or a configured command; remote_shell.sh replaces it and starts reprokit there first.
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from msgspec.structs import replace

from reprokit.model.plan import RECORD, Plan, ReplayStart

AGENTS = ("OMPI_MCA_plm_rsh_agent", "PRTE_MCA_plm_ssh_agent")  # Open MPI 4 and 5
SCRIPT = Path(__file__).with_name("remote_shell.sh")
SHELL = "REPROKIT_REMOTE_SHELL"  # the command that reaches another host
START = "REPROKIT_REMOTE"  # what is executed there for $part; $REPROKIT_DAEMON holds the daemon's command
DAEMON = 'eval "$REPROKIT_DAEMON"'  # in a variable, as it holds ports and job names, which differ in a replay


def with_other_hosts(plan: Plan, words: Sequence[str]) -> Plan:
    """Return the plan for one host's part of a run, whose command also starts the parts of other hosts.

    words: reprokit's own arguments of record or replay; the last -o counts.
    """
    assert plan.output is not None
    options = list(words[: words.index("--")] if "--" in words else words)
    parts = shlex.quote(os.path.realpath(plan.output.parent))
    remote_arguments = f'-o {parts}/"$part"'
    if plan.mode == RECORD:
        remote_arguments += f" -- sh -c {shlex.quote(DAEMON)}"
    elif plan.replay_of is not None:
        recording = plan.replay_of.path
        options = [word for word in options if os.path.realpath(word) != recording]
        remote_arguments += f' {shlex.quote(os.path.dirname(recording))}/"$part"'
    start = f"{shlex.join([sys.executable, '-m', 'reprokit', *options])} {remote_arguments}"
    # A second daemon of the same host is another part, unless parts are replaced.
    count = "" if plan.overwrite else f'while [ -e {parts}/"$part" ]; do n=$((n + 1)); part=$host-$n; done\n'
    lines = [
        f"cd {shlex.quote(str(plan.working_directory))} || exit",
        "n=1 part=$host",
        f"{count}[ -x {shlex.quote(sys.executable)} ] && exec {start}",
        'echo "reprokit: warning: reprokit is not on $host: its ranks are not recorded" >&2',
        DAEMON,
    ]
    environment = {**os.environ, **(plan.variables or {})}
    shell = environment.get(SHELL) or next((environment[name] for name in AGENTS if environment.get(name)), "ssh -x")
    variables = dict.fromkeys(AGENTS, f"sh {SCRIPT}")  # with sh, as installers may drop the script's mode
    # Hosts share their files, and wait for each other.
    return replace(
        plan,
        start=ReplayStart.HERE,
        own_variables={**variables, SHELL: shell.partition(" : ")[0], START: "\n".join(lines)},
    )
