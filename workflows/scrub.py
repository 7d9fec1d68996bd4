"""Scrub(region): what the bucket and the replicas hold is read back and compared (PROTOCOLS section 10)."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from temporalio import workflow
from temporalio.common import RetryPolicy

from domicile.workflows.attributes import mark
from domicile.workflows.queues import region_queue

SHARDS = "0123456789abcdef"
PROBLEMS_SHOWN = 50


@dataclass(frozen=True)
class ScrubRegion:
    """The workflow's input: {"region": "local"}. `sample`: the share of objects that are restored from the bucket
    alone; `mb_per_sec` limits what is read, 0 does not. `shards`: the first digits of object ids."""

    region: str
    sample: float = 0.02
    mb_per_sec: float = 0.0
    shards: str = SHARDS


@dataclass(frozen=True)
class ScrubShard:
    """One activity's part."""

    region: str
    shard: str
    sample: float
    mb_per_sec: float


@dataclass(frozen=True)
class Scrubbed:
    """What was read: objects, blobs (chunks and segments), bytes, copies on nodes, objects restored; and up to fifty of
    the `problems_in_all` that were found."""

    objects: int = 0
    blobs: int = 0
    bytes: int = 0
    copies: int = 0
    restored: int = 0
    problems_in_all: int = 0
    problems: list[str] = field(default_factory=list)

    def plus(self, other: Scrubbed) -> Scrubbed:
        """The sum of both."""
        return Scrubbed(
            self.objects + other.objects,
            self.blobs + other.blobs,
            self.bytes + other.bytes,
            self.copies + other.copies,
            self.restored + other.restored,
            self.problems_in_all + other.problems_in_all,
            (self.problems + other.problems)[:PROBLEMS_SHOWN],
        )


@workflow.defn(name="Scrub")
class Scrub:
    """Id `scrub-<region>`."""

    def __init__(self) -> None:
        self._done = 0
        self._scrubbed = Scrubbed()

    @workflow.run
    async def run(self, asked: ScrubRegion) -> Scrubbed:
        """Completes whatever it finds: the result says it."""
        for shard in asked.shards:
            mark(region=asked.region, step=f"shard {shard}")
            scrubbed: Scrubbed = await workflow.execute_activity(
                "scrub-shard",
                ScrubShard(asked.region, shard, asked.sample, asked.mb_per_sec),
                result_type=Scrubbed,
                task_queue=region_queue(asked.region),
                start_to_close_timeout=timedelta(hours=24),
                heartbeat_timeout=timedelta(minutes=5),
                retry_policy=RetryPolicy(maximum_interval=timedelta(minutes=1)),
            )
            self._scrubbed = self._scrubbed.plus(scrubbed)
            self._done += 1
        return self._scrubbed

    @workflow.query
    def progress(self) -> dict[str, Any]:
        """{"step", "done", "total", "objects", "bytes", "problems"}: shards done of all."""
        return {
            "step": "scrub",
            "done": self._done,
            "total": len(SHARDS),
            "objects": self._scrubbed.objects,
            "bytes": self._scrubbed.bytes,
            "problems": self._scrubbed.problems_in_all,
        }
