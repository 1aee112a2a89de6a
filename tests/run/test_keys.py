"""Programs that make keys make other ones in every run, and what they leave is not copied."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from reprokit.core.private_keys import holds_private_key
from tests.support import Reprokit, python, rest_slow

NODE = "console.log(crypto.getRandomValues(new Uint8Array(16)).join(), crypto.randomUUID())"
JAVA = """
class Keys {
    public static void main(String[] none) throws Exception {
        var pair = java.security.KeyPairGenerator.getInstance("Ed25519").generateKeyPair();
        System.out.println(java.util.HexFormat.of().formatHex(pair.getPrivate().getEncoded()));
    }
}
"""
MADE = {
    "ssh-keygen": ["sh", "-c", "rm -f key*; ssh-keygen -q -t ed25519 -N '' -f key; cat key.pub"],
    "node": ["node", "-e", NODE],
    "java": ["java", "-cp", ".", "Keys"],
}


def require(program: str) -> None:
    if shutil.which(program) is None:
        pytest.skip(f"no {program}")


def make_java(directory: Path) -> None:
    require("javac")
    (directory / "Keys.java").write_text(JAVA)
    subprocess.run(["javac", "Keys.java"], cwd=directory, check=True)


@pytest.mark.parametrize("program", rest_slow(MADE))
def test_a_replay_makes_other_keys(program: str, reprokit: Reprokit) -> None:
    require(program)
    if program == "java":
        make_java(reprokit.directory)
    recorded = reprokit.run("record", "-o", "recorded", "--", *MADE[program])
    replayed = reprokit.run("replay", "recorded", "-o", "replayed")
    assert recorded.returncode == replayed.returncode == 0, replayed.stderr
    assert recorded.stdout != replayed.stdout
    assert reprokit.facts("recorded")["profile"]["withheld"] > 0
    # ssh-keygen makes nothing but keys; of the others this is not known.
    said = [done.stderr.count(f"warning: {program}: ") for done in (recorded, replayed)]
    assert said == ([0, 0] if program == "ssh-keygen" else [1, 1])


def test_a_replay_that_makes_the_same_keys_says_so(reprokit: Reprokit) -> None:
    require("ssh-keygen")
    recorded = reprokit.run("record", "--include-crypto", "-o", "recorded", "--", *MADE["ssh-keygen"])
    replayed = reprokit.run("replay", "recorded", "-o", "replayed")
    assert replayed.stdout == recorded.stdout
    assert "the same again" in replayed.stderr
    assert "key; a key of the recording was made again" in replayed.stderr


def test_a_private_key_is_neither_kept_nor_packed(reprokit: Reprokit) -> None:
    """Python's own generators are recorded: the replay's key is the same one."""
    code = """import os
open('key', 'w').write('AGE-SECRET-KEY-1' + os.urandom(29).hex().upper())
open('w', 'w').write('1')"""
    recorded = reprokit.run("record", "-o", "recorded", "--", *python(code))
    assert "private keys are among the outputs, of which only digests are kept: key; a replay may" in recorded.stderr
    assert "a key of the recording was made again" in reprokit.run("replay", "recorded", "-o", "replayed").stderr
    files = {
        file["path"]: file for file in json.loads((reprokit.directory / "recorded/outputs.json").read_text())["files"]
    }
    assert [(files[name]["kept"] is None, files[name]["private_key"]) for name in ("key", "w")] == [
        (True, True),
        (False, False),
    ]
    assert files["key"]["digest"]
    packed = reprokit.run("bundle", "recorded", "-o", "packed")
    assert "not in it: private keys among the outputs: of 1 files" in packed.stdout
    # Nor is what a difference would show of it.
    (reprokit.directory / "key").write_text("AGE-SECRET-KEY-1HUNTER2")
    code = code.replace("29", "30")
    reprokit.run("record", "-o", "other", "--", *python(code))
    compared = reprokit.run("verify", "recorded", "other", "--details", "outputs")
    assert "AGE-SECRET" not in compared.stdout + compared.stderr


CERTIFIED = "openssl req -x509 -newkey ed25519 -nodes -subj /CN=x -keyout pem -out cert; "
GPG = "export GNUPGHOME=$PWD; chmod 700 .; gpg --batch --passphrase '' --quick-gen-key x ed25519; "
FORMS = {
    "pem": "openssl genpkey -algorithm ed25519 -out key",
    "pkcs8-der": "openssl genpkey -algorithm ec -pkeyopt ec_paramgen_curve:P-256 -outform DER -out key",
    "pkcs8-encrypted": "openssl genpkey -algorithm ed25519 -out pem; "
    "openssl pkcs8 -topk8 -in pem -outform DER -out key -passout pass:x",
    "pkcs1-der": "openssl genrsa -traditional -out pem 2048; openssl rsa -traditional -in pem -outform DER -out key",
    "sec1-der": "openssl ecparam -name prime256v1 -genkey -noout -outform DER -out key",
    "pkcs12": f"{CERTIFIED} openssl pkcs12 -export -inkey pem -in cert -passout pass:x -out key",
    "certificate-first": f"{CERTIFIED} cat cert pem >key",
    "openssh": "ssh-keygen -q -t ed25519 -N '' -f key",
    "gpg": f"{GPG} gpg --export-secret-keys >key; gpgconf --kill all",
    "gpg-agent": f"{GPG} cat private-keys-v1.d/*.key >key; gpgconf --kill all",
    "jks": "keytool -genkeypair -alias x -keyalg EC -dname CN=x -storetype JKS -keystore key -storepass hunter22",
}


@pytest.mark.parametrize("form", FORMS)
def test_a_private_key_is_known_by_how_it_begins(form: str, tmp_path: Path) -> None:
    require("gpg" if form.startswith("gpg") else FORMS[form].split()[0])
    subprocess.run(["sh", "-ec", FORMS[form]], cwd=tmp_path, check=True, capture_output=True)
    assert holds_private_key((tmp_path / "key").read_bytes())


@pytest.mark.parametrize(
    "head",
    [
        b"PuTTY-User-Key-File-3: ssh-ed25519\r\n",
        b"# created: 2026-01-01\nAGE-SECRET-KEY-1GFPYYSJZG",
        b"untrusted comment: minisign encrypted secret key\nRWRTY0Iy",
        b"-----BEGIN PGP PRIVATE KEY BLOCK-----\n",
        b"---- BEGIN SSH2 ENCRYPTED PRIVATE KEY ----\n",
    ],
)
def test_forms_of_programs_that_are_not_here(head: bytes) -> None:
    assert holds_private_key(head)


@pytest.mark.parametrize(
    "head",
    [
        b"-----BEGIN PUBLIC KEY-----\n",
        b"-----BEGIN CERTIFICATE-----\nMIIB",
        b"ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAA x",
        b"assert b'-----BEGIN PRIVATE KEY-----' in text",
        b"PK\x03\x04\x14\x00\x00\x00",  # a zip, a .pt, a .keras
        b"\x80\x04\x95\x10\x00\x00\x00\x00\x00\x00\x00}",  # a pickle
        b"\x93NUMPY\x01\x00v\x00",
        b"\x89HDF\r\n\x1a\n",
        b"\x30\x82\x01\x0a\x02\x82\x01\x01\x00",  # an RSA public key in DER
        b"0.123,0.456\n",
        b"",
    ],
)
def test_other_files_are_no_private_keys(head: bytes) -> None:
    assert not holds_private_key(head)
