"""mpi4py: the results of collectives in this rank, and the library and algorithms that computed them.

Methods of communicators are wrapped, those that pickle and those on buffers. Nonblocking ones (Iallreduce) are not, as
they complete later. Uses of MPI's C interface are not seen.
"""

from __future__ import annotations

import os
import sys
from functools import partial

from ..core.agent import Adapter
from ..core.collectives import CollectiveLog, bytes_of, object_digest_of
from ..core.patching import noting, replace_in_static_type

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from ..core.agent import Agent

# Position of the argument root, counting the communicator; collectives not listed have a result in every rank.
_ROOTS = {"Reduce": 4, "Gather": 3, "Gatherv": 3}
_ON_BUFFERS = (
    "Allgather", "Allgatherv", "Allreduce", "Alltoall", "Alltoallv", "Bcast", "Exscan", "Gather", "Gatherv", "Reduce",
    "Reduce_scatter", "Reduce_scatter_block", "Scan", "Scatter", "Scatterv",
)  # fmt: skip
_PICKLED = ("allgather", "allreduce", "alltoall", "bcast", "exscan", "gather", "reduce", "scan", "scatter")

# Control variables of MPI's tool interface that choose components and algorithms: Open MPI's and MPICH's.
_OPERATIONS = (
    "allgather", "allgatherv", "allreduce", "alltoall", "alltoallv", "barrier", "bcast", "exscan", "gather", "reduce",
    "reduce_scatter", "reduce_scatter_block", "scan", "scatter",
)  # fmt: skip
_VARIABLES = (
    *(f"coll_{component}_priority" for component in ("adapt", "basic", "han", "hcoll", "sm", "tuned", "ucc", "xhc")),
    "coll_tuned_use_dynamic_rules",
    *(f"coll_tuned_{operation}_algorithm" for operation in _OPERATIONS),
    *(f"MPIR_CVAR_{operation.upper()}_INTRA_ALGORITHM" for operation in _OPERATIONS),
)
_MAX_VERSION = 500  # characters of the library's version text
_MPI_INT = 8  # bytes read of a control variable: enough for flags and integers


class MpiAdapter(Adapter):
    """Patches mpi4py.MPI."""

    def __init__(self, agent: Agent) -> None:
        super().__init__(agent)
        self._log = CollectiveLog(agent, "mpi")
        self._module: Any = None
        self._has_facts = False
        self._dtypes: dict[Any, str] = {}  # cached names of dtypes, which NumPy computes slowly

    def instrument(self, name: str, module: Any) -> None:
        if name == "mpi4py":
            super().instrument(name, module)
            return
        self._module = module
        for owner in (module.Comm, module.Intracomm):
            for methods, note in ((_ON_BUFFERS, self._note_buffer), (_PICKLED, self._note_object)):
                for method in methods:
                    replace_in_static_type(owner, method, noting(self._agent.attempt, partial(note, method)))

    def parts(self) -> list[Any]:
        return [self._log]

    def _note_object(self, name: str, result: Any, arguments: tuple[Any, ...], _keywords: Any) -> None:
        self._ensure_facts()
        self._log.note(name, arguments[0].Get_size(), "object", (), object_digest_of(result))

    def _note_buffer(self, name: str, _result: Any, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> None:
        self._ensure_facts()
        comm = arguments[0]
        position, keyword = (1, "buf") if name == "Bcast" else (2, "recvbuf")
        buffer: Any = arguments[position] if len(arguments) > position else keywords.get(keyword)
        if type(buffer) in (list, tuple):
            buffer = buffer[0] if len(buffer) == 2 and isinstance(buffer[1], self._module.Datatype) else None
        if not self._has_result(name, comm, arguments, keywords):
            buffer = None
        try:
            data = None if buffer is None else bytes_of(buffer)
        except (TypeError, ValueError, BufferError):  # on a GPU, or MPI.IN_PLACE
            data = None
        shape = getattr(buffer, "shape", ()) if data is not None else ()
        dtype = getattr(buffer, "dtype", "") if shape else ""
        dtype_name = self._dtypes.get(dtype)
        if dtype_name is None:
            dtype_name = self._dtypes[dtype] = str(dtype)
        self._log.note(name, comm.Get_size(), dtype_name, shape, data)

    @staticmethod
    def _has_result(name: str, comm: Any, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> bool:
        """Return whether this rank receives a result; buffers of other ranks are undefined."""
        if name == "Exscan":
            return bool(comm.Get_rank() > 0)
        if name not in _ROOTS:
            return True
        position = _ROOTS[name]
        root = arguments[position] if len(arguments) > position else keywords.get("root", 0)
        return bool(root == comm.Get_rank())

    def _ensure_facts(self) -> None:
        """Write the facts about the library, before the line of the first collective."""
        if not self._has_facts:
            self._has_facts = True
            self._agent.attempt(self._write_facts)

    def _write_facts(self) -> None:
        mpi = self._module
        facts: dict[str, object] = {
            "library": " ".join(mpi.Get_library_version().replace("\0", " ").split())[:_MAX_VERSION],
            "ranks": mpi.COMM_WORLD.Get_size(),
            "threads": mpi.Query_thread(),
        }
        facts.update(self._agent.attempt(lambda: dict(_control_variables(mpi.Query_thread()))) or {})
        self._agent.computed("collectives MPI", "collectives", facts)


def _control_variables(thread_level: int) -> Iterator[tuple[str, int]]:
    """Yield the values of the control variables, whether set by a file, the command or the environment.

    Open MPI takes the tool interface's thread level as the program's, so that must be the one that it has.
    """
    import ctypes

    from ..surroundings.compute_settings import mapped_libraries

    path = next((path for path in mapped_libraries() if os.path.basename(path).startswith("libmpi")), None)
    if path is None:
        return
    library = ctypes.CDLL(path, mode=os.RTLD_NOW | os.RTLD_NOLOAD)
    index, count, handle, provided = ctypes.c_int(), ctypes.c_int(), ctypes.c_void_p(), ctypes.c_int()
    if library.MPI_T_init_thread(thread_level, ctypes.byref(provided)):
        return
    try:
        for name in _VARIABLES:
            value = ctypes.create_string_buffer(_MPI_INT)
            if library.MPI_T_cvar_get_index(name.encode(), ctypes.byref(index)):
                continue
            if library.MPI_T_cvar_handle_alloc(index, None, ctypes.byref(handle), ctypes.byref(count)):
                continue
            if count.value == 1 and library.MPI_T_cvar_read(handle, value) == 0:
                number = int.from_bytes(value.raw[:4], sys.byteorder, signed=True)
                if number or not name.lower().endswith("_algorithm"):  # 0: the library chooses
                    yield name, number
            library.MPI_T_cvar_handle_free(ctypes.byref(handle))
    finally:
        library.MPI_T_finalize()
