"""Reading TFRecords from an object store (moto's server): data throughput, obstore alone, boto3 alone, in turn."""

from __future__ import annotations

import os
import struct
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from benchmarks.measure import in_turn, show

sys.path.insert(0, str(Path(__file__).parent.parent))
from tests.object_store import ObjectStore, serving

OBJECTS, RECORDS, SIZE, THREADS = 8, 250, 120_000, 4


def shard() -> bytes:
    from reprokit.diff.formats.sstable import crc32c, masked

    parts = []
    for _ in range(RECORDS):
        length, data = struct.pack("<Q", SIZE), os.urandom(SIZE)
        parts += [length, struct.pack("<I", masked(crc32c(length))), data, struct.pack("<I", masked(crc32c(data)))]
    return b"".join(parts)


def rates(store: ObjectStore, url: str, threads: int) -> dict[str, object]:
    """What each side is: a function that returns megabytes per second."""
    import boto3
    import obstore

    from reprokit.diff import throughput
    from reprokit.run_files import object_stores

    bucket = url.removeprefix("s3://")
    keys = store.keys(bucket)
    opened = object_stores.open_store(url)
    client = boto3.client("s3")

    def timed(read: object) -> float:
        began = time.perf_counter()
        with ThreadPoolExecutor(threads) as pool:
            size = sum(pool.map(read, keys))  # type: ignore[call-overload]
        return float(size / (time.perf_counter() - began) / throughput.MEGABYTE)

    def reprokit() -> float:
        done = throughput.measure(url, [threads], 128).passes[0]
        assert done.records == OBJECTS * RECORDS
        return throughput.rate(done)

    return {
        "obstore": lambda: timed(lambda key: len(obstore.get(opened, key).bytes())),
        "boto3": lambda: timed(lambda key: len(client.get_object(Bucket=bucket, Key=key)["Body"].read())),
        "data throughput": reprokit,
    }


def main(runs: int) -> None:
    with serving() as store:
        os.environ.update(store.environment)
        store.bucket("throughput")
        for number in range(OBJECTS):
            store.put("throughput", f"{number}.tfrecord", shard())
        for threads in (1, THREADS):
            print(f"  {OBJECTS} objects of {RECORDS * SIZE / 1e6:.0f} MB, {threads} threads:")
            show(in_turn(rates(store, "s3://throughput", threads), runs), "MB/s", "obstore")  # type: ignore[arg-type]
