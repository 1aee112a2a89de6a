"""Reads what affects results: numbers of threads, and the code that libraries chose for the processor.

Only loaded libraries are asked, at the end of the process: nothing is imported or initialized for it.
"""

from __future__ import annotations

import os
import re
import sys

from ..core.launch_plan import read_plan

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import ModuleType
    from typing import Any

    from ..core.agent import Agent

    Fact = bool | int | str | list[str] | None
    Facts = dict[str, Fact]

# Variables that set a count or a choice of code: those set show that the user chose, not the library.
VARIABLES = (
    "ATEN_CPU_CAPABILITY",
    "GLIBC_TUNABLES",
    "MKL_CBWR",
    "MKL_DYNAMIC",
    "MKL_ENABLE_INSTRUCTIONS",
    "MKL_NUM_THREADS",
    "NPY_DISABLE_CPU_FEATURES",
    "NUMEXPR_NUM_THREADS",
    "OMP_NUM_THREADS",
    "ONEDNN_MAX_CPU_ISA",
    "OPENBLAS_CORETYPE",
    "OPENBLAS_NUM_THREADS",
    "PYTHON_CPU_COUNT",
    "TF_NUM_INTEROP_THREADS",
    "TF_NUM_INTRAOP_THREADS",
)
_SIMPLE = re.compile(r"[\w.,=+:-]{1,200}")  # other values are left out, as a variable may hold anything

# Native libraries: the names of their files, and for each fact the alternative functions that return it.
_OPENBLAS = ("openblas_{}", "openblas_{}64_", "scipy_openblas_{}", "scipy_openblas_{}64_")
_NATIVE = (
    ("openmp", re.compile(r"lib(gomp|iomp5|omp)[-.]"), {"threads": ["omp_get_max_threads"]}),
    (
        "openblas",
        re.compile(r"lib\w*openblas"),
        {
            "threads": [form.format("get_num_threads") for form in _OPENBLAS],
            "core": [form.format("get_corename") for form in _OPENBLAS],
            "config": [form.format("get_config") for form in _OPENBLAS],
        },
    ),
    (
        "mkl",
        re.compile(r"lib(mkl_rt|mkl_core|torch_cpu|mklml_intel)[-.]"),
        {"threads": ["MKL_Get_Max_Threads"], "branch": ["mkl_cbwr_get_auto_branch", "mkl_serv_cbwr_get_auto_branch"]},
    ),
    ("onednn", re.compile(r"lib(dnnl|mkldnn)[-.]"), {"isa": ["dnnl_get_effective_cpu_isa"]}),
    ("blis", re.compile(r"libblis"), {"threads": ["bli_thread_get_num_threads"]}),
)
_TEXTS = ("core", "config")  # facts that are C strings


def facts() -> Iterator[tuple[str, str, Facts]]:
    """Yield name, library and facts of each library, after those of the process; nothing if there is no library."""
    libraries = [*_modules(), *_libraries()]
    if libraries:
        yield "process", "process", _process()
        yield from libraries


def write_facts(agent: Agent) -> None:
    """Write the facts of each library, at the end of the process."""
    for name, library, values in facts():
        agent.computed(name, library, values)


def _process() -> Facts:
    values = [(name, os.environ.get(name, "")) for name in VARIABLES]
    variables = [f"{name}={value}" for name, value in values if _SIMPLE.fullmatch(value)]
    return {"processors": os.cpu_count(), "usable": usable(), "variables": variables}


def usable() -> int:
    """Return the number of processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _modules() -> Iterator[tuple[str, str, Facts]]:
    """Yield name, library and facts of Python modules."""
    for name, ask in (("torch", _torch), ("numpy", _numpy), ("tensorflow", _tensorflow), ("numexpr", _numexpr)):
        module = sys.modules.get(name)
        if module is not None:
            answer: Facts = {key: value for key, value in ask(module).items() if value is not None}
            if answer:
                yield name, name, answer


def _torch(torch: Any) -> Facts:
    return {
        "threads": ask(torch, "get_num_threads"),
        "interop_threads": ask(torch, "get_num_interop_threads"),
        "capability": ask(torch, "backends.cpu.get_cpu_capability"),
        "mkl": ask(torch, "backends.mkl.is_available"),
        "mkldnn": ask(torch, "backends.mkldnn.is_available"),
        **_accelerator(torch),
    }


def _accelerator(torch: Any) -> Facts:
    """Return the CUDA version of this build, and cuDNN's if the training used CUDA, without initializing CUDA."""
    version = getattr(torch, "version", None)
    facts = {name: getattr(version, name, None) for name in ("cuda", "hip", "git_version")}
    if ask(torch, "cuda.is_initialized"):
        facts["cudnn"] = ask(torch, "backends.cudnn.version")
    return {name: fact if fact is None else str(fact) for name, fact in facts.items()}


def ask(module: Any, path: str) -> Any:
    """Return the attribute at a dotted path, called if it is a function; None if this version has none."""
    for name in path.split("."):
        module = getattr(module, name, None)
    return module() if callable(module) else module


def _numpy(_: Any) -> Facts:
    """Return the instruction sets that NumPy dispatches to, from 1.20 on."""
    module = sys.modules.get("numpy._core._multiarray_umath") or sys.modules.get("numpy.core._multiarray_umath")
    features = getattr(module, "__cpu_features__", None)
    if not isinstance(features, dict):
        return {}
    dispatch = [str(name) for name in getattr(module, "__cpu_dispatch__", ())]
    return {
        "baseline": [str(name) for name in getattr(module, "__cpu_baseline__", ())],
        "used": [name for name in dispatch if features.get(name)],
        "unused": [name for name in dispatch if not features.get(name)],
    }


def _tensorflow(_: Any) -> Facts:
    """Return the sizes of TensorFlow's pools; 0 and None in its eager context stand for the usable processors."""
    from ..tensorflow import private_api

    settings = {"threads": ("intra", "TF_NUM_INTRAOP_THREADS"), "interop_threads": ("inter", "TF_NUM_INTEROP_THREADS")}
    build_info = getattr(private_api.module("build"), "build_info", None)
    versions: Any = build_info if hasattr(build_info, "get") else {}
    build_versions = {name: versions.get(f"{name}_version") for name in ("cuda", "cudnn")}
    return {
        **{key: _pool_size(private_api.pool_size(kind), variable) for key, (kind, variable) in settings.items()},
        **{name: str(version) for name, version in build_versions.items() if version},
    }


def _pool_size(size: int, variable: str) -> int:
    text = str(size or os.environ.get(variable, ""))
    return int(text) if text.isdigit() and int(text) else usable()


def _numexpr(numexpr: Any) -> Facts:
    count = getattr(numexpr, "nthreads", None)
    return {"threads": count if isinstance(count, int) else None}


def _libraries() -> Iterator[tuple[str, str, Facts]]:
    """Yield name, library and facts of native libraries; several with one file name in the order of their paths."""
    ctypes: Any = sys.modules.get("ctypes")
    if ctypes is None:  # every package with such libraries has imported it
        return
    copies: dict[str, int] = {}
    for path in mapped_libraries():
        file = os.path.basename(path)
        for library, pattern, functions in _NATIVE:
            answer = _read_facts(ctypes, path, functions) if pattern.match(file) else {}
            if answer:
                copies[file] = copies.get(file, 0) + 1
                number = f" #{copies[file]}" if copies[file] > 1 else ""
                yield f"{library} {file}{number}", library, answer


def openblas_libraries(ctypes: Any) -> Iterator[tuple[int, Any]]:
    """Yield the number of threads of each OpenBLAS in this process, and its setter."""
    pattern = next(pattern for library, pattern, _ in _NATIVE if library == "openblas")
    for path in mapped_libraries():
        if pattern.match(os.path.basename(path)):
            library = ctypes.CDLL(path, mode=os.RTLD_NOW | os.RTLD_NOLOAD)
            for form in _OPENBLAS:
                if hasattr(library, form.format("set_num_threads")):
                    count = getattr(library, form.format("get_num_threads"))()
                    yield count, getattr(library, form.format("set_num_threads"))
                    break


def mapped_libraries() -> list[str]:
    """Return the paths of the shared libraries in this process."""
    try:
        with open("/proc/self/maps", encoding="utf-8", errors="surrogateescape") as file:
            paths = {line[line.index("/") :].rstrip("\n") for line in file if "/" in line}
    except OSError:
        return []
    return sorted(path for path in paths if ".so" in path)


def _read_facts(ctypes: Any, path: str, functions: dict[str, list[str]]) -> Facts:
    try:
        library = ctypes.CDLL(path, mode=os.RTLD_NOW | os.RTLD_NOLOAD)
    except OSError:  # mapped, but not as a library of this process
        return {}
    answers = {fact: _call(ctypes, library, names, fact in _TEXTS) for fact, names in functions.items()}
    return {fact: answer for fact, answer in answers.items() if answer is not None}


def _call(ctypes: Any, library: Any, names: list[str], is_text: bool) -> Fact:
    """Call the first of these functions that the library has; return None if it has none."""
    functions = [getattr(library, name) for name in names if hasattr(library, name)]
    if not functions:
        return None
    functions[0].restype = ctypes.c_char_p if is_text else ctypes.c_int
    answer = functions[0]()
    return answer.decode("ascii", "replace")[:100] if isinstance(answer, bytes) else answer


# Pools whose sizes are set by functions, not by variables. The launcher requests sizes only for a replay with fewer
# processors than the recording.


def restore_pools(agent: Agent, name: str, module: ModuleType) -> None:
    """Restore the sizes that pools had in the recording, if the launcher asks for it."""
    sizes: dict[str, int] = read_plan(agent.run).get("pools", {})
    if sizes:
        resize_pools(name, module, sizes)


def resize_pools(name: str, module: ModuleType, sizes: dict[str, int]) -> None:
    """Resize the pools of a module that was just imported, and of the libraries that it loaded."""
    if name == "torch" and "torch_interop" in sizes:
        torch: Any = module
        if torch.get_num_interop_threads() != sizes["torch_interop"]:
            torch.set_num_interop_threads(sizes["torch_interop"])
    ctypes: Any = sys.modules.get("ctypes")
    if ctypes is not None and "openblas" in sizes:
        for count, set_count in openblas_libraries(ctypes):
            if count != sizes["openblas"]:
                set_count(sizes["openblas"])
