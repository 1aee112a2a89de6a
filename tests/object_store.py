"""moto's S3 as a process on the loopback device."""

from __future__ import annotations

import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from tests.support import wait_until

SECRET = "wJalrXUtnFEMIK7MDENGbPxRfiCYEXAMPLEKEY"  # of AWS's documentation


@dataclass
class ObjectStore:
    """Where it listens."""

    endpoint: str

    @property
    def environment(self) -> dict[str, str]:
        """The variables by which any client finds it."""
        return {
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_ACCESS_KEY_ID": "AKIAIOSFODNN7EXAMPLE",
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_REGION": "us-east-1",
        }

    @cached_property
    def client(self) -> Any:
        import boto3

        return boto3.client(
            "s3",
            endpoint_url=self.endpoint,
            aws_access_key_id="AKIAIOSFODNN7EXAMPLE",
            aws_secret_access_key=SECRET,
            region_name="us-east-1",
        )

    def bucket(self, name: str, *, versioned: bool = False) -> None:
        """Make an empty bucket."""
        self.client.create_bucket(Bucket=name)
        if versioned:
            self.client.put_bucket_versioning(Bucket=name, VersioningConfiguration={"Status": "Enabled"})

    def put(self, bucket: str, key: str, content: bytes) -> dict[str, Any]:
        """Write an object; returns the answer."""
        answer: dict[str, Any] = self.client.put_object(Bucket=bucket, Key=key, Body=content)
        return answer

    def keys(self, bucket: str) -> list[str]:
        """Return the names of all objects."""
        return [one["Key"] for one in self.client.list_objects_v2(Bucket=bucket).get("Contents", [])]


@contextmanager
def serving() -> Iterator[ObjectStore]:
    """Start the server, wait for it, and end it."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    store = ObjectStore(f"http://127.0.0.1:{port}")

    def answers() -> bool:
        assert server.poll() is None, "moto's server ended"
        with suppress(OSError):
            return bool(urllib.request.urlopen(store.endpoint, timeout=5).status)
        return False

    try:
        wait_until(answers, "moto's server")
        yield store
    finally:
        server.kill()
        server.wait()
