"""The blob store that the settings name (API, "Settings"): `file:…` or `s3://bucket/prefix`."""

from __future__ import annotations

import os
import random

from domicile.node.blobs.base import Blobs
from domicile.node.blobs.file import FileBlobs
from domicile.node.clock import Clock
from domicile.node.config import Config


async def open_blobs(config: Config, clock: Clock, rng: random.Random) -> Blobs:
    """Nothing is sent yet: `probe` does. Raises what a bucket that cannot be named raises."""
    kind, _, where = config.blobs.partition(":")
    if kind == "file":
        return FileBlobs(where or os.path.join(config.data, "blobs"), clock)
    from domicile.node.blobs.retries import Retries
    from domicile.node.blobs.s3 import S3Blobs, S3Config

    bucket, _, prefix = where.removeprefix("//").partition("/")
    s3 = S3Config(
        bucket=bucket,
        prefix=f"{prefix.rstrip('/')}/" if prefix else "",
        endpoint=config.blobs_endpoint or None,
        access_key=config.blobs_access_key_id or None,
        secret_key=config.blobs_secret_access_key or None,
    )
    return await S3Blobs.open(s3, Retries(clock, rng.random))
