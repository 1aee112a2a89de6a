"""What the child is given: arguments, stdin, descriptors, signals' dispositions, environment."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from reprokit import entropy
from tests.interpreters import interpreter
from tests.support import COMMAND, Reprokit, python

ARGUMENTS = ["plain", "two words", "line\nbreak", "", "*", "$HOME", "'\"\\", "ä", "--flag=x y"]


def test_arguments_arrive_as_they_are(reprokit: Reprokit) -> None:
    done = reprokit.record(*python("import json, sys; print(json.dumps(sys.argv[1:]))"), *ARGUMENTS)
    assert json.loads(done.stdout) == ARGUMENTS
    assert reprokit.facts()["command"][3:] == ARGUMENTS


def test_bytes_that_are_no_text_arrive_and_are_kept(reprokit: Reprokit) -> None:
    done = reprokit.record("printf", "%s", b"\xff\xfe")
    assert os.fsencode(done.stdout) == b"\xff\xfe"
    assert os.fsencode(reprokit.facts()["command"][2]) == b"\xff\xfe"


def test_stdin_is_the_users(reprokit: Reprokit) -> None:
    assert reprokit.record("cat", stdin="one\ntwo").stdout == "one\ntwo"


def test_an_inherited_descriptor_is_passed_on_and_no_other(reprokit: Reprokit) -> None:
    listing = "import os; print(sorted(os.listdir('/proc/self/fd')), os.read(int(os.environ['FD']), 9))"
    outputs = []
    for prefix in ([], [COMMAND, "record", "--"]):
        reader, writer = os.pipe()
        os.write(writer, b"inherited")
        os.close(writer)
        done = subprocess.run(
            [*prefix, *python(listing)],
            cwd=reprokit.directory,
            env={**os.environ, "FD": str(reader)},
            pass_fds=(reader,),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=True,
        )
        os.close(reader)
        outputs.append(done.stdout.replace(f"'{reader}'", "FD"))
    assert outputs[0] == outputs[1]


def test_a_closed_stdin_stays_closed(reprokit: Reprokit) -> None:
    done = subprocess.run(
        ["sh", "-c", 'exec "$0" record -- sh -c "test ! -e /proc/self/fd/0 && echo closed" <&-', COMMAND],
        cwd=reprokit.directory,
        capture_output=True,
        text=True,
    )
    assert done.stdout == "closed\n"


@pytest.mark.parametrize("prepare", ["", "trap '' HUP;"])
def test_dispositions_and_mask_are_those_of_the_caller(reprokit: Reprokit, prepare: str) -> None:
    look = "grep -E '^Sig(Blk|Ign|Cgt)' /proc/self/status"
    bare = subprocess.run(["bash", "-c", f"{prepare} {look}"], capture_output=True, text=True, check=True)
    wrapped = f'{prepare} exec "$0" record -- {look}'
    recorded = subprocess.run(
        ["bash", "-c", wrapped, COMMAND], cwd=reprokit.directory, capture_output=True, text=True, check=True
    )
    assert recorded.stdout == bare.stdout


def test_the_child_is_in_the_callers_process_group_and_session(reprokit: Reprokit) -> None:
    show = python("import os; print(os.getpgrp(), os.getsid(0))")
    done = reprokit.record(*show)
    assert done.stdout == f"{os.getpgrp()} {os.getsid(0)}\n"


def environment_of(text: str) -> dict[str, str]:
    return dict(entry.split("=", 1) for entry in text.split("\0") if entry)


def test_the_environment_has_the_same_size_whatever_the_run_is_called(reprokit: Reprokit) -> None:
    sizes = set()
    for name in ("x", "a-much-longer-name-" * 5):
        done = reprokit.run("record", "-o", name, "--", "env", "-0")
        assert done.returncode == 0
        sizes.add(len(os.fsencode(done.stdout)))
        assert len(environment_of(done.stdout)["REPROKIT_RUN"]) == 512
        assert environment_of(done.stdout)["REPROKIT_RUN"].endswith(f"/{name}")
        assert Path(environment_of(done.stdout)["REPROKIT_RUN"]).is_dir()
        sizes.add(reprokit.facts(name)["environment_size"])
    assert len(sizes) == 1
    assert sizes.pop() % 8192 == 0


def test_little_room_for_thread_local_variables_is_enough(reprokit: Reprokit) -> None:
    """As in some interpreters built with --enable-shared: the command line does not load the shim."""
    done = reprokit.record("true", environment={"GLIBC_TUNABLES": "glibc.rtld.optional_static_tls=0"})
    assert done.returncode == 0, done.stderr
    assert reprokit.facts()["shim"]["state"] == "loaded"


def test_what_the_user_preloads_stays_behind_the_shim(reprokit: Reprokit) -> None:
    users = {"PYTHONPATH": "/users/own", "LD_PRELOAD": "libm.so.6"}
    given = environment_of(reprokit.record("env", "-0", environment=users).stdout)
    assert given["PYTHONPATH"].split(":")[0].endswith("/agent/bootstrap")
    assert given["PYTHONPATH"].split(":")[1:] == ["/users/own"]
    assert given["LD_PRELOAD"].split(":")[0].endswith("liburandom_hook_loader.so")
    assert given["LD_PRELOAD"].split(":")[1:] == ["libm.so.6"]


def test_an_empty_python_path_does_not_become_the_current_directory(reprokit: Reprokit) -> None:
    given = environment_of(reprokit.record("env", "-0", environment={"PYTHONPATH": ""}).stdout)
    assert ":" not in given["PYTHONPATH"]


def test_addresses_are_the_same_in_two_runs_where_the_system_allows_it(reprokit: Reprokit) -> None:
    look = python("print(id(object()), *(line for line in open('/proc/self/maps') if '[stack]' in line))")
    first, second = (reprokit.record(*look).stdout for _ in range(2))
    state = reprokit.facts()["address_randomization"]
    if state["state"] == "off":
        assert first == second
    else:
        assert state["why"]


def test_variables_of_a_replay_are_in_the_order_of_its_recording(reprokit: Reprokit) -> None:
    """Python's objects for them lie as they come, and so do all that are made later. OMP_NUM_THREADS is given again."""
    script = reprokit.script("names.py", "import os\nprint(*os.environ, id(object()))")
    command = [sys.executable, str(script)]
    given = {"OMP_NUM_THREADS": "1", "ZZZ_LAST": "1"}  # in this order; a replay adds the first one behind the last
    recorded = reprokit.run("record", "-o", "recorded", "--", *command, environment=given).stdout
    assert recorded == reprokit.run("replay", "recorded", environment={"ZZZ_LAST": "1"}).stdout != ""


def test_reprokit_itself_keeps_address_randomization(reprokit: Reprokit) -> None:
    code = """
import os
from reprokit.run.kernel import without_randomization
look = lambda: os.popen("cat /proc/self/personality").read()
before = look()
with without_randomization() as outcome:
    within = look()
assert look() == before
assert (within != before) == (not outcome.is_on), (within, before, outcome)
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_secrets_are_nowhere_in_the_run(reprokit: Reprokit) -> None:
    secret = "hunter2-very-secret"
    variables = {
        "OMP_NUM_THREADS": "3",
        "HF_TOKEN": secret,
        "TORCH_HUB_SECRET": secret,
        "NCCL_AUTH_KEY": secret,
        "TF_VAR_password": secret,
        "CUDA_REGISTRY": f"https://user:{secret}@registry.example/",
    }
    assert reprokit.record("true", environment=variables).returncode == 0
    assert reprokit.facts()["variables"]["OMP_NUM_THREADS"] == "3"
    files = [path for path in reprokit.last.rglob("*") if path.is_file()]
    assert files
    assert not [path for path in files if secret.encode() in path.read_bytes()]


def test_how_ranks_reduce_is_kept_and_where_their_launcher_listens_is_not(reprokit: Reprokit) -> None:
    algorithm, job = "OMPI_MCA_coll_tuned_allreduce_algorithm", "OMPI_MCA_orte_hnp_uri"
    variables = {algorithm: "3", job: "704380928.0;tcp://192.0.2.2:53951", "UCX_TLS": "tcp"}
    assert reprokit.record("true", environment=variables).returncode == 0
    kept = reprokit.facts()["variables"]
    assert {name: kept.get(name) for name in variables} == {algorithm: "3", job: None, "UCX_TLS": "tcp"}


def test_a_run_is_for_its_owner_only(reprokit: Reprokit) -> None:
    reprokit.record("true")
    assert reprokit.last.stat().st_mode & 0o777 == 0o700
    assert (reprokit.directory / ".reprokit").stat().st_mode & 0o777 == 0o700
    assert {path.stat().st_mode & 0o077 for path in reprokit.last.rglob("*") if path.is_file()} == {0}


def test_a_rank_has_one_name_for_shim_and_agent(reprokit: Reprokit) -> None:
    code = f"RANK=1 '{sys.executable}' -c 'import os; os.urandom(3)'; true"
    assert reprokit.record("sh", "-c", code).returncode == 0
    lines = [json.loads(line) for line in (reprokit.last / "metrics.jsonl").read_text().splitlines()]
    assert {line["p"] for line in lines} == {"rank1"}
    heads = [file.head for file in entropy.processes(reprokit.last / "entropy")]
    assert {head.identity for head in heads if "@" not in head.identity} == {"0", "rank1"}


def test_the_locale_that_python_chose_for_itself_stays_with_reprokit(tmp_path: Path) -> None:
    command = ["env", "-i", f"PATH={os.environ['PATH']}", COMMAND, "record", "--", "sh", "-c", "echo [$LC_CTYPE]"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.stdout == "[]\n"


WITHOUT_PERSONALITY = """
import ctypes, errno, os, platform, struct, sys
number = {"x86_64": 135, "aarch64": 92}[platform.machine()]
rules = [(0x20, 0, 0, 0), (0x15, 0, 1, number), (0x06, 0, 0, 0x00050000 | errno.EPERM), (0x06, 0, 0, 0x7FFF0000)]
code = b"".join(struct.pack("<HBBI", *rule) for rule in rules)  # load the number; personality: EPERM; others: allow
program = struct.pack("<HxxxxxxQ", len(rules), ctypes.addressof(buffer := ctypes.create_string_buffer(code)))
libc = ctypes.CDLL(None, use_errno=True)
PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP, SECCOMP_MODE_FILTER = 38, 22, 2
assert libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
assert libc.prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, program, 0, 0) == 0, os.strerror(ctypes.get_errno())
os.execv(sys.argv[1], sys.argv[1:])
"""


def test_a_container_without_personality(reprokit: Reprokit) -> None:
    def contained(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", WITHOUT_PERSONALITY, COMMAND, *arguments]
        return subprocess.run(command, cwd=reprokit.directory, capture_output=True, text=True, check=False)

    recorded = contained("record", "--", *python("import os; print(os.urandom(8).hex())"))
    assert recorded.returncode == 0, recorded.stderr
    facts = reprokit.facts()
    assert facts["address_randomization"]["why"] == "the system refuses personality(): Operation not permitted"
    assert facts["supervisor"]["state"] == "on"
    assert contained("replay", "last").stdout == recorded.stdout


def test_a_python_that_the_agent_does_not_know_is_named(reprokit: Reprokit) -> None:
    old = interpreter("3.6")
    if old is None:
        pytest.skip("there is no Python 3.6")
    done = reprokit.record(old, "-c", "print(1)")
    assert (done.returncode, done.stdout) == (0, "1\n")
    said = "is older than Python 3.7: no metrics, weights and seeds are recorded, only entropy [agent-not-loaded]"
    assert [line for line in done.stderr.splitlines() if "warning" in line] == [f"reprokit: warning: python3.6 {said}"]
    assert reprokit.facts()["agent"]["why"] == "python3.6 is older than Python 3.7"
