"""A TLS client and server inside of a run: fresh randomness in the recording and in every replay of it."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.interpreters import available
from tests.support import Reprokit, rest_slow, training_text

CERTIFICATE = Path(__file__).with_name("localhost.pem")  # with its key, of nobody and for nothing but this test
TRAINING = training_text("tls_handshakes.py")


def run_times(reprokit: Reprokit, python: str, *options: str) -> list[dict[str, Any]]:
    shutil.copy(CERTIFICATE, reprokit.directory / "localhost.pem")
    (reprokit.directory / "training.py").write_text(TRAINING)
    done = [reprokit.run("record", *options, "-o", "recorded", "--", python, "training.py")]
    done += [reprokit.run("replay", "recorded", "-o", f"replayed{number}") for number in range(2)]
    assert [one.returncode for one in done] == [0, 0, 0], [one.stderr for one in done]
    return [json.loads(one.stdout) for one in done]


def has_tls(python: str) -> bool:
    return subprocess.run([python, "-c", "import ssl"], capture_output=True, check=False).returncode == 0


OLDEST, *_, NEWEST = available()
PYTHONS = {"own": sys.executable, OLDEST: available()[OLDEST], NEWEST: available()[NEWEST]}


@pytest.mark.parametrize("python", rest_slow(PYTHONS.values()), ids=PYTHONS.keys())
def test_handshakes_are_fresh_and_the_training_repeats(python: str, reprokit: Reprokit) -> None:
    if not has_tls(python):
        pytest.skip("this Python was built without OpenSSL")
    runs = run_times(reprokit, python)
    assert [one["answer"] for one in runs] == ["stneidarg"] * 3
    assert runs[0]["versions"][1] == "TLSv1.2"
    assert runs[0]["training"] == runs[1]["training"] == runs[2]["training"]
    for what in ("client_randoms", "secrets", "bindings"):
        values = [value for one in runs for value in one[what]]
        assert len(set(values)) == len(values), what
    assert len({one["bytes"] for one in runs}) == 3
    facts = reprokit.facts("recorded")
    assert facts["profile"]["withheld"] > 0
    secret = {bytes.fromhex(value) for value in [*runs[0]["client_randoms"], *runs[0]["secrets"], runs[0]["bytes"]]}
    written = b"".join(path.read_bytes() for path in (reprokit.directory / "recorded").rglob("*") if path.is_file())
    assert not any(value in written for value in secret)


def test_include_crypto_is_kept_in_the_run_and_replayed(reprokit: Reprokit) -> None:
    runs = run_times(reprokit, sys.executable, "--include-crypto")
    assert runs[0]["training"] == runs[1]["training"] == runs[2]["training"]
    assert reprokit.facts("recorded")["include_crypto"] is True
    assert reprokit.facts("replayed0")["include_crypto"] is True
    assert reprokit.facts("recorded")["profile"]["withheld"] == 0
