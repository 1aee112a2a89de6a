"""Sums the bytes of s3://BUCKET/shards/0 and 1, read by the library that is named; prints the sum."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Mapping
from hashlib import md5

KEYS = ("shards/0", "shards/1")


def by_boto3(bucket: str, key: str) -> bytes:
    import boto3

    return boto3.client("s3").get_object(Bucket=bucket, Key=key)["Body"].read()


def by_boto3_download(bucket: str, key: str) -> bytes:
    """As of large objects: one request asks how large it is, others for its parts, if it still has that ETag."""
    import io

    import boto3
    from boto3.s3.transfer import TransferConfig

    file = io.BytesIO()
    boto3.client("s3").download_fileobj(bucket, key, file, Config=TransferConfig(multipart_threshold=1))
    return file.getvalue()


def by_obstore(bucket: str, key: str) -> bytes:
    from obstore.store import S3Store

    return bytes(S3Store(bucket, client_options={"allow_http": True}).get(key).bytes())


def by_obstore_ranges(bucket: str, key: str) -> bytes:
    import obstore
    from obstore.store import S3Store

    store = S3Store(bucket, prefix="shards", client_options={"allow_http": True})
    name = key.removeprefix("shards/")
    parts = obstore.get_ranges(store, name, starts=[0, 3], ends=[3, 6])
    return as_its_head_says(b"".join(map(bytes, parts)), store.head(name))


def as_its_head_says(content: bytes, head: Mapping[str, object]) -> bytes:
    """Return the content of the version that the facts are of: the ETag is its MD5."""
    assert str(head["e_tag"]).strip('"') == md5(content).hexdigest()
    return content


async def two_reads(store: object, key: str) -> bytes:
    import obstore

    first = obstore.get_range_async(store, key, start=0, end=3)
    second = await obstore.get_async(store, key, options={"range": (3, 6)})
    head = await obstore.head_async(store, key)
    found = as_its_head_says(bytes(await first) + bytes(await second.bytes_async()), head)
    await asyncio.sleep(0.2)  # obstore's threads still call the loop; where the process ends first, it aborts, bare too
    return found


def by_obstore_async(bucket: str, key: str) -> bytes:
    from obstore.store import S3Store

    return asyncio.run(two_reads(S3Store(bucket, client_options={"allow_http": True}), key))


def by_fsspec(bucket: str, key: str) -> bytes:
    from obstore.fsspec import FsspecStore

    with FsspecStore("s3", client_options={"allow_http": True}).open(f"{bucket}/{key}", "rb") as file:
        return file.read()


def by_pyarrow(bucket: str, key: str) -> bytes:
    import os

    from pyarrow.fs import S3FileSystem

    filesystem = S3FileSystem(endpoint_override=os.environ["AWS_ENDPOINT_URL"])
    with filesystem.open_input_file(f"{bucket}/{key}") as file:
        return file.read()


def by_fsspec_https(bucket: str, key: str) -> bytes:
    from fsspec.spec import AbstractBufferedFile, AbstractFileSystem

    class Web(AbstractFileSystem):
        protocol = ("https", "http")

        def info(self, path: str, **_: object) -> dict[str, object]:
            return {"name": path, "size": 6, "type": "file", "ETag": '"of-the-web"'}

        def _open(self, path: str, mode: str = "rb", **_: object) -> AbstractBufferedFile:
            return WebFile(self, path, mode)

    class WebFile(AbstractBufferedFile):
        def _fetch_range(self, start: int, end: int) -> bytes:
            return b"shard" + self.path.rpartition("/")[2][:1].encode()

    return Web().open(f"https://user:password@host/{bucket}/{key}?X-Amz-Signature=abc", "rb").read()


def by_tensorflow(bucket: str, key: str) -> bytes:
    import tensorflow as tf

    place = f"ram://{bucket}/{key}"
    with tf.io.gfile.GFile(place, "wb") as file:
        file.write(b"shard" + key[-1:].encode())
    with tf.io.gfile.GFile(place, "rb") as file:
        return file.read()


def by_s3torchconnector(bucket: str, key: str) -> bytes:
    import os

    from s3torchconnector import S3ClientConfig, S3MapDataset

    dataset = S3MapDataset.from_objects(
        [f"s3://{bucket}/{key}"],
        region="us-east-1",
        endpoint=os.environ["AWS_ENDPOINT_URL"],
        s3client_config=S3ClientConfig(force_path_style=True),
    )
    return dataset[0].read()


LIBRARIES: dict[str, Callable[[str, str], bytes]] = {
    "boto3": by_boto3,
    "boto3-download": by_boto3_download,
    "obstore": by_obstore,
    "obstore-ranges": by_obstore_ranges,
    "obstore-async": by_obstore_async,
    "fsspec": by_fsspec,
    "fsspec-https": by_fsspec_https,
    "tensorflow": by_tensorflow,
    "pyarrow": by_pyarrow,
    "s3torchconnector": by_s3torchconnector,
}


def main() -> None:
    library, bucket = sys.argv[1:]
    print(sum(sum(LIBRARIES[library](bucket, key)) for key in KEYS))


if __name__ == "__main__":
    main()
