"""Object stores by URL, through obstore; credentials come from where obstore and boto3 look for them."""

from __future__ import annotations

import os
import re
from datetime import timedelta
from typing import Any

from reprokit.errors import ExtraMissing, ReprokitError, StoreUnreachable, reason

REMOTE = re.compile("(s3|gs|az|abfss?|https?)://.")
ENDPOINTS = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")
LONGEST = 300  # characters of a store's answer


def is_remote(text: str) -> bool:
    """Return whether this names an object or a prefix of a store."""
    return REMOTE.match(text) is not None


def library() -> Any:
    """Return obstore, an extra."""
    try:
        import obstore
    except ImportError:
        raise ExtraMissing("an object store", "obstore") from None
    return obstore


def open_store(url: str, *, timeout: float | None = None) -> Any:
    """Return obstore's store whose root is the URL's path; with a time limit it does not try again for long."""
    library()
    from obstore.store import from_url

    endpoint = next(filter(None, map(os.environ.get, ENDPOINTS)), "")
    settings: dict[str, Any] = {"client_options": {"allow_http": endpoint.startswith("http://")}}
    if timeout is not None:
        settings["client_options"] |= {"timeout": timedelta(seconds=timeout)}
        settings["retry_config"] = {"max_retries": 1, "retry_timeout": timedelta(seconds=timeout)}
    if url.startswith("s3://"):
        settings |= {"endpoint": endpoint} if endpoint else {}
        settings |= _credentials()
    try:
        return from_url(url, **settings)
    except Exception as error:  # obstore's have no base of their own for what a URL can be wrong in
        raise failed(url, error) from None


def _credentials() -> dict[str, Any]:
    """Return boto3's provider where the environment has no keys: it reads profiles, which obstore does not."""
    if "AWS_ACCESS_KEY_ID" in os.environ:
        return {}
    try:
        from obstore.auth.boto3 import Boto3CredentialProvider

        return {"credential_provider": Boto3CredentialProvider()}
    except (ImportError, ValueError):  # no boto3, or no credentials
        return {}


def failed(url: str, error: BaseException) -> ReprokitError:
    """Return what is said where the store refuses: the first line of its answer."""
    text = (str(error).splitlines() or [""])[0] or reason(error)
    return StoreUnreachable(f"{url}: {text[:LONGEST]}; name a place that the store has, and keys that may use it")
