"""Signals and the terminal: what reaches the training, and how often."""

from __future__ import annotations

import os
import pty
import re
import select
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import COMMAND, LIMIT, Reprokit, python, rest_slow, wait_until

# Saves on a signal, which takes as long as the test likes: until the file "go" is there.
SAVING = """
import os, signal, sys, time
def save(number, frame):
    open("saving", "a").write(f"{number}\\n")
    while not os.path.exists("go"):
        time.sleep(0.01)
    open("saved", "w").close()
    sys.exit(42)
for name in sys.argv[1:]:
    signal.signal(getattr(signal, name), save)
open("ready", "w").close()
while True:
    signal.pause()
"""


COUNTING = """
import os, signal, sys, time
count = 0
def note(number, frame):
    global count
    count += 1
    open(f"interrupt-{count}", "w").close()
signal.signal(signal.SIGINT, note)
print("ready", flush=True)
while not os.path.exists("go"):
    time.sleep(0.01)
print("interrupts:", count, flush=True)
sys.exit(17)
"""


@pytest.mark.parametrize("name", rest_slow(["SIGTERM", "SIGINT", "SIGHUP", "SIGUSR1", "SIGUSR2", "SIGQUIT"]))
def test_a_signal_sent_to_reprokit_reaches_a_training_that_takes_its_time(reprokit: Reprokit, name: str) -> None:
    process = reprokit.start("record", "--", *python(SAVING), name)
    wait_until((reprokit.directory / "ready").exists, "the training")
    process.send_signal(getattr(signal, name))
    wait_until((reprokit.directory / "saving").exists, "the signal's handler")
    assert process.poll() is None
    (reprokit.directory / "go").touch()
    process.communicate(timeout=LIMIT)
    assert process.returncode == 42
    assert (reprokit.directory / "saved").exists()
    assert (reprokit.directory / "saving").read_text() == f"{getattr(signal, name).value}\n"
    assert reprokit.facts()["status"] == "finished"


@pytest.mark.parametrize("name", rest_slow(["SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1"]))
def test_a_signal_sent_to_the_whole_group_reaches_the_training_once(reprokit: Reprokit, name: str) -> None:
    code = COUNTING.replace("SIGINT", name)
    process = reprokit.start("record", "--", *python(code), start_new_session=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    for number in range(1, 4):  # one after the other: pending signals of a kind are one
        os.killpg(process.pid, getattr(signal, name))
        wait_until((reprokit.directory / f"interrupt-{number}").exists, "the handler")
    (reprokit.directory / "go").touch()
    output, _ = process.communicate(timeout=LIMIT)
    assert output == "interrupts: 3\n"
    assert process.returncode == 17


def test_a_signal_to_all_that_is_called_reprokit_is_one_for_reprokit_alone(reprokit: Reprokit) -> None:
    """The process that watches the group is not found by that name: what it is sent counts as sent to the group."""
    own = f"run-of-{os.getpid()}"
    process = reprokit.start("record", "-o", own, "--", "sh", "-c", "touch ready; exec sleep 100")
    wait_until((reprokit.directory / "ready").exists, "the training")
    subprocess.run(["pkill", "-TERM", "-f", f"reprokit record -o {own}"], check=True)
    process.communicate(timeout=LIMIT)
    assert process.returncode == -signal.SIGTERM


def test_nothing_of_reprokit_is_left_behind(reprokit: Reprokit) -> None:
    process = reprokit.start("record", "--", "sh", "-c", "touch ready; exec sleep 100", start_new_session=True)
    wait_until((reprokit.directory / "ready").exists, "the training")
    process.kill()
    wait_until(lambda: len(group(process.pid)) == 1, "the end of all but the training")
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate(timeout=LIMIT)


def group(leader: int) -> list[str]:
    """The programs that run in a process group."""
    listing = subprocess.run(["ps", "-e", "-o", "pgid=,stat=,comm="], capture_output=True, text=True, check=True)
    rows = (line.split(None, 2) for line in listing.stdout.splitlines())
    return [name for number, state, name in rows if int(number) == leader and not state.startswith("Z")]


def test_a_training_that_does_not_handle_the_signal_dies_of_it(reprokit: Reprokit) -> None:
    process = reprokit.start("record", "--", "sh", "-c", "touch ready; exec sleep 100")
    wait_until((reprokit.directory / "ready").exists, "the training")
    process.terminate()
    process.communicate(timeout=LIMIT)
    assert process.returncode == -signal.SIGTERM
    assert reprokit.facts()["signal"] == "SIGTERM"


def test_a_training_goes_on_without_a_killed_launcher(reprokit: Reprokit) -> None:
    code = "import os, time\nopen('ready', 'w')\nwhile not os.path.exists('go'): time.sleep(0.01)\nopen('done', 'w')"
    process = reprokit.start("record", "--", *python(code))
    wait_until((reprokit.directory / "ready").exists, "the training")
    process.kill()
    process.wait(LIMIT)
    (reprokit.directory / "go").touch()
    wait_until((reprokit.directory / "done").exists, "the training's end")
    assert reprokit.facts()["status"] == "running"
    process.communicate(timeout=LIMIT)


def test_a_run_in_progress_says_so(reprokit: Reprokit) -> None:
    process = reprokit.start("record", "-o", "run", "--", "sh", "-c", "touch ready; exec sleep 100")
    wait_until((reprokit.directory / "ready").exists, "the training")
    for arguments in (["replay", "run"], ["record", "-o", "run", "--overwrite", "--", "true"]):
        done = reprokit.run(*arguments)
        assert done.returncode == 125
        assert done.stderr.startswith("reprokit: run-in-progress: ")
    process.terminate()
    process.communicate(timeout=LIMIT)


class Terminal:
    """A session with a terminal of its own, as a user sits at it."""

    def __init__(self, arguments: list[str], directory: Path):
        self.pid, self.descriptor = pty.fork()
        if self.pid == 0:
            os.chdir(directory)
            os.execvp(arguments[0], arguments)
        self.text = ""

    def type(self, text: str) -> None:
        os.write(self.descriptor, text.encode())

    def expect(self, pattern: str) -> None:
        """Read until the pattern shows, and forget what stands before its end."""
        deadline = time.monotonic() + LIMIT
        while (found := re.search(pattern, self.text)) is None:
            if not self._read(deadline - time.monotonic()):
                raise AssertionError(f"no {pattern!r} in {self.text!r}")
        self.text = self.text[found.end() :]

    def status(self) -> int:
        """The session leader's wait status, after all that it still writes."""
        while self._read(LIMIT):
            pass
        return os.waitpid(self.pid, 0)[1]

    def _read(self, limit: float) -> bool:
        if not select.select([self.descriptor], [], [], max(limit, 0))[0]:
            return False
        try:
            data = os.read(self.descriptor, 4096)
        except OSError:  # the other side is closed
            return False
        self.text += data.decode("utf-8", "replace")
        return bool(data)

    def close(self) -> None:
        os.close(self.descriptor)
        try:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
        except (ProcessLookupError, ChildProcessError):
            pass


RECORD_TRAINING = shlex.join([COMMAND, "record", "--", sys.executable, "train.py"])


@pytest.fixture
def bash(reprokit: Reprokit) -> Iterator[Terminal]:
    """An interactive shell with job control."""
    terminal = Terminal(["bash", "--norc", "--noprofile", "-i"], reprokit.directory)
    terminal.type("PS1='pro''mpt> '; unset PROMPT_COMMAND\n")
    terminal.expect("prompt> ")
    yield terminal
    terminal.close()


def test_the_training_has_the_terminal(reprokit: Reprokit) -> None:
    code = "import os, sys; print(*(os.isatty(number) for number in range(3)), os.get_terminal_size().columns > 0)"
    terminal = Terminal([COMMAND, "record", "--", *python(code)], reprokit.directory)
    terminal.expect("True True True")
    assert os.waitstatus_to_exitcode(terminal.status()) == 0
    terminal.close()


def test_control_c_reaches_the_training_once_and_leaves_reprokit_alone(reprokit: Reprokit, bash: Terminal) -> None:
    (reprokit.directory / "train.py").write_text(COUNTING)
    bash.type(f"{RECORD_TRAINING}; echo status $?\n")
    bash.expect("ready")
    bash.type("\x03")
    bash.expect(r"\^C")
    (reprokit.directory / "go").touch()
    bash.expect("interrupts: 1\r")
    bash.expect("reprokit: run: ")
    bash.expect("status 17")


def test_control_z_stops_both_and_fg_continues_both(reprokit: Reprokit, bash: Terminal) -> None:
    (reprokit.directory / "train.py").write_text(COUNTING)
    bash.type(f"{RECORD_TRAINING}\n")
    bash.expect("ready")
    bash.type("\x1a")
    bash.expect("Stopped")
    bash.expect("prompt> ")
    states = subprocess.run(["ps", "-o", "stat=", "--ppid", str(bash.pid)], capture_output=True, text=True)
    assert states.stdout.strip().startswith("T"), states
    (reprokit.directory / "go").touch()
    bash.type("fg; echo status $?\n")
    bash.expect("interrupts: 0\r")
    bash.expect("status 17")


LINGERING = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>
struct start { void *(*routine)(void *); void *argument; };
static void *lingering(void *given) {
    struct start start = *(struct start *)given;
    free(given);
    void *result = start.routine(start.argument);
    sleep(4);
    return result;
}
int pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*routine)(void *), void *argument) {
    int (*real)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *) = dlsym(RTLD_NEXT, "pthread_create");
    struct start *start = malloc(sizeof(*start));
    *start = (struct start){routine, argument};
    return real(thread, attributes, lingering, start);
}
"""


@pytest.mark.slow
def test_the_end_of_a_training_is_seen_where_the_thread_that_started_it_lingers(reprokit: Reprokit) -> None:
    """On a busy machine a thread ends long after it was joined, and takes signals until then."""
    library = reprokit.directory / "lingering.so"
    subprocess.run(["gcc", "-shared", "-fPIC", "-x", "c", "-", "-o", library], input=LINGERING, text=True, check=True)
    environment = {**os.environ, "LD_PRELOAD": str(library)}
    process = reprokit.start("record", "--", "sleep", "1", env=environment)
    assert process.wait(timeout=LIMIT) == 0
