"""Entropy that is no call for bytes: the kernel's texts, libuuid, AT_RANDOM, the vDSO; and what is told of the rest."""

from __future__ import annotations

import os
import platform
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

import pytest

from reprokit.core import native
from tests.native import harness
from tests.native.harness import Shim, run
from tests.native.test_keyed import stream_key
from tests.native.test_paths import holds
from tests.native.test_replay import by_thread
from tests.native.test_sanitizers import has_runtime
from tests.native_sources import SHIM_SOURCES

UUID = "/proc/sys/kernel/random/uuid"
TEXTS = [
    "read",
    "characters",
    "pread",
    "duplicate",
    "stream",
    "stdin",
    "fork",
    "child",
    "others",
    "boot_id",
    "libuuid",
]


def stdin_of(path: str) -> IO[bytes] | int:
    return open(UUID, "rb", buffering=0) if path == "stdin" else subprocess.DEVNULL


def test_every_text_of_the_program_is_tried(build: Callable[..., str]) -> None:
    listed = subprocess.run([build("text.c", "-ldl")], capture_output=True, text=True, check=True).stdout.split()
    assert listed == TEXTS


@pytest.mark.parametrize("path", TEXTS)
def test_text(path: str, shim: Shim, build: Callable[..., str]) -> None:
    command = [build("text.c", "-ldl"), path]
    bare = [run(command, stdin=stdin_of(path)) for _ in range(2)]
    if path == "libuuid" and bare[0].returncode == 99:
        pytest.skip("this machine has no libuuid.so.1")
    assert bare[0].returncode == 0, bare[0].stderr
    recorded = shim.record(command, stdin=stdin_of(path))
    assert (recorded.returncode, recorded.stderr) == (0, b"")
    assert len({bare[0].stdout, bare[1].stdout, recorded.stdout}) == 3
    for _ in range(2):
        replayed = shim.replay(command, stdin=stdin_of(path))
        assert (replayed.returncode, replayed.stdout, replayed.stderr) == (0, recorded.stdout, b"")
        fidelity = shim.fidelity()
        assert fidelity.exact == fidelity.requests > 0 == fidelity.unused


@pytest.mark.parametrize(
    "command",
    [
        f"cat {UUID}",
        f"cat < {UUID}",
        f"read id < {UUID}; echo $id",
        f"head -c 8 {UUID}; echo $(cat {UUID}) | tr -d -",
        f"exec 3<{UUID}; head -c 9 <&3; cat <&3",
        f"for i in 1 2 3; do ( cat {UUID} ) & wait; done",
    ],
)
def test_shell(command: str, shim: Shim) -> None:
    holds(shim, ["sh", "-c", command], command)


@pytest.mark.parametrize(
    "script",
    [
        f"print(open('{UUID}').read(), open('{UUID}', 'rb', buffering=0).readall())",
        "import uuid; print(uuid.uuid1(), uuid.uuid4(), uuid.uuid1().is_safe, uuid.getnode())",
        f"import os; fd = os.open('{UUID}', os.O_RDONLY); print(os.pread(fd, 99, 4), os.read(fd, 99))",
    ],
)
def test_python(script: str, shim: Shim) -> None:
    holds(shim, [sys.executable, "-c", script], script)


def test_cpp_stream(shim: Shim, build: Callable[..., str], tmp_path: Path) -> None:
    source = tmp_path / "text.cpp"
    source.write_text(
        "#include <fstream>\n#include <iostream>\nint main() { std::string a, b;\n"
        f'std::ifstream file("{UUID}"); file >> a; std::ifstream other; other.rdbuf()->pubsetbuf(nullptr, 0);\n'
        f'other.open("{UUID}"); other >> b; std::cout << a << " " << b << std::endl; }}\n'
    )
    holds(shim, [build(str(source), output="text-cpp")], "cpp")


def test_a_derived_text_is_a_uuid(shim: Shim) -> None:
    shim.record(["true"])
    replayed = shim.replay(["cat", UUID])
    assert len(replayed.stdout) == 37
    assert replayed.stdout[14:15] == b"4"
    assert replayed.stdout == shim.replay(["cat", UUID]).stdout


def test_each_text_is_an_event_of_16_bytes(shim: Shim) -> None:
    shim.record(["cat", UUID, "/proc/sys/kernel/random/boot_id"])
    found = [(event.source, event.given) for _, event in shim.events() if event.asked is not None]
    assert found == [("text", 16)] * 2


# ---- the initial stack and the vDSO ----------------------------------------------------------------------


def test_at_random_repeats(shim: Shim, build: Callable[..., str], monkeypatch: pytest.MonkeyPatch) -> None:
    command = [build("stack.c"), "at_random"]
    assert run(command).stdout != run(command).stdout
    recorded = shim.record(command)
    assert (recorded.returncode, recorded.stderr) == (0, b"")
    lines = recorded.stdout.splitlines()
    assert len(lines) == len({line.split()[1] for line in lines}) == 3
    assert shim.replay(command).stdout == recorded.stdout
    assert len(shim.events()) == 0  # made from the key: not written down
    monkeypatch.setattr(harness, "KEY", bytes(32))
    assert shim.record(command).stdout != recorded.stdout


def vdso(build: Callable[..., str], path: str) -> list[str]:
    command = [build("stack.c"), path]
    if run(command).returncode == 97:
        pytest.skip("this kernel's vDSO has no getrandom (Linux 6.11)")
    return command


def test_vdso(shim: Shim, build: Callable[..., str]) -> None:
    command = vdso(build, "vdso")
    holds(shim, command, "vdso")
    assert len(shim.events()) == 5


def test_a_sealed_vdso_is_replaced_all_the_same(shim: Shim, build: Callable[..., str]) -> None:
    """Its rights cannot be changed then; what /proc/self/mem writes does not ask for them."""
    vdso(build, "vdso")
    library = build("seal.c", "-shared", "-fPIC", output="libseal.so")
    program = build("stack.c", "-Wl,--no-as-needed", library, f"-Wl,-rpath,{Path(library).parent}", output="sealed")
    if b"sealed" not in run([program, "vdso"]).stderr:
        pytest.skip("this kernel has no mseal (Linux 6.10)")
    recorded = shim.record([program, "vdso"])
    assert recorded.returncode == 0
    assert shim.replay([program, "vdso"]).stdout == recorded.stdout
    assert shim.fidelity().exact == 5


def test_who_asks_for_the_vdso_s_parameters_is_sent_to_the_system_call(shim: Shim, build: Callable[..., str]) -> None:
    command = vdso(build, "parameters")
    assert run(command).stdout == b"0\n"
    assert shim.record(command).stdout == b"-38\n"  # ENOSYS


@pytest.mark.parametrize("options", [(), ("-fsanitize=address,undefined", "-fno-sanitize=alignment")])
def test_the_code_for_the_vdso_and_damaged_images(options: tuple[str, ...], build: Callable[..., str]) -> None:
    if options and not (has_runtime("address") and has_runtime("undefined")):
        pytest.skip("this gcc comes without the runtimes of its sanitizers")
    done = run([build("vdso.c", *options, output=f"vdso{len(options)}")])
    assert (done.returncode, done.stderr) == (0, b"")


# ---- ids in TensorFlow -----------------------------------------------------------------------------------


def ids(build: Callable[..., str], *arguments: str) -> list[str]:
    library = build("ids.cpp", "-shared", "-fPIC", output="libids.so")
    return [build("threads.c", "-ldl"), "library", library, *arguments]


@pytest.mark.parametrize("plan", [{}, {"keyed": True}], ids=["kernel", "keyed"])
def test_ids_of_threads_are_theirs_whoever_asks_first(
    plan: dict[str, Any], shim: Shim, build: Callable[..., str]
) -> None:
    recorded = shim.record(ids(build, "create", "4", "1i2", "2i1", "1:1", "3i3"), plan=plan)
    assert (recorded.returncode, recorded.stderr) == (0, b"")
    given = by_thread(recorded.stdout)
    first = native.check_in_python(stream_key("0", "m.3#ids")[:8], 0)
    second = native.check_in_python(first.to_bytes(8, "little"), 0)
    assert given[b"3"][:2] == [f"{first:016x}".encode(), f"{second:016x}".encode()]  # as docs/format.md says
    command = ids(build, "create", "4", "4i1", "3i1", "1:1", "2i2", "1i2")
    again = by_thread(shim.replay(command, policy="strict", plan=plan).stdout)
    assert again[b"1"] == given[b"1"][-1:] + given[b"1"][:-1]
    assert (again[b"2"][:1], again[b"3"]) == (given[b"2"], given[b"3"][:1])
    values = [value for each in given.values() for value in each] + again[b"2"][1:] + again[b"4"]
    assert len(values) == len(set(values)) == 9
    assert shim.fidelity().exact == shim.fidelity().requests == 1 > shim.fidelity().unused
    assert len(shim.events()) == (0 if plan else 1)  # made from the key: not written down


def test_ids_of_other_processes_and_recordings_are_others(
    shim: Shim, build: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    script = f"{shlex.join(ids(build, 'fork', '1i2'))}; {shlex.join(ids(build, '1i2'))}"
    recorded = shim.record(["sh", "-c", script]).stdout
    values = [line.split()[1] for line in recorded.splitlines()]
    assert len(values) == len(set(values)) == 4
    assert shim.replay(["sh", "-c", script]).stdout == recorded
    monkeypatch.setattr(harness, "KEY", bytes(32))
    other = [line.split()[1] for line in shim.record(["sh", "-c", script]).stdout.splitlines()]
    assert len({*values, *other}) == 8


def test_ids_are_random_outside_of_a_run(shim: Shim, build: Callable[..., str]) -> None:
    command = ids(build, "1i3", "2i3")
    preloaded = {**os.environ, "LD_PRELOAD": str(shim.library)}
    values = [line.split()[1] for _ in range(2) for line in run(command, preloaded).stdout.splitlines()]
    assert len(values) == len(set(values)) == 12


# ---- modules.paths ---------------------------------------------------------------------------------------


def modules(shim: Shim, name: str = "recorded") -> list[str]:
    return (shim.directory / name / "modules.paths").read_text().splitlines()


@pytest.mark.parametrize("end", ["return", "exit(3)", "_exit(3)", "_Exit(3)", "quick_exit(3)"])
def test_a_process_s_modules_are_listed_at_its_end(end: str, shim: Shim, build: Callable[..., str]) -> None:
    program = build("ends.c", "-ldl")
    done = shim.record([program, end])
    assert done.returncode == (0 if end == "return" else 3)
    listed = modules(shim)
    assert len(listed) == len(set(listed))
    assert program in listed
    assert any(path.rpartition("/")[2].startswith("libm.so") or "libm-" in path for path in listed)


def test_a_program_and_its_forked_child_list_once(shim: Shim, build: Callable[..., str]) -> None:
    program = build("ends.c", "-ldl")
    assert shim.record([program, "fork"]).returncode == 0
    assert modules(shim).count(program) == 1  # before the fork; the child loads nothing more
    assert shim.record([program, "vfork"]).returncode == 0
    assert modules(shim).count(program) == 1


# ---- --hide-rdrand ---------------------------------------------------------------------------------------

X86_64 = pytest.mark.skipif(platform.machine() != "x86_64", reason="CPUID is an instruction of x86")


@pytest.mark.slow
@X86_64
def test_the_handler_of_cpuid_answers_it_and_hands_other_faults_on(build: Callable[..., str]) -> None:
    others = [str(path) for path in SHIM_SOURCES if path.name != "cpuid.c"]
    options = ["-DINSIDE", "-ftls-model=initial-exec", *others, "-ldl"]
    done = run([build("faults.c", *options, output="faults-inside")])
    assert (done.returncode, done.stderr) == (0, b"")


@X86_64
def test_rdrand_is_hidden_or_the_run_is_told(shim: Shim, build: Callable[..., str]) -> None:
    program = build("faults.c")
    bare = run([program, "bits"])
    done = run([program, "bits"], shim.environment("recorded", "record", hide_rdrand=True))
    refused = "cpuid" in modules(shim)
    assert done.stdout == (bare.stdout if refused else b"0 0\n")
    assert run([program, "handlers"]).returncode == 0
    done = run([program, "handlers"], shim.environment("recorded", "record", hide_rdrand=True))
    assert (done.returncode, done.stderr) == (0, b"")
