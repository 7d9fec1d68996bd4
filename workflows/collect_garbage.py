"""CollectGarbage(region): deletes what no manifest names any more, shard by shard (PROTOCOLS section 10)."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any

from temporalio import workflow
from temporalio.common import RetryPolicy

from domicile.workflows.attributes import mark
from domicile.workflows.queues import region_queue

SHARDS = "0123456789abcdef"


@dataclass(frozen=True)
class CollectRegion:
    """The workflow's input: {"region": "local"}. `shards` are the first digits of object ids; all by default."""

    region: str
    shards: str = SHARDS


@dataclass(frozen=True)
class CollectShard:
    """One activity's part."""

    region: str
    shard: str


@dataclass(frozen=True)
class Collected:
    """What a run did: objects looked at, keys kept and deleted, bytes freed, objects left because a store failed."""

    objects: int = 0
    kept: int = 0
    deleted: int = 0
    freed_bytes: int = 0
    left: int = 0

    def plus(self, other: Collected) -> Collected:
        """The sum of both."""
        return Collected(
            self.objects + other.objects,
            self.kept + other.kept,
            self.deleted + other.deleted,
            self.freed_bytes + other.freed_bytes,
            self.left + other.left,
        )


@dataclass
class _Progress:
    shards_done: int = 0
    collected: Collected = field(default_factory=Collected)


@workflow.defn(name="CollectGarbage")
class CollectGarbage:
    """Id `collect-<region>`: two collectors of one region would be harmless, and useless."""

    def __init__(self) -> None:
        self._progress = _Progress()

    @workflow.run
    async def run(self, asked: CollectRegion) -> Collected:
        """The totals. An object that could not be collected is left for the next run."""
        for shard in asked.shards:
            mark(region=asked.region, step=f"shard {shard}")
            collected: Collected = await workflow.execute_activity(
                "collect-shard",
                CollectShard(asked.region, shard),
                result_type=Collected,
                task_queue=region_queue(asked.region),
                start_to_close_timeout=timedelta(hours=12),
                heartbeat_timeout=timedelta(minutes=2),
                retry_policy=RetryPolicy(maximum_interval=timedelta(minutes=1)),
            )
            done = self._progress.collected.plus(collected)
            self._progress = replace(self._progress, shards_done=self._progress.shards_done + 1, collected=done)
        return self._progress.collected

    @workflow.query
    def progress(self) -> dict[str, Any]:
        """{"done", "total", "objects", "deleted", "freed_bytes"}: shards done of all."""
        collected = self._progress.collected
        return {
            "done": self._progress.shards_done,
            "total": len(SHARDS),
            "objects": collected.objects,
            "deleted": collected.deleted,
            "freed_bytes": collected.freed_bytes,
        }
