"""Recognizes passwords and tokens in texts and arguments, for redaction."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from typing import Any

from reprokit.core.redaction import SECRET

# Tokens that are known by their form, and who says so.
_FORMS = (
    r"gh[opsur]_[A-Za-z0-9]{20,}|github_pat_\w{22,}",  # docs.github.com: about authentication to GitHub
    r"gl(?:pat|oas|dt|rt|rtr|cbt|ptt|ft|imt|agent|wt|soat|ffct)-[\w.-]{20,}",  # docs.gitlab.com/security/tokens
    # huggingface.co/docs/hub/security-tokens
    r"hf_[A-Za-z0-9]{30,}|hf_(?=[A-Za-z]*\d)[A-Za-z0-9]{16,}|api_org_[A-Za-z0-9]{30,}",
    r"A(?:KIA|SIA|BIA|CCA)[A-Z0-9]{16}",  # docs.aws.amazon.com/IAM/latest/UserGuide/reference_identifiers.html
    r"sk-(?:[a-z]+\d*-)*(?=[A-Za-z_]*\d)[A-Za-z0-9_]{16}[\w-]*",  # platform.openai.com, docs.anthropic.com
    r"[rs]k_(?:live|test)_[A-Za-z0-9]{16,}|whsec_[A-Za-z0-9]{16,}",  # docs.stripe.com/keys
    r"xox[a-z]-[A-Za-z0-9-]{10,}|xapp-[A-Za-z0-9-]{10,}",  # docs.slack.dev/authentication/tokens
    r"AIza[\w-]{35}|ya29\.[\w-]{20,}|GOCSPX-[\w-]{20,}",  # cloud.google.com/docs/authentication
    r"npm_[A-Za-z0-9]{36}|pypi-[\w-]{50,}",  # docs.npmjs.com/about-access-tokens, pypi.org/help/#apitoken
    r"dckr_(?:pat|oat)_[\w-]{20,}|dapi[0-9a-f]{32}|dop_v1_[0-9a-f]{64}|r8_[A-Za-z0-9]{30,}",  # of Docker, Databricks
    r"hv[bsr]\.[\w-]{24,}|SG\.[\w-]{16,}\.[\w-]{16,}|wandb_v1_\w{20,}",  # Vault, SendGrid, Weights & Biases
    r"eyJ[\w-]{8,}\.eyJ[\w-]{8,}\.[\w-]*",  # JSON Web Token, RFC 7519
    r"AGE-SECRET-KEY-1[A-Z0-9]{20,}",  # age-encryption.org/v1
)
_FORM = re.compile(rf"(?<![\w-])(?:{'|'.join(_FORMS)})(?![\w-])")
_FORM_BEGINS = re.compile(
    "gh[opsur]_|github_pat|gl[a-z]+-|hf_|api_org|A[A-Z]{3}[A-Z0-9]{16}|sk-|k_live|k_test|whsec|xox|xapp|AIza|ya29|GOCS|"
    r"npm_|pypi-|dckr|dapi|dop_|r8_|hv[bsr]\.|SG\.|wandb_v1|eyJ|AGE-"
)
_KEY_BLOCK = re.compile(r"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY.*?(?:-----END [A-Z0-9 ]{0,60}-----|\Z)", re.DOTALL)

# Names whose values are secret: of options, variables, keys of JSON, and parameters of URLs.
_NAME = (
    r"(?:[A-Za-z0-9_.-]{0,80}[-_.])?(?:password|passwd|passphrase|storepass|keypass|pwd|secret|credentials?|auth|cookie|"
    r"authorization|(?:api|access|auth|bearer|session|refresh)?token|"
    r"(?:api|access|private|secret|account|auth|encryption|signing|license|storage|subscription)[-_]?key)"
)
_IS_NAME = re.compile(_NAME, re.IGNORECASE)
_IS_OPTION = re.compile(f"--?({_NAME})", re.IGNORECASE)
_IS_ASSIGNED = re.compile(f"([-+~]{{0,2}}({_NAME})=)(.+)", re.IGNORECASE | re.DOTALL)
# Tokens of a tokenizer's, as in --pad-token; values that say whether and not what, and those that stand for a text.
_OF_TEXT = re.compile(
    r"(?:.*[-_.])?(?:pad|bos|eos|unk|sep|cls|mask|special|start|end|stop|image|img|audio|video|speech|vision|think|tool|"
    r"prefix|suffix|middle|eot|eom|newline|begin|first|last|next|max|min|num|per|n|target|trigger|placeholder|instance|"
    r"class|initializer|new|added|control|forced|prompt|word|sub|char|input|output|ignore|separator|delimiter)[-_.]?token",
    re.IGNORECASE,
)
_ASKS = re.compile(r"(?:no|ask|prompt|show|skip|disable|without)[-_].*", re.IGNORECASE)  # options without a value
_SAYS_WHETHER = re.compile(r"true|false|yes|no|on|off|none|null|auto|basic|\$\{?[A-Z_]\w*\}?|", re.IGNORECASE)
_STANDS_FOR_TEXT = re.compile(r"\d{1,6}|<.*>|\[.*\]", re.DOTALL)

# Options that are short, by the program; whether the value can be the next argument.
_PROGRAMS = {
    **dict.fromkeys(("mysql", "mysqldump", "mysqladmin", "mysqlimport", "mariadb", "mariadb-dump"), ("-p", False)),
    **dict.fromkeys(("7z", "7za", "rar", "unrar"), ("-p", False)),
    **dict.fromkeys(("sshpass", "mongo", "mongosh", "mongodump", "cqlsh", "beeline"), ("-p", True)),
    **dict.fromkeys(("zip", "unzip", "sqlcmd", "bcp"), ("-P", True)),
    **dict.fromkeys(("ldapsearch", "ldapadd", "ldapmodify", "ldapwhoami"), ("-w", True)),
    **dict.fromkeys(("curl", "lftp"), ("-u", True)),
    "login": ("-p", True),  # docker login, az login, helm registry login
    "redis-cli": ("-a", True),
    "smbclient": ("-U", True),
}

_OPENSSL = ("-passin", "-passout", "-pass")

_QUOTED = r"""(?:'[^']*(?:'|\Z)|"(?:\\.|[^"\\])*(?:"|\Z))"""
_BARE = r"""[^\s'";|&)}\]]"""
_VALUE = rf"(?:{_QUOTED}(?:{_QUOTED}|{_BARE})*|{_BARE}*(?![:,.]){_BARE})"  # a word of a shell's
_CREDENTIALS = re.compile(r"(?<=://)[^/\s@]+@")  # user and password of a URL, RFC 3986
_QUERY = rf"sig|signature|key|code|X-(?:Amz|Goog)-(?:Signature|Credential|Security-Token)|AWSAccessKeyId|{_NAME}"
# In small letters what is in every text that a pattern finds something in, and the pattern: its first group stays.
_IN_TEXT = (
    # Also of presigned ones: AWS Signature Version 4, shared access signatures of Azure.
    ("=", re.compile(rf"([?&](?:{_QUERY})=)[^&#\s'\"]+", re.IGNORECASE)),
    (  # RFC 9110
        "authorization",
        re.compile(r"((?:Proxy-)?Authorization['\"]?\s*[:=]\s*['\"]?(?:[A-Za-z]+ )?)[^\s'\",]+", re.IGNORECASE),
    ),
    ("x-", re.compile(r"(\bX-(?:[A-Za-z]{1,20}-){0,4}(?:Key|Token)\s*:\s*)[^\s'\"]+", re.IGNORECASE)),
    ("bearer", re.compile(r"(\bBearer\s+)(?=[A-Za-z._~+/-]*\d)[A-Za-z0-9._~+/-]{8,}=*", re.IGNORECASE)),  # RFC 6750
    ("pass:", re.compile(rf"(\s(?:{'|'.join(_OPENSSL)})\s+pass:){_VALUE}")),
)
_IN_NAMED_TEXT = (  # the same where there is some name: whether its value is a secret is asked
    (
        "-",
        re.compile(rf"""((?<![\w.-])--?(?P<name>{_NAME})(?:\s*=\s*|\s+|["'],\s*))(?P<value>{_VALUE})""", re.IGNORECASE),
    ),
    ("=", re.compile(rf"((?<![\w.$?&-])(?P<name>{_NAME})=)(?P<value>{_VALUE})", re.IGNORECASE)),
    (  # JSON, Python, also quoted for a shell
        ":",
        re.compile(
            rf"""((?:'"'"'|\\?["'])(?P<name>{_NAME})(?:'"'"'|\\?["'])\s*:\s*(?P<quote>'"'"'|\\?["']))"""
            r"(?P<value>(?:(?!(?P=quote))(?:\\.|[^\\])){1,4000})",
            re.IGNORECASE,
        ),
    ),
)
_HAS_NAME = re.compile(r"pass|pwd|secret|credential|auth|cookie|token|key")
_PROGRAM = re.compile("|".join(re.escape(name) for name in _PROGRAMS))


def _of_programs() -> Iterator[re.Pattern[str]]:
    for option, apart in sorted(set(_PROGRAMS.values())):
        names = "|".join(re.escape(name) for name, form in _PROGRAMS.items() if form == (option, apart))
        space = r"\s*" if apart else ""
        yield re.compile(rf"((?<![\w.-])(?:{names})\s(?:[^|;&\n]{{0,1000}}?\s)?{option}{space}){_VALUE}")


_OF_PROGRAMS = tuple(_of_programs())


def replaced(text: str) -> str:
    """Return a text, which can hold a command of a shell's, without what is known to be a password or a token."""
    lowered = text.lower()
    if "://" in lowered:
        text = _CREDENTIALS.sub("", text)
    if "-----begin" in lowered:
        text = _KEY_BLOCK.sub(SECRET, text)
    for hint, pattern in _IN_TEXT:
        text = pattern.sub(_first, text) if hint in lowered else text
    for pattern in _OF_PROGRAMS if " -" in text and _PROGRAM.search(text) else ():
        text = pattern.sub(_first, text)
    for hint, pattern in _IN_NAMED_TEXT if _HAS_NAME.search(lowered) else ():
        text = pattern.sub(_named, text) if hint in text else text
    return _FORM.sub(SECRET, text) if _FORM_BEGINS.search(text) else text


def _first(match: re.Match[str]) -> str:
    return match[1] + SECRET


def _named(match: re.Match[str]) -> str:
    is_hidden = _is_secret(match["name"], match["value"].strip("\\\"'"))
    return match[1] + SECRET if is_hidden else match[0]


def _is_secret(name: str, value: str) -> bool:
    """Return whether the value of this name, which is one for secrets, is one itself."""
    if value.startswith("-") or _SAYS_WHETHER.fullmatch(value) or _ASKS.fullmatch(name):
        return False
    if name.lower().endswith("token"):
        return not (_OF_TEXT.fullmatch(name) or _STANDS_FOR_TEXT.fullmatch(value))
    return not (name.lower().endswith("pwd") and value.startswith(("/", ".")))  # the working directory


def is_secret(key: str, value: str) -> bool:
    """Return whether the value of a key, as in JSON, is a secret by the key's name."""
    return _IS_NAME.fullmatch(key) is not None and _is_secret(key, value)


def arguments(values: Sequence[Any]) -> Iterator[Any]:
    """Yield a list, which can be that of a command's arguments, without the values of options that take a secret."""
    option, apart = "", False  # of the program that was named last
    for value, last in zip(values, [None, *values], strict=False):
        if isinstance(value, str):
            yield _argument(value, last if isinstance(last, str) else "", option, apart)
            option, apart = _PROGRAMS.get(os.path.basename(value), (option, apart))
        else:
            yield value


def _argument(value: str, last: str, option: str, apart: bool) -> str:
    named = _IS_OPTION.fullmatch(last)
    if (named and _is_secret(named[1], value)) or (apart and last == option):
        return SECRET
    if last in _OPENSSL and value.startswith("pass:"):
        return f"pass:{SECRET}"
    if option and value.startswith(option) and value != option:
        return option + SECRET
    assigned = _IS_ASSIGNED.fullmatch(value)
    return assigned[1] + SECRET if assigned and _is_secret(assigned[2], assigned[3]) else value
