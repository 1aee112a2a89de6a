"""Every private name of the standard library and of joblib that orders depend on, and where it was seen.

tests/agent/test_orders.py says what a release lacks. A method that is missing is not watched.
"""

SEEN = {
    "threading._active": "3.8 to 3.13",
    "queue.Queue._get": "3.8 to 3.13",
    "queue.Queue._put": "3.8 to 3.13",
    "queue.Queue._qsize": "3.8 to 3.13",
    "concurrent.futures._base.DoneAndNotDoneFutures": "3.8 to 3.13",
    "multiprocessing.pool.IMapUnorderedIterator._set": "3.8 to 3.13",
    "asyncio.base_events.BaseEventLoop": "3.8 to 3.13",
    "asyncio.events.Handle._run": "3.8 to 3.13",
    "joblib.parallel.Parallel._register_new_job": "1.6",
}
