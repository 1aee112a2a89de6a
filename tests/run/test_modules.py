"""RDRAND and RDSEED in the modules of a run: found where they are instructions, reported, and hidden when asked."""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import struct
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

import msgspec
import pytest

from reprokit.model.states import Uncovered
from reprokit.run import agent_lines, machine_code, modules
from reprokit.run import elf as elf_tables
from tests.support import Reprokit, python, rest_slow

X86_64 = pytest.mark.skipif(platform.machine() != "x86_64", reason="RDRAND is an instruction of x86-64")

PLAIN = "int plain(int a) { return a * 3 + 1; }\n"
INTRINSIC = """#include <immintrin.h>
int draw(unsigned long long *out) { for (int i = 0; i < 9; i++) if (_rdrand64_step(out)) return 1; return 0; }
"""
SEED = "#include <immintrin.h>\nint draw(unsigned *out) { return _rdseed32_step(out); }\n"
LOOP = 'unsigned short draw(void) { unsigned short v; asm volatile("1: rdrand %0; jnc 1b" : "=r"(v)); return v; }\n'
BY_CHANCE = """
long immediate(long a) { asm volatile("mov $0x92fff0c70f, %%rax; add %%rax, %0" : "+r"(a) : : "rax"); return a; }
const unsigned char table[] = {0x90, 0x90, 0x0f, 0xc7, 0xf0, 0x72, 0xfb, 0x90};
long rdpid(void) { long n; asm volatile(".byte 0xf3, 0x0f, 0xc7, 0xf8; setc %%al" : "=a"(n)); return n; }
"""


def in_module(path: Path, text: str) -> Uncovered:
    return Uncovered(source="instructions", text=text, module=str(path))


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Every test has a cache of its own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "reprokit" / "modules.json"


@pytest.fixture
def library(tmp_path: Path) -> Callable[..., Path]:
    """Compile a few lines into a shared library."""

    def compile_text(text: str, name: str = "libtried.so", *options: str) -> Path:
        source, target = tmp_path / "source.c", tmp_path / name
        source.write_text(text)
        command = ["gcc", "-shared", "-fPIC", "-O2", "-mrdrnd", "-mrdseed", str(source), "-o", str(target)]
        subprocess.run([*command, *options], check=True)
        return target

    return compile_text


def collect(
    tmp_path: Path, *lines: str | Path, include_crypto: bool = False, calendar: bool = False
) -> modules.ModuleFindings:
    (tmp_path / "modules.paths").write_bytes(b"".join(os.fsencode(line) + b"\n" for line in lines))
    return modules.collect(tmp_path, tmp_path, include_crypto, lambda: False, calendar=calendar)


def names_in(file: BinaryIO) -> set[str]:
    head = elf_tables.header(file)
    return set() if head is None else modules._instruction_names(file, head, lambda: False)


# ---- what is an instruction ---------------------------------------------------------------------------------------


@X86_64
@pytest.mark.parametrize("level", rest_slow(["-O2", "-O0", "-O3", "-Os"]))
@pytest.mark.parametrize(("text", "name"), [(INTRINSIC, "RDRAND"), (SEED, "RDSEED"), (LOOP, "RDRAND")])
def test_an_instruction_is_found(
    text: str, name: str, level: str, library: Callable[..., Path], tmp_path: Path
) -> None:
    path = library(PLAIN + text + PLAIN.replace("plain", "more"), "libtried.so", level)
    assert collect(tmp_path, path).uncovered == [
        in_module(path, f"{name} in libtried.so ({path}): what it gives is real in every run")
    ]


@X86_64
def test_every_register_and_width_is_found(library: Callable[..., Path]) -> None:
    low = [f"{letter}{name}" for letter in ("", "e", "r") for name in ("ax", "bx", "cx", "dx", "si", "di", "bp")]
    high = [f"r{number}{width}" for number in range(8, 16) for width in ("w", "d", "")]
    draw = 'void draw_{0}(void) {{ asm volatile("1: rdrand %{0}; jnc 1b; rdseed %{0}; cmovc %rcx, %rax"); }}\n'
    path = library(PLAIN + "".join(draw.format(register) for register in low + high) + PLAIN.replace("plain", "more"))
    code = path.read_bytes()
    assert sorted(machine_code.x86_64(code, 0, len(code))) == 45 * ["RDRAND"] + 45 * ["RDSEED"]


@X86_64
def test_the_same_bytes_by_chance_are_not(library: Callable[..., Path], tmp_path: Path) -> None:
    path = library(PLAIN + BY_CHANCE)
    assert len(machine_code._CANDIDATE.findall(path.read_bytes())) >= 3
    assert collect(tmp_path, path) == modules.ModuleFindings()


@X86_64
@pytest.mark.skipif(shutil.which("objdump") is None, reason="objdump says what is true")
@pytest.mark.parametrize(
    "name", rest_slow(["libcrypto.so.3", "libstdc++.so.6", "libgcrypt.so.20", "libssl.so.3", "libc.so.6"])
)
def test_found_is_what_a_disassembler_finds(name: str) -> None:
    listed = subprocess.run(["/sbin/ldconfig", "-p"], capture_output=True, text=True, check=True).stdout
    paths = re.findall(rf"{re.escape(name)} .*x86-64.*=> (\S+)", listed)
    if not paths:
        pytest.skip(f"this machine has no {name}")
    command = f"objdump -d -w {paths[0]} | grep -oE '\\srd(rand|seed) '"
    expected = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=False).stdout
    code = Path(paths[0]).read_bytes()
    assert sorted(machine_code.x86_64(code, 0, len(code))) == sorted(expected.upper().split())


def elf(machine: int, code: bytes) -> bytes:
    """An ELF file with one segment of code, as small as it gets."""
    head = struct.pack("<16sHHIQQQIHHHHHH", b"\x7fELF\x02\x01\x01", 3, machine, 1, 0, 64, 0, 0, 64, 56, 1, 64, 0, 0)
    return head + struct.pack("<IIQQQQQQ", 1, 5, 120, 0, 0, len(code), len(code), 4096) + code


def test_the_instructions_of_aarch64(tmp_path: Path) -> None:
    path = tmp_path / "libarm.so"
    nothing, rndr, rndrrs = b"\x1f\x20\x03\xd5", b"\x05\x24\x3b\xd5", b"\x3e\x24\x3b\xd5"
    path.write_bytes(elf(183, nothing * 9 + rndr + nothing + rndrrs))
    assert collect(tmp_path, path).uncovered == [
        in_module(path, f"RNDR and RNDRRS in libarm.so ({path}): what they give is real in every run")
    ]
    path.write_bytes(elf(183, nothing * 9 + b"\0\0" + rndr))  # across two instructions
    assert collect(tmp_path, path).uncovered == []


def test_an_instruction_across_two_blocks_is_found_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "libblocks.so"
    code = b"\x48\x89\xd8" * 100 + b"\x48\x0f\xc7\xf2\x48\x11\xc0" + b"\x48\x89\xd8" * 100
    path.write_bytes(elf(62, code))
    for block in range(290, 310):
        monkeypatch.setattr(modules, "BLOCK", block)
        with open(path, "rb") as file:
            assert names_in(file) == {"RDRAND"}


@pytest.mark.slow
def test_damaged_modules_hold_nothing(tmp_path: Path) -> None:
    good = elf(62, b"\x48\x89\xd8" * 50 + b"\x48\x0f\xc7\xf2\x48\x11\xc0")
    path = tmp_path / "libdamaged.so"
    for position in range(120):
        for value in (0, 0x7F, 0xFF):
            path.write_bytes(good[:position] + bytes([value]) * 4 + good[position + 4 :])
            with open(path, "rb") as file:
                names_in(file)
    for size in range(0, len(good), 7):
        path.write_bytes(good[:size])
        with open(path, "rb") as file:
            names_in(file)
    lines = (tmp_path, "/no/such/module", "/dev/zero", path, "relative", "/a\\012b", "/\\999")
    assert collect(tmp_path, *lines) == modules.ModuleFindings()


# ---- programs in Go -----------------------------------------------------------------------------------------------


def go_program(facts: bytes, address: int = 0x500000) -> bytes:
    """An ELF file with one writable segment, of what Go's linker puts first into it."""
    data = facts.ljust(256, b"\0")
    head = struct.pack("<16sHHIQQQIHHHHHH", b"\x7fELF\x02\x01\x01", 2, 62, 1, 0, 64, 0, 0, 64, 56, 1, 64, 0, 0)
    return head + struct.pack("<IIQQQQQQ", 1, 6, 120, address, 0, len(data), len(data), 4096) + data


MAGIC = b"\xff Go buildinf:"
IN_PLACE = MAGIC + b"\x08\x02" + bytes(16)
# Go before 1.18: addresses of two texts, each of which is an address and a length.
POINTERS = MAGIC + b"\x08\x00" + struct.pack("<QQQQ", 0x500020, 0, 0x500030, 9)
RELEASES = {
    "1.19.8": IN_PLACE + b"\x08go1.19.8" + b"\x00",
    "1.21": IN_PLACE + b"\x06go1.21",
    "1.20": IN_PLACE + b"\x1cdevel go1.20-4f5d3c8 Mon Jan",
    "1.17.13": POINTERS + b"go1.17.13",
    "?": IN_PLACE + b"\x05devel",
}


@pytest.mark.parametrize("release", RELEASES)
def test_a_go_program_whose_seeds_do_not_repeat_is_named(release: str, tmp_path: Path) -> None:
    path = tmp_path / "program"
    path.write_bytes(go_program(RELEASES[release]))
    findings = collect(tmp_path, path)
    (source,) = findings.uncovered
    named = "Go, of no known release" if release == "?" else f"Go {release}"
    assert (source.source, source.module, findings.noted) == ("ticks", str(path), [source])
    assert source.text.startswith(f"{path} ({named}): before 1.22, Go's runtime seeds the order of maps, ")
    assert source.text.endswith("; build with Go 1.22 or newer")


@pytest.mark.parametrize("facts", [IN_PLACE + b"\x06go1.22", IN_PLACE + b"\x0ago1.27.3 X:nogreenteagc", b"none"])
def test_other_programs_are_not(facts: bytes, tmp_path: Path) -> None:
    path = tmp_path / "program"
    path.write_bytes(go_program(facts))
    assert collect(tmp_path, path) == modules.ModuleFindings()


def test_what_the_supervisor_has_seen_of_a_program_counts_once_it_is_gone(tmp_path: Path) -> None:
    gone = ["go1.19.8 /tmp/go-build1/exe/old", "go1.22.1 /tmp/go-build1/exe/new", "go /tmp/go-build2/exe/any"]
    (source,) = collect(tmp_path, *gone).uncovered
    assert source.text.startswith(
        "/tmp/go-build1/exe/old (Go 1.19.8), /tmp/go-build2/exe/any (Go, of no known release):"
    )
    assert modules.loaded(tmp_path) == [f"/tmp/go-build{place}" for place in ("1/exe/new", "1/exe/old", "2/exe/any")]


def test_damaged_facts_of_go_are_none(tmp_path: Path) -> None:
    good = go_program(RELEASES["1.17.13"])
    path = tmp_path / "program"
    for position in range(len(good)):
        for damage in (b"\0\0\0\0", b"\xff\xff\xff\xff", b"\xff\xff\xff\x7f"):
            path.write_bytes(good[:position] + damage + good[position + 4 :])
            with open(path, "rb") as file:
                head = elf_tables.header(file)
                assert head is None or len(modules.release(file, head)) < 12


# ---- the cache, the list ------------------------------------------------------------------------------------------


@X86_64
def test_a_module_is_looked_through_once(
    cache: Path, library: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = library(INTRINSIC)
    first = collect(tmp_path, path)
    assert (cache.stat().st_mode & 0o777, cache.parent.stat().st_mode & 0o777) == (0o600, 0o700)
    scanned: list[str] = []
    scan = modules._instruction_names

    def scan_and_tell(file: BinaryIO, *arguments: Any) -> set[str]:
        scanned.append(file.name)
        return scan(file, *arguments)

    monkeypatch.setattr(modules, "_instruction_names", scan_and_tell)
    assert collect(tmp_path, path) == first
    assert scanned == []
    library(PLAIN)
    assert collect(tmp_path, path).uncovered == []
    assert scanned == [str(path)]
    assert [entry.name for entry in cache.parent.iterdir()] == [cache.name]


@pytest.mark.parametrize("content", [b"", b"{", b"[1]", b'{"/a": [1, 2]}', b"\xff" * 99, b"[" * 100_000])
def test_a_damaged_cache_is_made_anew(content: bytes, cache: Path, tmp_path: Path) -> None:
    cache.parent.mkdir(parents=True)
    cache.write_bytes(content)
    path = tmp_path / "libarm.so"
    path.write_bytes(elf(183, b"\x05\x24\x3b\xd5"))
    assert len(collect(tmp_path, path).uncovered) == 1
    assert list(json.loads(cache.read_bytes())) == [str(path)]


def test_without_a_cache_all_is_found(cache: Path, tmp_path: Path) -> None:
    cache.parent.parent.write_text("no directory")
    path = tmp_path / "libarm.so"
    path.write_bytes(elf(183, b"\x05\x24\x3b\xd5"))
    assert len(collect(tmp_path, path).uncovered) == 1


def test_the_search_can_be_interrupted(tmp_path: Path) -> None:
    path = tmp_path / "libarm.so"
    path.write_bytes(elf(183, b"\x05\x24\x3b\xd5"))
    (tmp_path / "modules.paths").write_text(f"{path}\n")
    assert modules.collect(tmp_path, tmp_path, False, lambda: True) == modules.ModuleFindings(interrupted=True)


def test_native_code_that_may_seed_itself_from_the_clock(tmp_path: Path) -> None:
    quiet = [tmp_path / "lib/libhdf5.so", tmp_path / "venv/lib/site-packages/torch.so", tmp_path / "python3.12"]
    seeding = [tmp_path / "model.so", "/opt/polars/_polars_runtime.abi3.so", "/usr/lib/libffi.so.8", "/usr/bin/mawk"]
    lines = [f"clock {path}" for path in (*seeding, "/usr/lib/libm.so", *quiet)]
    for calendar, words in ((True, "in threads of its own"), (False, "")):
        found = collect(tmp_path, *lines, calendar=calendar)
        assert sorted(one.module for one in found.noted) == sorted(map(str, seeding))
        assert found.uncovered == found.noted
        assert all(words in one.text for one in found.noted)
        advice = "record with --clock" if calendar else "record without --no-calendar"
        assert ["polars" in one.text or one.text.endswith(advice) for one in found.noted] == [True] * 4


def test_programs_are_named_together_where_no_calendar_is_recorded(tmp_path: Path) -> None:
    names = ("make", "date", "bash", "python3.11", "pypy3")
    lines = [f"clock /usr/bin/{name}" for name in names]
    (found,) = collect(tmp_path, *lines, calendar=False).noted
    assert (found.source, found.module) == ("clock", "/usr/bin/bash")
    assert found.text.startswith("the clock is read by bash, date, make: ")
    assert collect(tmp_path, *lines, calendar=True).noted == []


def reported(run: Path, *lines: dict[str, object]) -> Callable[[str], bool]:
    (run / "metrics.jsonl").write_bytes(b"".join(msgspec.json.encode(line) + b"\n" for line in lines))
    return agent_lines.read(run).may_use


def test_polars_is_named_unless_the_agents_tell_that_the_script_does_not_use_it(tmp_path: Path) -> None:
    polars = "/venv/lib/site-packages/_polars_runtime_32/_polars_runtime.abi3.so"
    (tmp_path / "modules.paths").write_text(f"clock {polars}\n")
    began: list[dict[str, object]] = [{"k": "agent", "p": "0"}, {"k": "agent", "p": "1"}]
    ended: list[dict[str, object]] = [{"k": "end", "p": "0", "used": ["catboost"]}, {"k": "end", "p": "1"}]
    used: dict[str, object] = {"k": "end", "p": "1", "used": ["polars"]}
    cases = [[], began, [*began, ended[0]], [*began, ended[0], used]]
    for lines in cases:
        may_use = reported(tmp_path, *lines)
        (found,) = modules.collect(tmp_path, tmp_path, False, lambda: False, may_use=may_use).noted
        assert found.module == polars
    may_use = reported(tmp_path, *began, *ended)
    assert modules.collect(tmp_path, tmp_path, False, lambda: False, may_use=may_use).noted == []


def test_what_starts_programs_on_other_hosts_is_named_where_nothing_is_recorded_there(tmp_path: Path) -> None:
    (found,) = collect(tmp_path, "/usr/bin/ssh", "/usr/lib/ssh.so", "/usr/bin/ssh-add").noted
    assert (found.source, found.module) == ("program", "/usr/bin/ssh")
    part = tmp_path / "hosts" / "a"
    part.mkdir(parents=True)
    assert collect(part, "/usr/bin/ssh").noted == []


def test_libraries_that_are_covered_or_left_alone_are_not_reported(tmp_path: Path) -> None:
    rust = "cryptography/hazmat/bindings/_rust.abi3.so"
    (tmp_path / rust).parent.mkdir(parents=True)
    names = ["libstdc++.so.6", "libcrypto.so.3", "libgcrypt.so.20", "libmine.so", "_rust.so", rust]
    for name in names:
        (tmp_path / name).write_bytes(elf(183, b"\x05\x24\x3b\xd5"))
    paths = [tmp_path / name for name in names]
    assert [Path(one.module).name for one in collect(tmp_path, *paths).uncovered] == ["_rust.so", "libmine.so"]
    found = [Path(one.module).name for one in collect(tmp_path, *paths, include_crypto=True).uncovered]
    assert sorted(found) == sorted(os.path.basename(name) for name in names[1:])


def test_the_cryptographic_libraries_are_the_shim_s() -> None:
    text = (Path(__file__).parents[2] / "native" / "recorder" / "site.c").read_text()
    listed = text[text.index("libraries[] = {") :]
    assert tuple(re.findall(r'"([^"]+)"', listed[: listed.index("}")])) == modules.CRYPTOGRAPHIC


# ---- whole runs ---------------------------------------------------------------------------------------------------


@X86_64
def test_a_run_reports_what_a_module_holds(reprokit: Reprokit, library: Callable[..., Path]) -> None:
    path = library(INTRINSIC, "libother name.so")
    code = f"import ctypes, os; ctypes.CDLL({str(path)!r}); import ssl; os._exit(0)"
    assert reprokit.record(*python(code)).returncode == 0
    assert [one["text"] for one in reprokit.facts()["uncovered"]] == [
        f"RDRAND in libother name.so ({path}): what it gives is real in every run"
    ]
    assert reprokit.run("replay", str(reprokit.last)).returncode == 0
    assert len(reprokit.facts()["uncovered"]) == 1


@X86_64
def test_hiding_rdrand_tells_openssl_and_the_run(reprokit: Reprokit) -> None:
    command = ["sh", "-c", 'echo "$OPENSSL_ia32cap"']
    assert reprokit.record(*command).stdout == "\n"
    done = reprokit.run("record", "--hide-rdrand", "-o", "hidden", "--", *command)
    assert done.stdout == "~0x4000000000000000:~0x40000\n"
    facts = reprokit.facts("hidden")
    assert facts["hide_rdrand"] is True
    refused = [one["text"] for one in facts["uncovered"] if one["option"] == "--hide-rdrand"]
    assert [each["text"] for each in facts["warnings"] if each["text"].startswith("--hide-rdrand")] == refused
    assert reprokit.run("replay", "hidden").stdout == done.stdout
    chosen = reprokit.run("record", "--hide-rdrand", "--", *command, environment={"OPENSSL_ia32cap": ":0"})
    assert chosen.stdout == ":0\n"


@X86_64
def test_openssl_heeds_it(reprokit: Reprokit) -> None:
    code = (
        "import ctypes, ctypes.util as u; lib = ctypes.CDLL(u.find_library('crypto')); lib.OPENSSL_init_crypto(0, None)"
    )
    code += "; lib.OpenSSL_version.restype = ctypes.c_char_p; lib.OPENSSL_info.restype = ctypes.c_char_p"
    code += "; print(lib.OPENSSL_info(1008).decode().split('=')[-1].split()[0])"  # OPENSSL_INFO_CPU_SETTINGS
    bare = subprocess.run(python(code), capture_output=True, text=True, check=False)
    if bare.returncode != 0 or ":" not in bare.stdout:
        pytest.skip("no OpenSSL 3 that tells what it thinks of the processor")
    done = reprokit.run("record", "--hide-rdrand", "--", *python(code))
    low, high = (int(word, 16) for word in done.stdout.split()[0].split(":")[:2])
    assert not low >> 62 & 1
    assert not high >> 18 & 1


def test_the_words_of_the_shim_are_told(tmp_path: Path) -> None:
    found = collect(tmp_path, *map(os.fsdecode, modules.WORDS), "something else")
    assert found.uncovered == found.refused == list(modules.WORDS.values())
