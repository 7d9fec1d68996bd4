"""An S3 server in this process, a bucket in it, and a wire to it that can be cut."""

from __future__ import annotations

import itertools
import urllib.request
from dataclasses import dataclass

from s3_server import S3Server

from crashkit.bucket import OpenBlobs
from crashkit.proxy import Proxy
from domicile.node.blobs.base import Blobs
from domicile.node.blobs.retries import Retries
from domicile.node.blobs.s3 import S3Blobs, S3Config
from domicile.node.clock import SystemClock

_numbers = itertools.count(1)


@dataclass
class S3:
    """`settings` bring a node to the bucket over `wire`; `look` opens it past the wire."""

    bucket: str
    wire: Proxy
    server: S3Server
    look: OpenBlobs

    @property
    def settings(self) -> dict[str, str]:
        return {
            "DOMICILE_BLOBS": f"s3://{self.bucket}/prefix",
            "DOMICILE_BLOBS_ENDPOINT": f"http://127.0.0.1:{self.wire.port}",
            "DOMICILE_BLOBS_ACCESS_KEY_ID": "key",
            "DOMICILE_BLOBS_SECRET_ACCESS_KEY": "secret",
        }

    def close(self) -> None:
        self.wire.close()
        self.server.stop()


def start_s3() -> S3:
    """On free ports."""
    server = S3Server()
    bucket = f"drills-{next(_numbers)}"  # what moto holds belongs to the process, whatever server shows it
    endpoint = server.url
    urllib.request.urlopen(urllib.request.Request(f"{endpoint}/{bucket}", method="PUT")).close()
    config = S3Config(bucket, "prefix/", endpoint, access_key="key", secret_key="secret")

    async def look() -> Blobs:
        return await S3Blobs.open(config, Retries(SystemClock(), lambda: 0.5))

    return S3(bucket, Proxy(server.address), server, look)
