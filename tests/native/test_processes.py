"""Every way of making threads and processes: bare runs differ, each replay equals the recording."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from reprokit import entropy
from tests.native.harness import Shim, run
from tests.native.test_paths import holds

WAYS = {  # and how many processes of it ask for entropy
    "clone": 4,
    "clone_thread": 1,
    "clone_shared_memory": 1,
    "syscall_clone": 4,
    "syscall_clone3": 4,
    "double_fork": 2,
    "daemon": 2,
    "forkpty": 1,
    "openpty": 1,
    "popen_write": 2,
    "system_in_thread": 4,
    "popen_in_thread": 4,
    "spawn_in_thread": 4,
    **dict.fromkeys(
        ["execl", "execlp", "execle", "execv", "execvp", "execvpe", "execve", "fexecve", "execveat", "execveat_empty"],
        5,
    ),
    "spawn_attributes": 6,
    "spawn_actions": 1,
    "draw": 1,
}


def test_every_way_is_tried(build: Callable[..., str]) -> None:
    listed = subprocess.run([build("processes.c", "-lutil")], capture_output=True, text=True, check=True).stdout.split()
    assert set(listed) == set(WAYS)


@pytest.mark.parametrize("way", WAYS)
def test_c(way: str, shim: Shim, build: Callable[..., str]) -> None:
    holds(shim, [build("processes.c", "-lutil"), way], way)
    assert sum(map(asked, entropy.processes(shim.entropy("recorded")))) == WAYS[way]


def asked(file: entropy.EntropyFile) -> bool:
    """Whether the process of this file asked for anything: the command's own file is always there."""
    return any(True for _ in file.records())


def test_openmp(shim: Shim, build: Callable[..., str]) -> None:
    holds(shim, [build("openmp.c", "-fopenmp")], "openmp")
    assert {event.thread for _, event in shim.events()} == {"m", "m.1", "m.2", "m.3"}


PROLOGUE = f"""
import os, sys
program = [{sys.executable!r}, "-S", "-c", "import os; print(os.urandom(8).hex(), flush=True)"]
def draw(*_):
    return os.urandom(8).hex()
"""
FORKED = "if pid == 0: print(draw(), flush=True); os._exit(0)\n    os.waitpid(pid, 0)"
PYTHON = {
    "fork": f"for _ in range(3):\n    pid = os.fork()\n    {FORKED}",
    "fork_in_thread": "import threading\n"
    f"def forks():\n    pid = os.fork()\n    {FORKED}\n"
    "for _ in range(3): thread = threading.Thread(target=forks); thread.start(); thread.join()",
    "pty_fork": "import pty\npid, terminal = pty.fork()\n"
    "if pid == 0: print(draw(), flush=True); os._exit(0)\nprint(open(terminal, 'rb', 0).read(16)); os.waitpid(pid, 0)",
    "pty_spawn": "import pty; pty.spawn(program)",
    "posix_spawn": "for spawn in (os.posix_spawn, os.posix_spawnp):\n"
    "    for options in ({}, {'setpgroup': 0}, {'setsigmask': []}, {'resetids': True}):\n"
    "        os.waitpid(spawn(program[0], program, {}, **options), 0)",
    "spawnv": "for name in ('spawnv', 'spawnvp'): getattr(os, name)(os.P_WAIT, program[0], program)\n"
    "for name in ('spawnve', 'spawnvpe'): getattr(os, name)(os.P_WAIT, program[0], program, {})\n"
    "os.waitpid(os.spawnl(os.P_NOWAIT, program[0], *program), 0); os.spawnle(os.P_WAIT, program[0], *program, {})",
    "exec_in_place": "print(draw(), flush=True); os.execv(program[0], program)",
    "execve_in_place": "print(draw(), flush=True); os.execve(program[0], program, {})",
    "execvpe_of_descriptor": "os.execve(os.open(program[0], os.O_RDONLY), program, {})",
    "system": "import shlex; os.system(shlex.join(program)); print(os.popen(shlex.join(program)).read())",
    "subprocess_flags": "import subprocess\nfor options in ({'shell': True}, {'process_group': 0}, {'umask': 7},\n"
    "        {'cwd': '/'}, {'pass_fds': [1]}, {'restore_signals': False}, {'start_new_session': True, 'env': {}},\n"
    "        {'stdin': subprocess.DEVNULL, 'close_fds': False}, {'bufsize': 0}, {'preexec_fn': draw}):\n"
    "    if 'process_group' in options and sys.version_info < (3, 11): continue\n"
    "    command = ' '.join(map(repr, program)).replace('\"', '') if options.get('shell') else program\n"
    "    print(subprocess.run(command, stdout=subprocess.PIPE, **options).stdout)",
    "subprocess_without_vfork": "import subprocess; subprocess._USE_VFORK = subprocess._USE_POSIX_SPAWN = False\n"
    "print(subprocess.check_output(program), subprocess.getoutput('head -c 4 /dev/urandom | od -An -tx1'))",
    "asyncio": "import asyncio\nasync def main():\n    for _ in range(3):\n"
    "        child = await asyncio.create_subprocess_exec(*program, stdout=asyncio.subprocess.PIPE)\n"
    "        print((await child.communicate())[0])\n"
    "    child = await asyncio.create_subprocess_shell('head -c 4 /dev/urandom | od -An -tx1'); await child.wait()\n"
    "asyncio.run(main())",
    "to_thread": "import asyncio, concurrent.futures\nasync def main():\n"
    "    asyncio.get_running_loop().set_default_executor(concurrent.futures.ThreadPoolExecutor(1))\n"
    "    print([await asyncio.to_thread(draw) for _ in range(4)])\nasyncio.run(main())",
    "thread_pool": "from multiprocessing.pool import ThreadPool\nprint(ThreadPool(1).map(draw, range(9), chunksize=1))",
    "raw_thread": "import _thread, queue\nfor _ in range(3):\n    q = queue.Queue()\n"
    "    _thread.start_new_thread(lambda: q.put(draw()), ()); print(q.get())",
}


@pytest.mark.parametrize("script", PYTHON.values(), ids=PYTHON.keys())
def test_python(script: str, shim: Shim) -> None:
    holds(shim, [sys.executable, "-S", "-c", PROLOGUE + script], script)


POOLS = {
    "concurrent_futures": "from concurrent.futures import ProcessPoolExecutor\n"
    "    import multiprocessing\n"
    "    for method in ('fork', 'spawn'):\n"
    "        with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context(method)) as pool:\n"
    "            print(list(pool.map(draw, range(5))))",
    "joblib": "import joblib\n"
    "    print(joblib.Parallel(n_jobs=2, backend='loky', batch_size=1)(joblib.delayed(same)(i) for i in range(4)))",
    "pool_initializer": "from multiprocessing import Pool\n"
    "    print(len(set(Pool(4, initializer=draw).map(same, range(8)))))\n"
    "    print(draw())",
}
POOL = """
import os, random

def draw(*_):
    return os.urandom(8).hex()

def same(i):
    return random.Random(i).random()

if __name__ == "__main__":
    print(draw())
    {}
"""


@pytest.mark.slow
@pytest.mark.parametrize("pool", POOLS.values(), ids=POOLS.keys())
def test_python_pools(pool: str, shim: Shim, tmp_path: Path) -> None:
    script = tmp_path / "pool.py"
    script.write_text(POOL.format(pool))
    command = [sys.executable, str(script)]
    recorded = shim.record(command)
    assert recorded.returncode == 0, recorded.stderr
    assert run(command).stdout != recorded.stdout
    replayed = shim.replay(command)
    assert (replayed.returncode, replayed.stdout) == (0, recorded.stdout)


CONTROLLED = ["getrandom", "fopen", "threads", "fork", "posix_spawn"]


@pytest.mark.parametrize("path", CONTROLLED)
def test_a_live_replay_of_nothing_differs(path: str, shim: Shim, build: Callable[..., str]) -> None:
    command = [build("paths.c"), path]
    shim.record(["sh", "-c", "true"])
    outputs = {shim.replay(command, policy="live").stdout for _ in range(3)}
    assert len(outputs) == 3
    assert shim.fidelity().live == shim.fidelity().requests > 0


@pytest.mark.parametrize("path", CONTROLLED)
def test_a_replay_without_its_plan_differs(path: str, shim: Shim, build: Callable[..., str]) -> None:
    command = [build("paths.c"), path]
    recorded = shim.record(command)
    for missing in ("shim.plan", "LD_PRELOAD"):
        environment = shim.environment("replayed", "replay", profile="recorded")
        environment.pop(missing, None)
        if missing == "shim.plan":
            (shim.directory / "replayed" / missing).unlink()
        replayed = run(command, environment)
        assert replayed.returncode == 0
        assert replayed.stdout != recorded.stdout
        assert entropy.entropy_files(shim.entropy("replayed")) == []


@pytest.mark.parametrize("path", CONTROLLED)
def test_a_replay_of_nothing_by_another_key_differs(path: str, shim: Shim, build: Callable[..., str]) -> None:
    command = [build("paths.c"), path]
    shim.record(["sh", "-c", "true"])
    first, second = (shim.replay(command).stdout for _ in range(2))
    assert first == second
    assert shim.fidelity().derived == shim.fidelity().requests > 0
    assert shim.record(command, "other").stdout != first
