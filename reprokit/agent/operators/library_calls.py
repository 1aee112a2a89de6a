"""Observes calls of libraries that make batches, yield results as they complete, or compile; with their places."""

from __future__ import annotations

import os
import re
import sys
import weakref
from functools import partial

from ..core.patching import replace
from ..core.user_frames import is_own, is_users
from ..orders.callers import caller_outside
from ..pytorch import private_api
from ..surroundings.directory_proxies import OsFunctionProxy
from .call_graph import MAX_WHERE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import CodeType, FrameType
    from typing import Any

    from . import Observer

    Arguments = tuple[Any, ...]
    Keywords = dict[str, Any]

_MARK = "_reprokit_watched"  # not the mark of core.patching, as adapters may have replaced the function already
MAX_ARGUMENTS = 8  # of a call that a pool is given
_IN_ORDER = ("map", "starmap", "imap")  # methods of Pool that keep the order of their arguments
_QUERIES = ("execute", "executemany", "from_parquet", "from_query", "query", "read_csv", "read_parquet", "sql", "table")
_SET_THREADS = re.compile(r"\bthreads\s*(?:=|to)\s*'?(\d{1,9})", re.IGNORECASE)
_COMPILED = "/jax/core/compile/backend_compile_duration"
# Methods of tf.data.Dataset, and the position of num_parallel_calls, counting self.
_PARALLEL = {"map": 2, "interleave": 4, "batch": 3, "padded_batch": None, "filter": None}


def watch(observer: Observer, owner: Any, name: str, note: Callable[[Arguments, Keywords], object]) -> None:
    """Patch a function: call note(arguments, keywords) before each call, while the observer collects."""

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        def watched(*arguments: Any, **keywords: Any) -> Any:
            if observer.collecting:
                caller = sys._getframe(1)
                if caller.f_code is getattr(vars(owner).get(name), "__code__", None) and caller.f_back is not None:
                    caller = caller.f_back  # a wrapper put around this one later, which passes the script's call on
                if not is_own(caller.f_code.co_filename):  # the agent's own calls are not observed
                    observer.agent.attempt(note, arguments, keywords)
            return original(*arguments, **keywords)

        return watched

    replace(owner, name, make, _MARK)


class ObservedBuiltin(OsFunctionProxy):
    """Proxy of a built-in function that calls note(caller's frame, arguments) first, while the observer collects."""

    def __init__(self, original: Any, observer: Observer, note: Callable[[FrameType, Arguments], object]) -> None:
        super().__init__(original, observer)
        self.__module__, self._note = original.__module__, note

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        if self._recorder.collecting:
            self._recorder.agent.attempt(self._note, sys._getframe(1), arguments)
        return self._original(*arguments, **keywords)


def argument(arguments: Arguments, keywords: Keywords, position: int, name: str) -> Any:
    """Return an argument of a call; None if it was left out."""
    return arguments[position] if len(arguments) > position else keywords.get(name)


# Results in the order of completion, which depends on timing


def _note_completion(
    observer: Observer, name: str, *, ordered: bool = False, places: list[tuple[str, int, str]] | None = None
) -> None:
    observer.count("completion", name, {"ordered": ordered}, places=places)


def observe_waiting(module: Any, observer: Observer) -> None:
    """Observe as_completed and wait of asyncio and concurrent.futures, and tasks that sleep."""
    package = module.__name__.rpartition(".")[0]

    def note_wait(arguments: Arguments, keywords: Keywords) -> None:
        if argument(arguments, keywords, 2, "return_when") not in (None, "ALL_COMPLETED"):
            _note_completion(observer, f"{package}.wait")

    def note_sleep(arguments: Arguments, keywords: Keywords) -> None:
        if argument(arguments, keywords, 0, "delay"):  # others only let the loop go on
            _note_completion(observer, f"{package}.sleep")

    watch(observer, module, "sleep", note_sleep)
    watch(observer, module, "as_completed", lambda *_: _note_completion(observer, f"{package}.as_completed"))
    watch(observer, module, "wait", note_wait)


def _users_code(function: Any) -> CodeType | None:
    """Return the code of a function that threads execute, if it is the user's own; else None."""
    parts = (getattr(function, "func", function), *getattr(function, "args", ())[:1])  # of partial, to_thread
    codes = (getattr(getattr(part, "__func__", part), "__code__", None) for part in parts)
    return next((code for code in codes if code is not None and is_users(code.co_filename)), None)


def _count_concurrent(observer: Observer, name: str, code: CodeType) -> None:
    """Count a function that several threads execute concurrently: their shared state depends on timing."""
    _note_completion(observer, name, places=[(code.co_filename, code.co_firstlineno, code.co_name)])


def observe_threads(module: Any, observer: Observer) -> None:
    """Observe threads that the script starts while another one of its threads is running."""
    started: weakref.WeakSet[Any] = weakref.WeakSet()

    def note(arguments: Arguments, _: Keywords) -> None:
        thread = arguments[0]
        code = _users_code(getattr(thread, "_target", None) or type(thread).run)
        if code is not None:
            if any(earlier.is_alive() for earlier in started):
                _count_concurrent(observer, "threading.Thread", code)
            started.add(thread)

    watch(observer, module.Thread, "start", note)


def observe_thread_pool(module: Any, observer: Observer) -> None:
    """Observe functions of the script that a pool of several threads executes."""
    busy: weakref.WeakSet[Any] = weakref.WeakSet()

    def note(arguments: Arguments, keywords: Keywords) -> None:
        pool, given = arguments[0], (*arguments[1 : 1 + MAX_ARGUMENTS], *keywords.values())
        code = next(filter(None, map(_users_code, given)), None)  # a library may pass on the function of its caller
        if code is not None and getattr(pool, "_max_workers", 0) > 1:
            if pool in busy:
                _count_concurrent(observer, "ThreadPoolExecutor", code)
            busy.add(pool)

    watch(observer, module.ThreadPoolExecutor, "submit", note)


class DuckDBThreads:
    """What a script says of the threads of DuckDB: which of its connections work in one only."""

    def __init__(self) -> None:
        self._connections = self._limited = 0  # made so far, and those of them that have one thread from the start
        self._singles: set[int] = set()  # ids of connections; 0 while there is only one

    def connect(self, arguments: Arguments, keywords: Keywords) -> None:
        """Note a new connection."""
        config = argument(arguments, keywords, 2, "config")
        self._connections += 1
        self._limited += isinstance(config, dict) and str(config.get("threads")) == "1"

    def is_single(self, arguments: Arguments) -> bool:
        """Return whether the query of a call is executed by one thread; a query may set that itself."""
        connection = 0 if self._connections <= 1 or isinstance(arguments[0], str) else id(arguments[0])
        for text in (each for each in arguments[:2] if isinstance(each, str)):
            for number in _SET_THREADS.findall(text):
                (self._singles.add if int(number) == 1 else self._singles.discard)(connection)
        return connection in self._singles or 0 < self._connections == self._limited


def observe_duckdb(module: Any, observer: Observer) -> None:
    """Observe queries of DuckDB, whose own threads decide the order of rows and of sums."""
    threads = DuckDBThreads()

    def note_query(arguments: Arguments, _: Keywords) -> None:
        is_single = bool(arguments) and threads.is_single(arguments)
        _note_completion(observer, "duckdb.query", ordered=is_single)

    watch(observer, module, "connect", threads.connect)
    for name in _QUERIES:
        for owner in (module, module.DuckDBPyConnection):
            if callable(getattr(owner, name, None)):
                watch(observer, owner, name, note_query)


def observe_pool(module: Any, observer: Observer) -> None:
    """Observe multiprocessing.Pool."""

    def note_callback(arguments: Arguments, keywords: Keywords) -> None:
        if argument(arguments, keywords, 4, "callback") is not None:  # called in the order of completion
            _note_completion(observer, "Pool.apply_async(callback)")

    def note_of(method: str) -> Callable[..., None]:
        return lambda *_: _note_completion(observer, f"Pool.{method}", ordered=method in _IN_ORDER)

    for method in ("imap_unordered", *_IN_ORDER):
        watch(observer, module.Pool, method, note_of(method))
    watch(observer, module.Pool, "apply_async", note_callback)


def _script_calls(library: str = "") -> bool:
    """Return whether the script itself calls, be it through this library."""
    caller = caller_outside((library,))
    return caller is not None and is_users(caller.f_code.co_filename)


def observe_waits(module: Any, observer: Observer) -> None:
    """Observe the script's waits for any child."""

    def note(name: str, _: FrameType, arguments: Arguments) -> None:
        if name == "waitid":
            is_any = arguments[0] in (os.P_ALL, os.P_PGID)
        else:
            is_any = name in ("wait", "wait3") or arguments[0] <= 0
        if is_any and _script_calls():
            _note_completion(observer, f"os.{name}")

    for name in ("wait", "wait3", "wait4", "waitpid", "waitid"):
        setattr(module, name, ObservedBuiltin(getattr(module, name), observer, partial(note, name)))


def observe_selects(module: Any, observer: Observer) -> None:
    """Observe the script's waits for any of several descriptors."""

    def note(name: str, *_: Any) -> None:
        if _script_calls():
            _note_completion(observer, f"{module.__name__}.{name}")

    if module.__name__ == "select":
        for name in ("select", "poll"):  # poll() makes an object that polls
            setattr(module, name, ObservedBuiltin(getattr(module, name), observer, partial(note, name)))
    else:
        for kind in ("EpollSelector", "PollSelector", "SelectSelector"):
            watch(observer, vars(module)[kind], "select", partial(note, "select"))


_STREAMS = {
    "BaseEventLoop": ("create_connection", "create_server", "connect_read_pipe", "subprocess_exec", "subprocess_shell"),
    "BaseSelectorEventLoop": ("add_reader", "sock_accept", "sock_recv", "sock_recv_into"),
}


def observe_streams(module: Any, observer: Observer) -> None:
    """Observe the script's sockets, pipes and programs for which a loop of asyncio waits."""

    def note_of(method: str) -> Callable[..., None]:
        def note(*_: Any) -> None:
            if _script_calls("asyncio"):
                _note_completion(observer, f"asyncio.{method}")

        return note

    owner = vars(module).get("BaseSelectorEventLoop") or module.BaseEventLoop
    for method in _STREAMS[owner.__name__]:
        watch(observer, owner, method, note_of(method))


def observe_shared_memory(module: Any, observer: Observer) -> None:
    """Observe arrays and values of multiprocessing that processes share without a lock."""

    def note_of(method: str) -> Callable[..., None]:
        def note(_: Arguments, keywords: Keywords) -> None:
            if keywords.get("lock") is False:
                _note_completion(observer, f"multiprocessing.{method}(lock=False)")

        return note

    for method in ("Array", "Value"):
        watch(observer, module.BaseContext, method, note_of(method))


def observe_queues(module: Any, observer: Observer) -> None:
    """Observe puts into queues between processes."""
    for queue in (module.Queue, module.SimpleQueue):
        watch(observer, queue, "put", lambda *_: observer.note_handover())


def observe_joblib(module: Any, observer: Observer) -> None:
    """Observe joblib.Parallel."""

    def note(arguments: Arguments, _: Keywords) -> None:
        if getattr(arguments[0], "return_generator", False) and getattr(arguments[0], "return_unordered", False):
            _note_completion(observer, "joblib.Parallel(return_as='generator_unordered')")

    watch(observer, module.Parallel, "__call__", note)


# The time of day


def observe_clock(module: Any, observer: Observer) -> None:
    """Observe the lines of the script that read the time of day, unless all functions are counted."""
    if observer.counts_functions:
        return
    lines: dict[str, dict[str, Any]] = {}

    def note(name: str, frame: FrameType, _: Arguments) -> None:
        code = frame.f_code
        if not is_users(code.co_filename):
            return
        if name not in lines:
            lines[name] = {"name": name, "calls": 0, "where": []}
            observer.write("function", name, lines[name])
        lines[name]["calls"] += 1
        place, where = [code.co_filename, frame.f_lineno, code.co_name], lines[name]["where"]
        seen = next((seen for seen in where if seen[:3] == place), None)
        if seen is not None:
            seen[3] += 1
        elif len(where) < MAX_WHERE:
            where.append([*place, 1])

    for name in ("time.time", "time.time_ns"):
        function = name.partition(".")[2]
        setattr(module, function, ObservedBuiltin(getattr(module, function), observer, partial(note, name)))
    observer.callbacks.in_child.append(lines.clear)


# How batches are made


def observe_evaluations(torch: Any, observer: Observer) -> None:
    """Observe eval() of PyTorch modules, after which no step follows, and share_memory()."""
    watch(observer, torch.nn.Module, "eval", lambda *_: observer.resume())
    watch(
        observer,
        torch.nn.Module,
        "share_memory",
        lambda *_: _note_completion(observer, "torch.nn.Module.share_memory"),
    )


def observe_loaders(_module: Any, observer: Observer) -> None:
    """Observe the workers and generators of PyTorch's DataLoader."""

    def begin_pass(loader: Any) -> None:
        observer.resume()
        facts = {
            "workers": int(loader.num_workers),
            "generator": "default" if loader.generator is None else "given",
            "worker_init_fn": loader.worker_init_fn is not None,
            "sampler": type(getattr(loader, "sampler", None)).__name__,
            "persistent_workers": bool(getattr(loader, "persistent_workers", False)),
            "in_order": bool(getattr(loader, "in_order", True)),
            "start_method": private_api.start_method(loader),
        }
        observer.count("loader", "torch.utils.data.DataLoader", facts)

    observer.callbacks.each_pass.append(begin_pass)


def observe_datasets(module: Any, observer: Observer) -> None:
    """Observe the parallelism of tf.data."""

    def note_of(method: str, position: int | None) -> Callable[..., None]:
        def note(arguments: Arguments, keywords: Keywords) -> None:
            parallel = keywords.get("num_parallel_calls")
            if parallel is None and position is not None:
                parallel = argument(arguments, keywords, position, "num_parallel_calls")
            facts = {"workers": _number(parallel), "deterministic": _flag(keywords.get("deterministic"))}
            if facts != {"workers": None, "deterministic": None}:
                observer.count("loader", f"tf.data.Dataset.{method}", facts)

        return note

    def note_shuffle(arguments: Arguments, keywords: Keywords) -> None:
        seed = argument(arguments, keywords, 2, "seed")
        observer.count("loader", "tf.data.Dataset.shuffle", {"seeded": seed is not None})

    def note_options(arguments: Arguments, keywords: Keywords) -> None:
        options = argument(arguments, keywords, 1, "options")
        name = "deterministic" if hasattr(type(options), "deterministic") else "experimental_deterministic"
        facts = {"deterministic": _flag(getattr(options, name, None))}
        observer.count("loader", "tf.data.Dataset.with_options", facts)

    for owner in (getattr(module, name, None) for name in ("DatasetV2", "DatasetV1")):
        if owner is not None:
            for method, position in _PARALLEL.items():
                watch(observer, owner, method, note_of(method, position))
            watch(observer, owner, "shuffle", note_shuffle)
            watch(observer, owner, "with_options", note_options)


def _number(value: Any) -> int | str | None:
    """Return a number of parallel calls; -1 is tf.data's AUTOTUNE; tensors are not evaluated."""
    if isinstance(value, bool) or value is None:
        return None
    if isinstance(value, int) or type(value).__module__ == "numpy":
        return "autotune" if int(value) == -1 else int(value)
    return "computed"


def _flag(value: Any) -> bool | str | None:
    return value if value is None or isinstance(value, bool) else str(value)[:100]


# Compilations by XLA


def observe_compilations(jax: Any, observer: Observer) -> None:
    """Observe JAX by its reports of compilations; executions are not observed."""
    from importlib import import_module

    facts = {"framework": "jax", "version": str(getattr(jax, "__version__", "")), "operators": []}

    def note(event: str, _seconds: float, **details: Any) -> None:
        if event == _COMPILED and observer.collecting:
            function = str(details.get("fun_name", ""))
            observer.agent.attempt(observer.count, "compiled", "xla", {**facts, "function": function})

    import_module("jax.monitoring").register_event_duration_secs_listener(note)
