"""The patches of libraries that several frameworks use, of smaller ones, and of Python itself."""

from __future__ import annotations

from reprokit.patches.patch import Patch, Takes

_POOLS = ("OMP", "MKL", "OPENBLAS", "BLIS", "NUMEXPR", "VECLIB", "RAYON")

PATCHES = (
    Patch(
        id="threads",
        title="N threads in each pool: OpenMP, MKL, OpenBLAS, PyTorch, TensorFlow, polars, rayon",
        variables={
            **{f"{pool}_NUM_THREADS": "{value}" for pool in _POOLS},
            "POLARS_MAX_THREADS": "{value}",
            "TF_NUM_INTRAOP_THREADS": "{value}",
            "TF_NUM_INTEROP_THREADS": "{value}",
            "MKL_DYNAMIC": "FALSE",
            "OMP_DYNAMIC": "FALSE",
        },
        agent=True,
        takes=Takes.A_VALUE,
        value="N",
        pattern="[1-9][0-9]{0,3}",
        example="a number of threads from 1 to 9999, as in threads=1",
        conflicts=("tf-threads",),
        undo="in the process too",
        cost="the use of all processors but N; what varies with two threads repeats for certain only with one",
    ),
    Patch(
        id="cublas-workspace",
        title="CUBLAS_WORKSPACE_CONFIG=:4096:8: cuBLAS has a workspace of fixed size",
        variables={"CUBLAS_WORKSPACE_CONFIG": ":4096:8"},
        accelerated=True,
        beside=("torch", "tensorflow", "jax"),
        cost="24 MiB of each GPU's memory; nothing without a GPU",
        automatic=True,
    ),
    Patch(
        id="mkl-cbwr",
        title="MKL_CBWR: MKL keeps to one branch of its code",
        variables={"MKL_CBWR": "{value}"},
        takes=Takes.MAYBE,
        value="BRANCH",
        pattern="AUTO|COMPATIBLE|SSE2|SSE4_2|AVX|AVX2|AVX512(_E1)?|(AVX2|AVX512(_E1)?),STRICT",
        example="the name of one of MKL's branches, as in mkl-cbwr=AVX2 or mkl-cbwr=AVX2,STRICT",
        default="AUTO",
        cost="matrix products of PyTorch: none with AUTO and AVX2, 2.4 times as long with COMPATIBLE",
        measured=True,
    ),
    Patch(
        id="nccl-algorithm",
        title="NCCL_ALGO=Ring, NCCL_PROTO=Simple: NCCL adds in one order",
        variables={"NCCL_ALGO": "Ring", "NCCL_PROTO": "Simple"},
        cost="slower small all-reduces and many nodes; not measured",
    ),
    Patch(
        id="xla-deterministic",
        title="XLA_FLAGS --xla_gpu_deterministic_ops=true: no autotuning, no operations that vary, on GPUs",
        flags={"XLA_FLAGS": "--xla_gpu_deterministic_ops=true"},
        not_with={"tensorflow": "<2.5"},
        cost="slower scatters and matrix products on GPUs, not measured; nothing on the CPU",
    ),
    Patch(
        id="seed",
        title="one seed for Python, NumPy, PyTorch and TensorFlow, given when each is imported",
        variables={"PYTHONHASHSEED": "{value}"},
        agent=True,
        takes=Takes.A_VALUE,
        value="N",
        pattern="[0-9]{1,9}",
        example="a whole number of at most nine digits, as in seed=42",
        warning="changes numbers: global generators and NumPy's begin with this seed, unless the script seeds them",
        cost="nothing that was seen",
    ),
    Patch(
        id="xgboost-linear",
        title="gblinear by coord_descent in the place of shotgun",
        framework="xgboost",
        versions=">=0.72",
        agent=True,
        warning="changes numbers: weights are updated in order, by another algorithm than was asked for",
        cost="2.4 times the processor time of shotgun, with 50 columns and one thread",
        measured=True,
        undo="in the process too",
    ),
    Patch(
        id="imap-ordered",
        title="Pool.imap_unordered gives results in the order of their tasks",
        agent=True,
        cost="results that are done early wait for those before them",
        undo="in the process too",
    ),
)
