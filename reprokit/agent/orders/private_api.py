"""Lists the private names of Python, joblib and Dask that orders depend on, and the versions seen with them.

A test in tests/agent/test_orders.py fails for names that a release lacks. A missing method is not patched.
"""

SEEN = {
    "threading._active": "3.8 to 3.13",
    "threading.Event.wait": "3.7 to 3.13, as are its _cond, and the _lock of a Condition",
    "_frozen_importlib._find_and_load": "3.7 to 3.13",
    "queue.Queue._get": "3.8 to 3.13",
    "queue.Queue._put": "3.8 to 3.13",
    "queue.Queue._qsize": "3.8 to 3.13",
    "concurrent.futures._base.DoneAndNotDoneFutures": "3.8 to 3.13",
    "multiprocessing.pool.IMapUnorderedIterator._set": "3.8 to 3.13",
    "multiprocessing.process.BaseProcess.run": "3.7 to 3.13, as are its _target and _args",
    "multiprocessing.pool.ThreadPool._setup_queues": "3.7 to 3.13, as are the _inqueue and _outqueue that it makes",
    "multiprocessing.synchronize.SemLock": "3.7 to 3.13, as are the _semlock in it, and a queue's _rlock and _wlock",
    "multiprocessing.synchronize.SemLock._make_methods": "3.7 to 3.13",
    "multiprocessing.synchronize.Condition": "3.8 to 3.13, as are the _wait_semaphore and _woken_count that it makes",
    "multiprocessing.managers.Server.accept_connection": "3.8 to 3.13",
    "multiprocessing.managers.Server.create": "3.8 to 3.13",
    "concurrent.futures.thread.ThreadPoolExecutor._adjust_thread_count": "3.7 to 3.13; _idle_semaphore from 3.8 on",
    "concurrent.futures.process.ProcessPoolExecutor": "3.7 to 3.13; _idle_worker_semaphore from 3.9 on",
    "asyncio.base_events.BaseEventLoop": "3.7 to 3.13, as are its _thread_id and _ready",
    "asyncio.events.Handle._run": "3.7 to 3.13, as are its _callback and _args",
    "asyncio.events._get_running_loop": "3.7 to 3.13",
    "asyncio.timeouts.Timeout": "3.11 to 3.13, as are its _when, _timeout_handler and _on_timeout",
    "asyncio.selector_events.BaseSelectorEventLoop._add_reader": "3.7 to 3.13, as are _add_writer, and a loop's _ssock",
    "dask.sizeof.random": "2026.8: the module, of which it calls sample",
    "distributed.scheduler.SchedulerState._add_to_processing": "2026.8, as is its running, and valid_workers",
    "distributed.scheduler.SchedulerState._exit_processing_common": "2026.8, as are a task's key and processing_on",
    "distributed.stealing.WorkStealing.move_task_request": "2026.8, as is its scheduler",
    "joblib._parallel_backends.AutoBatchingMixin.compute_batch_size": "1.6",
    "joblib.pool.CustomizablePicklingQueue._make_methods": "1.6",
    "joblib.parallel.Parallel._register_new_job": "1.6",
}
