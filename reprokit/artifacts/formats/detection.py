"""By which names and first bytes the formats are told; nothing here is imported but the standard library."""

from __future__ import annotations

import re

PICKLES = (".pkl", ".pickle", ".p", ".pck", ".joblib", ".jl", ".sav")
TORCH_MAGIC = rb"\x80[\2-\5](?:\x95.{8})?\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19\."
TORCH_MEMBERS = rb"[^/]+/(?:data\.pkl|data/[0-9]+|version|constants\.pkl|constants/[0-9]+)"
ZIP = (b"PK\x03\x04", b"PK\x05\x06")
TAR_MAGIC = slice(257, 262)
REFERRING = (".index", ".onnx")
TEXT_CONTROLS = frozenset(b"\t\n\f\r\x1b\b")


def _ends(name: str, *endings: str) -> bool:
    return name.lower().endswith(endings)


def is_npy(name: str, head: bytes) -> bool:
    return head.startswith(b"\x93NUMPY")


def is_zip(name: str, head: bytes) -> bool:
    return head.startswith(ZIP)


def is_npz(name: str, head: bytes) -> bool:
    return is_zip(name, head) and (_ends(name, ".npz") or _first_member(head).endswith(b".npy"))


def _first_member(head: bytes) -> bytes:
    length = int.from_bytes(head[26:28], "little")
    return head[30 : 30 + length] if head.startswith(ZIP[0]) else b""


def is_safetensors(name: str, head: bytes) -> bool:
    return head[8:9] == b"{" and (_ends(name, ".safetensors") or head[7:8] == b"\0")


def is_torch(name: str, head: bytes) -> bool:
    """What torch.save writes: an archive with its pickle or a storage first, or a stream of pickles."""
    if re.match(TORCH_MAGIC, head, re.DOTALL):
        return True
    if is_zip(name, head):
        return _ends(name, ".pt", ".pth", ".ckpt") or re.fullmatch(TORCH_MEMBERS, _first_member(head)) is not None
    return False


def is_torch_tar(name: str, head: bytes) -> bool:
    """What torch.save wrote before PyTorch 0.1.10: a tar that begins with one of its members."""
    return is_tar(name, head) and head[:100].rstrip(b"\0") in (b"sys_info", b"pickle", b"storages", b"tensors")


def is_pickle(name: str, head: bytes) -> bool:
    """A protocol from 2 on; those before it begin like a text, and are told by their name."""
    if head[:1] == b"\x80":
        return len(head) > 2 and 2 <= head[1] <= 5
    return _ends(name, *PICKLES) and head[:1] in tuple(b"(]}c)lNIFSVL"[i : i + 1] for i in range(12))


def is_packed_joblib(name: str, head: bytes) -> bool:
    """zlib, lzma and lz4 by names that pickles have, and joblib's first formats."""
    if re.match(rb"ZF0x[0-9a-f]", head) or head.startswith(b"\x04\x22\x4d\x18"):
        return True
    zlib = head[:1] == b"x" and len(head) > 1 and int.from_bytes(head[:2], "big") % 31 == 0
    return _ends(name, *PICKLES, ".z", ".zlib", ".lzma") and (zlib or head.startswith(b"\x5d\0\0"))


def is_xgboost(name: str, head: bytes) -> bool:
    """A model as UBJSON or JSON, both of which begin with its learner."""
    return re.match(rb'\{\s*"learner"\s*:\s*\{|\{(i|U|I..|l....|L.{7}).?learner\{', head, re.DOTALL) is not None


def is_keras(name: str, head: bytes) -> bool:
    return is_zip(name, head) and _ends(name, ".keras")


def is_hdf5(name: str, head: bytes) -> bool:
    """Its mark stands at the beginning, or behind what a user has put there."""
    return any(head[at : at + 8] == b"\x89HDF\r\n\x1a\n" for at in (0, 512, 1024, 2048))


def is_checkpoint_index(name: str, head: bytes) -> bool:
    """A table whose first key is empty, under which the number of shards stands; its blocks may be packed."""
    return _ends(name, ".index") and re.match(rb".{0,8}?\0\0.\x08", head, re.DOTALL) is not None


def is_old_checkpoint(name: str, head: bytes) -> bool:
    """A table whose first key is empty, under which the names of all tensors stand; its blocks may be packed."""
    begins = re.match(rb".{0,8}?\0\0[\x80-\xff]{0,4}[\1-\x7f]\x0a[\x80-\xff]{0,4}[\0-\x7f][\x0a\x12]", head, re.DOTALL)
    return "ckpt" in name.lower() and begins is not None


def is_checkpoint_state(name: str, head: bytes) -> bool:
    return head.startswith(b"model_checkpoint_path: ") and is_text(name, head)


def is_saved_model(name: str, head: bytes) -> bool:
    return _ends(name, "saved_model.pb") and head[:1] == b"\x08"


def is_fingerprint(name: str, head: bytes) -> bool:
    return _ends(name, "fingerprint.pb")


def is_meta_graph(name: str, head: bytes) -> bool:
    return _ends(name, ".meta") and head[:1] == b"\n" and not is_text(name, head)


def is_onnx(name: str, head: bytes) -> bool:
    return _ends(name, ".onnx") and head[:1] == b"\x08"


def is_tfrecord(name: str, head: bytes) -> bool:
    """Records by their name; TensorBoard's also by the version in their first event."""
    named = _ends(name, ".tfrecord", ".tfrecords", ".tfrec") and len(head) >= 12
    return named or "tfevents" in name.lower() or head[21:].startswith(b"\x1a\x0dbrain.Event:")


def is_wandb(name: str, head: bytes) -> bool:
    return head.startswith(b":W&B\xe1\xbe\x00")


def is_gzip(name: str, head: bytes) -> bool:
    return head.startswith(b"\x1f\x8b\x08")


def is_bzip2(name: str, head: bytes) -> bool:
    return head[:3] == b"BZh" and head[4:10] in (b"1AY&SY", b"\x17rE8P\x90")


def is_xz(name: str, head: bytes) -> bool:
    return head.startswith(b"\xfd7zXZ\0")


def is_tar(name: str, head: bytes) -> bool:
    return head[TAR_MAGIC] == b"ustar"


def is_json(name: str, head: bytes) -> bool:
    return _ends(name, ".json") and is_text(name, head)


def is_csv(name: str, head: bytes) -> bool:
    return _ends(name, ".csv", ".tsv") and is_text(name, head)


def is_text(name: str, head: bytes) -> bool:
    """UTF-8, perhaps cut within a character, without the control characters that texts do not have."""
    if not head or any(byte < 32 and byte not in TEXT_CONTROLS for byte in head):
        return False
    for cut in range(4):
        try:
            head[: len(head) - cut].decode("utf-8")
            return True
        except UnicodeDecodeError:
            continue
    return False
