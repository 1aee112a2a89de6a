"""Passwords and tokens leave whatever is shown or handed on, and ordinary arguments stay."""

from __future__ import annotations

import json
import shlex
import sys
import tarfile

import pytest
import zstandard

from reprokit.core.redaction import Secrets, without_secrets
from reprokit.core.secret_forms import SECRET
from tests.support import Reprokit

PASSWORD = "hunter2SECRET"
TOKEN = "hf_" + "aB3dE6gH9jK2mN5p" * 2  # of no use
SECRETS = [
    [TOKEN],
    ["hf_" + "q" * 34],
    ["--id=AKIAIOSFODNN7EXAMPLE"],
    ["ghp_" + "a1" * 18],
    ["github_pat_11ABCDEFG0abcdefghijkl_xyz"],
    ["glpat-abcdefghij0123456789"],
    ["sk-proj-abcDEF123abcDEF123abcDEF123"],
    ["sk-ant-api03-abcDEF123abcDEF123abc-DEF_123"],
    ["xoxb-123456789012-abcdefghij"],
    ["eyJhbGciOiJIUzI1NiIs.eyJzdWIiOiIxMjM0NTY3.SflKxwRJSMeKKF2QT4"],
    ["curl", "-H", f"Authorization: Bearer {PASSWORD}"],
    ["curl", "-u", f"ann:{PASSWORD}", "http://x"],
    ["curl", "-H", f"X-Api-Key: {PASSWORD}"],
    ["--config", f'{{"password": "{PASSWORD}", "n": 1}}'],
    ["--config", f"{{'api_key': '{PASSWORD}'}}"],
    [f"https://x/y?sig={PASSWORD}&a=1"],
    [f"s3://x?X-Amz-Signature={PASSWORD}"],
    [f"https://ann:{PASSWORD}@example.org/x"],
    ["--auth", PASSWORD],
    ["--pwd", PASSWORD],
    ["--token", PASSWORD],
    ["--accessToken", PASSWORD],
    ["--api-key", f"it's {PASSWORD}"],
    [f"--password={PASSWORD}"],
    ["+trainer.api_key=" + PASSWORD],
    ["mysql", f"-p{PASSWORD}", "db"],
    ["sshpass", "-p", PASSWORD, "ssh", "x"],
    ["docker", "login", "-u", "x", "-p", PASSWORD],
    ["redis-cli", "-a", PASSWORD],
    ["openssl", "x", "-passin", f"pass:{PASSWORD}"],
    ["sh", "-c", f"HF_TOKEN={PASSWORD} python x --token {PASSWORD} | mysql -u x -p{PASSWORD}"],
    ["sh", "-c", f"sshpass -p '{PASSWORD} {PASSWORD}' ssh x"],
    ["--dsn", f"host=x password={PASSWORD} user=y"],
    [f"-----BEGIN OPENSSH PRIVATE KEY-----\n{PASSWORD}\n-----END OPENSSH PRIVATE KEY-----"],
]
BARE = ["hf_", "AKIA", "ghp_", "github_pat", "glpat", "sk-", "xoxb", "eyJ", PASSWORD]
ORDINARY = [
    ["--tokenizer", "bert", "--key-size", "64", "--author", "ann", "/home/ann/x"],
    ["--max-tokens", "512", "--max_token", "512", "--n-token", "5", "--tokens-per-batch", "4096"],
    ["--pad-token", "PAD", "--eos_token=</s>", "--token", "<mask>", "model.tokenizer.pad_token=[PAD]"],
    ["--token", "$HF_TOKEN", "--use-auth-token", "True", "--token", "--verbose", "--no-auth", "train.py"],
    ["pip", "install", "sk-learn", "sk-learn-pipeline-with-a-long-name", "hf_hub_download", "hf_model_of_mine"],
    ["server", "-p", "8080"],
    ["ssh", "-p", "2222", "user@host:directory"],
    ["mysql", "-p", "db"],
    ["--pwd", "/workspace", "--password-file", "/x", "--token-file", "x", "--auth-type", "basic"],
    ["git", "checkout", "a94a8fe5ccb19ba61c4c0873d391e987982fbbd3"],
    ["https://example.org/x?page=2&sign=1"],
    ["sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"],
    ["python", "-c", "print(tokenizer.pad_token)"],
    ["Bearer", "of", "news", "--pass", "2", "--keys", "a", "b"],
]


@pytest.mark.parametrize("words", SECRETS, ids=lambda words: words[0][:20])
def test_a_secret_is_known_by_form_by_name_and_by_program(words: list[str]) -> None:
    for kept in (" ".join(Secrets().value(words)), without_secrets(shlex.join(words))):
        assert SECRET in kept or "://example.org" in kept
        assert not [known for known in BARE if known in kept]
        assert without_secrets(kept) == kept


@pytest.mark.parametrize("words", ORDINARY, ids=lambda words: words[0])
def test_ordinary_arguments_stay(words: list[str]) -> None:
    assert Secrets().value(words) == words
    assert without_secrets(shlex.join(words)) == shlex.join(words)


@pytest.mark.parametrize(
    "text",
    [
        "eyJ",
        "://",
        "-----BEGIN PRIVATE KEY",
        "--token ' \"x",
        "--a.token ",
        "sk-a-",
        "password='",
        '"token": "',
        "X-a-",
    ],
)
def test_a_hostile_text_takes_no_time(text: str) -> None:
    """Some of these took minutes: the whole test may take as long as the suite lets any take."""
    without_secrets(text * (200_000 // len(text)))


SCRIPT = "import reprokit; reprokit.log(step=0, loss=1.5, note='{token}'); open('w', 'w')"


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Reprokit:
    reprokit = Reprokit(tmp_path_factory.mktemp("secrets"))
    reprokit.script("train.py", SCRIPT.format(password=PASSWORD, token=TOKEN))
    command = [sys.executable, "train.py", TOKEN, "--password", PASSWORD, f"https://ann:{PASSWORD}@example.org/x"]
    assert reprokit.run("record", "-o", "first", "--", *command).returncode == 0
    assert reprokit.run("replay", "first", "-o", "second").returncode == 0
    return reprokit


def hidden(text: str) -> bool:
    return PASSWORD not in text and TOKEN not in text


def test_a_replay_says_none_and_is_given_all(runs: Reprokit) -> None:
    replayed = runs.run("replay", "first", "-o", "again")
    assert f"replaying: {sys.executable} train.py {SECRET} --password {SECRET} https://example.org/x" in replayed.stderr
    assert hidden(replayed.stderr)
    for name in ("first", "again"):
        assert runs.facts(name)["command"][2:5] == [TOKEN, "--password", PASSWORD]
        assert (runs.directory / name / "run.json").stat().st_mode & 0o77 == 0


@pytest.mark.parametrize(
    "arguments",
    [
        ["show", "first"],
        ["show", "--json", "first"],
        ["verify", "first", "other"],
        ["verify", "--json", "first", "other"],
    ],
    ids=" ".join,
)
def test_show_and_verify_reveal_them_only_if_asked(runs: Reprokit, arguments: list[str]) -> None:
    if not (runs.directory / "other").exists():
        command = [sys.executable, "train.py", TOKEN, "--password", PASSWORD + "2"]
        assert runs.run("record", "-o", "other", "--", *command).returncode == 0
    told, all_told = runs.run(*arguments), runs.run(*arguments, "--reveal")
    assert told.returncode == all_told.returncode, told.stderr
    assert hidden(told.stdout + told.stderr)
    assert TOKEN in all_told.stdout
    assert PASSWORD in all_told.stdout
    if arguments[0] == "verify":  # that it differs is still seen
        assert "command             identical" not in told.stdout
        document = json.loads(runs.run("verify", "--json", "first", "other").stdout)
        assert {node["name"]: node["verdict"] for node in document["categories"]}["command"] == "different"


@pytest.mark.parametrize(
    "kind",
    ["json", "html", "markdown", pytest.param("cyclonedx", marks=pytest.mark.slow), "test-result", "bitwise-rerun"],
)
def test_a_report_holds_none(runs: Reprokit, kind: str) -> None:
    done = runs.run("report", "first", "second", "--format", kind)
    assert done.returncode == 0, done.stderr
    assert hidden(done.stdout)
    assert SECRET in done.stdout or kind == "test-result"  # which names no command


def test_a_list_of_runs_and_a_bundle_hold_none(runs: Reprokit) -> None:
    assert hidden(
        runs.run("ls", ".").stdout + runs.run("ls", "--json", ".").stdout + runs.run("report", "first").stdout
    )
    runs.run("bundle", "first", "-o", "packed", "--keep-paths")
    with (
        zstandard.ZstdDecompressor().stream_reader((runs.directory / "packed").open("rb")) as stream,
        tarfile.open(fileobj=stream, mode="r|") as archive,
    ):
        content = {one.name: archive.extractfile(one).read() for one in archive}  # type: ignore[union-attr]
    assert [name for name, data in content.items() if not hidden(data.decode("latin-1"))] == []
    assert json.loads(content["run/run.json"])["command"][2:5] == [SECRET, "--password", SECRET]
