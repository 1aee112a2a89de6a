"""The supported formats, more specific ones first; their readers are imported on demand."""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Iterator
from typing import TypeAlias

from reprokit.core.difference import Difference
from reprokit.core.errors import ArtifactDamaged
from reprokit.diff.elements import Blob, CompareOptions, Format, Limits, PairComparison, Part, Reader, Source

HEAD = 4096  # bytes at the beginning of a file by which its format is detected

Matcher: TypeAlias = "Callable[[str, bytes], bool]"  # of a file's name and its first bytes
ZIP, TAR, XGBOOST_KEY = rb"PK(?:\x03\x04|\x05\x06)", rb".{257}ustar", rb"(?:i|U|I..|l....|L.{7}).?learner\{"
PICKLE = rb"\x80[\2-\5]."  # pickles before protocol 2 begin like text, and are detected by name
ZLIB = rb"x[\x01\x20\x3f\x5e\x7d\x9c\xbb\xda\xf9]"
TORCH_PICKLE = rb"\x80[\2-\5](?:\x95.{8})?\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19\."
TORCH_MEMBERS = rb"[^/]+/(?:data\.pkl|data/(?:[0-9]+|[a-z]+/.+)|archive_format|version|constants\.pkl|constants/[0-9]+)"
PICKLES = r"\.(?:pkl|pickle|p|pck|joblib|jl|sav)\Z"
REFERRING = (".index", ".onnx")
# What files of weights and of states of optimizers are called, where their first bytes do not say what they are.
MODEL_ENDINGS = (
    *(".pt", ".pth", ".pt2", ".ckpt", ".safetensors", ".keras", ".h5", ".hdf5", ".onnx", ".gguf", ".ubj", ".cbm"),
    ".msgpack",
)
SHARD = re.compile(r"\.data-[0-9]{5}-of-[0-9]{5}\Z")  # of a TensorFlow checkpoint
LIGHTGBM = b"tree\nversion="  # the first bytes of a model, which is text
TEXT_CONTROLS = frozenset(b"\t\n\f\r\x1b\b")


def _begins(pattern: bytes, name: str = "") -> Matcher:
    """Return a matcher for files that begin with a pattern and whose lower-case name contains another."""
    head_pattern, name_pattern = re.compile(pattern, re.DOTALL), re.compile(name)
    return lambda file, head: bool(head_pattern.match(head)) and bool(name_pattern.search(file.lower()))


def _first_member(pattern: bytes) -> Matcher:
    """Return a matcher for zip archives by the name of their first member."""

    def matches(name: str, head: bytes) -> bool:
        length = int.from_bytes(head[26:28], "little")
        return head.startswith(b"PK\3\4") and re.fullmatch(pattern, head[30 : 30 + length], re.DOTALL) is not None

    return matches


def _either(*matchers: Matcher) -> Matcher:
    return lambda name, head: any(matches(name, head) for matches in matchers)


def _text(pattern: bytes = b"", name: str = "") -> Matcher:
    """Return a matcher for text files by beginning and name."""
    begins = _begins(pattern, name)
    return lambda file, head: begins(file, head) and _is_text(head)


def _is_text(head: bytes) -> bool:
    """Return whether bytes are UTF-8 text, perhaps cut within a character, without unusual control characters."""
    if not head or any(byte < 32 and byte not in TEXT_CONTROLS for byte in head):
        return False
    for cut in range(4):
        try:
            head[: len(head) - cut].decode("utf-8")
            return True
        except UnicodeDecodeError:
            continue
    return False


def _meta_graph(name: str, head: bytes) -> bool:
    return name.lower().endswith(".meta") and head[:1] == b"\n" and not _is_text(head)


def _reader(module: str, function: str = "read") -> Reader:
    """Return a reader that imports its module of this package on first use."""

    def read(source: Source, limits: Limits) -> Iterator[Part]:
        yield from getattr(importlib.import_module(f"{__name__}.{module}"), function)(source, limits)

    return read


def _by_library(
    title: str,
    package: str,
    module: str,
    function: str = "read",
    distribution: str = "",
    without: Reader | None = None,
) -> Reader:
    """Return a reader that uses a library in a separate process; another one may read what it can without that."""

    def read(source: Source, limits: Limits) -> Iterator[Part]:
        parsing = importlib.import_module(f"{__name__}.library_process")
        place = f"reprokit.diff.{module}_process"
        library = parsing.ParsingLibrary(title, package, place, function, distribution)
        yield from (without if without and library.missing else library.read)(source, limits)

    return read


def _line_comparison(function: str) -> PairComparison:
    """Return a function of `text`, which is imported on first use."""

    def compare(name: str, left: Source, right: Source, options: CompareOptions) -> Difference:
        text = importlib.import_module(f"{__name__}.text")
        difference: Difference = getattr(text, function)(name, left, right, options)
        return difference

    return compare


def _not_read(instead: str) -> Reader:
    """Return a reader that refuses a format with advice."""

    def read(source: Source, limits: Limits) -> Iterator[Part]:
        raise ArtifactDamaged(f"this old format is not read; {instead}")

    return read


def _as_bytes(source: Source, limits: Limits) -> Iterator[Part]:
    """Yield the whole file as bytes, for formats that are compared pairwise."""
    yield Blob("content", source)


FORMATS: tuple[Format, ...] = (
    Format("equinox", _begins(rb"\x93NUMPY|\{", r"\.eqx\Z"), _reader("npy", "sequence"), is_model=True),
    Format("npy", _begins(rb"\x93NUMPY"), _reader("npy")),
    Format("npz", _either(_begins(ZIP, r"\.npz\Z"), _first_member(rb".*\.npy")), _reader("npy", "archive")),
    Format(
        "torch",
        _either(_begins(TORCH_PICKLE), _begins(ZIP, r"\.(?:pt2?|pth|ckpt)\Z"), _first_member(TORCH_MEMBERS)),
        _reader("torch"),
        is_model=True,
    ),
    Format(
        "tar of PyTorch before 0.1.10",
        _begins(rb"(?=" + TAR + rb")(?:sys_info|pickle|storages|tensors)\0+.{157}ustar"),
        _not_read("save it again with a later PyTorch"),
        is_model=True,
    ),
    Format("catboost", _begins(rb"CBM1"), _reader("catboost"), is_model=True),
    Format("xgboost", _begins(rb'\{\s*"learner"\s*:\s*\{|\{' + XGBOOST_KEY), _reader("xgboost"), is_model=True),
    Format(
        "joblib",
        _either(
            _begins(rb"ZF0x[0-9a-f]|\x04\x22\x4d\x18"),
            _begins(ZLIB + rb"|\x5d\0\0", PICKLES),
            _begins(ZLIB + rb"|\x5d\0\0", r"\.(?:z|zlib|lzma)\Z"),
        ),
        _reader("compressed", "joblib"),
    ),
    Format("pickle", _either(_begins(PICKLE), _begins(rb"[(\]}c)lNIFSVL]", PICKLES)), _reader("pickle")),
    # Both begin with a table whose first key is empty. Its value has the number of shards, or the names of all tensors.
    # The blocks may be compressed.
    Format(
        "checkpoint",
        _begins(rb".{0,8}?\0\0.\x08", r"\.index\Z"),
        _reader("checkpoint"),
        has_siblings=True,
        is_model=True,
    ),
    Format(
        "TensorFlow checkpoint V1",
        _begins(rb".{0,8}?\0\0[\x80-\xff]{0,4}[\1-\x7f]\x0a[\x80-\xff]{0,4}[\0-\x7f][\x0a\x12]", "ckpt"),
        _not_read("save it again as V2"),
        is_model=True,
    ),
    Format("checkpoint state", _text(b"model_checkpoint_path: "), _reader("checkpoint", "state")),
    Format(
        "saved model",
        _begins(rb"\x08", r"saved_model\.pb\Z"),
        _reader("tensorflow_messages", "saved_model"),
        is_model=True,
    ),
    Format("ydf forest", _begins(rb"\x08", r"random_forest_header\.pb\Z"), _reader("ydf", "forest")),
    Format("ydf model", _begins(rb"\x0a.[A-Z_]{3,60}\x10", r"header\.pb\Z"), _reader("ydf", "model")),
    Format("ydf data", _begins(rb"\x0a", r"data_spec\.pb\Z"), _reader("ydf", "data")),
    Format("fingerprint", _begins(b"", r"fingerprint\.pb\Z"), _reader("tensorflow_messages", "fingerprint")),
    Format("graph", _meta_graph, _reader("tensorflow_messages", "meta_graph")),
    Format("onnx", _begins(rb"\x08", r"\.onnx\Z"), _reader("onnx"), has_siblings=True, is_model=True),
    Format(
        "tfrecord",
        _either(
            _begins(rb".{12}", r"\.(?:tfrecords?|tfrec)\Z"),
            _begins(b"", "tfevents"),
            _begins(rb".{21}\x1a\x0dbrain\.Event:"),
        ),
        _reader("tfrecord"),
    ),
    Format("wandb", _begins(rb":W&B\xe1\xbe\x00"), _reader("wandb")),
    # The signature is at the beginning, or after a user block.
    Format(
        "hdf5",
        _begins(rb"(?:.{512}|.{1024}|.{2048})?\x89HDF\r\n\x1a\n"),
        _by_library("HDF5", "h5py", "hdf5"),
        is_model=True,
    ),
    Format("matlab", _begins(b"", r"\.mat\Z"), _by_library("MATLAB", "scipy", "value", "matlab")),
    Format("netcdf", _begins(rb"CDF[\1\2]"), _by_library("NetCDF", "scipy", "value", "netcdf")),
    Format(
        "image",
        _begins(rb"\x89PNG\r\n\x1a\n|II\x2a\0|MM\0\x2a"),
        _by_library("Pillow", "PIL", "value", "image", "pillow"),
    ),
    Format(
        "zarr",
        _begins(ZIP, r"\.zarr\.zip\Z"),
        _by_library("Zarr", "tensorstore", "store", "zarr_archive", without=_reader("zip")),
    ),
    Format("workbook", _begins(ZIP, r"\.xlsx\Z"), _by_library("openpyxl", "openpyxl", "value", "workbook")),
    Format(
        "tflite",
        _begins(rb".{4}TFL3"),
        _by_library("TFLite", "flatbuffers", "value", "tflite"),
        is_model=True,
    ),
    Format("sqlite", _begins(rb"SQLite format 3\0"), _by_library("SQLite", "sqlite3", "sqlite")),
    Format("arrow", _begins(rb"PAR1|ARROW1"), _by_library("Arrow", "pyarrow", "arrow")),
    Format(
        "safetensors",
        _either(_begins(rb".{8}\{", r"\.safetensors\Z"), _begins(rb".{7}\0\{")),
        _reader("safetensors"),
        is_model=True,
    ),
    Format("gguf", _begins(rb"GGUF[\2\3]\0\0\0"), _reader("gguf"), is_model=True),
    Format("msgpack", _begins(b".", r"\.msgpack\Z"), _reader("msgpack"), is_model=True),
    Format("keras", _begins(ZIP, r"\.keras\Z"), _reader("keras"), is_model=True),
    Format("zip", _begins(ZIP), _reader("zip"), is_general=True),
    Format("gzip", _begins(rb"\x1f\x8b\x08"), _reader("compressed", "gzip")),
    Format("bzip2", _begins(rb"BZh.(?:1AY&SY|\x17rE8P\x90)"), _reader("compressed", "bzip2")),
    Format("xz", _begins(rb"\xfd7zXZ\0"), _reader("compressed", "xz")),
    Format("tar", _begins(TAR), _reader("tar"), is_general=True),
    Format("orbax metadata", _text(name=r"_checkpoint_metadata\Z"), _reader("orbax", "metadata"), is_model=True),
    Format("orbax commit", _text(b"Checkpoint commit was successful to "), _reader("orbax", "commit")),
    Format("catboost log", _text(name=r"catboost_training\.json\Z"), _reader("catboost", "log")),
    Format("catboost times", _text(rb"iter\tPassed\tRemaining\n", r"time_left\.tsv\Z"), _reader("catboost", "times")),
    Format("json lines", _text(name=r"\.(?:jsonl|ndjson)\Z"), _as_bytes, _line_comparison("compare_json_lines")),
    Format("notebook", _text(rb"\s*\{", r"\.ipynb\Z"), _reader("json", "notebook"), root="value"),
    Format("json", _text(name=r"\.json\Z"), _reader("json"), is_general=True, root="value"),
    Format(
        "json text",
        _text(rb'\{\s*"'),
        _reader("json", "read_text"),
        _line_comparison("compare"),
        is_read_for_judge=True,
    ),
    Format(
        "yaml",
        _text(name=r"\.ya?ml\Z"),
        _by_library("YAML", "yaml", "value", "yaml", "pyyaml"),
        _line_comparison("compare"),
        is_read_alone=True,
        root="value",
    ),
    Format("csv", _text(name=r"\.[ct]sv\Z"), _as_bytes, _line_comparison("compare_tables")),
    Format("text", _text(), _as_bytes, _line_comparison("compare"), is_general=True),
)


def detect(name: str, head: bytes) -> Format | None:
    """Return the format of a file by its name and first bytes; None if unknown."""
    return next((format_ for format_ in FORMATS if format_.matches(name, head)), None)


def holds_model(name: str, head: bytes) -> bool:
    """Return whether a file holds weights or states of optimizers, by its name and first bytes."""
    if name.lower().endswith(MODEL_ENDINGS) or SHARD.search(name) or head.startswith(LIGHTGBM):
        return True
    format_ = detect(name, head) if head else None
    return format_ is not None and format_.is_model


def refers(name: str) -> bool:
    """Return whether a file of this name may refer to other files beside it."""
    return name.lower().endswith(REFERRING)
