"""The twin of the worker threads: a job runs inline, whole, now or at a seeded later step of the loop."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, TypeVar

from domicile.node.workers import Job
from simworld.disk import SimDisk
from simworld.loop import SimFuture, SimLoop
from simworld.process import dead

T = TypeVar("T")


class SimWorkers:
    """A `domicile.node.workers.Workers`. What a slow disk cost a job is added before its result arrives."""

    def __init__(self, loop: SimLoop, rng: random.Random, disk: SimDisk, *, lag_secs: float = 0.002) -> None:
        self._loop = loop
        self._rng = rng
        self._disk = disk
        self._lag_secs = lag_secs
        self._waiting: dict[Job[Any], list[SimFuture]] = {}

    def start(self, job: Job[Any], *, quick: bool) -> None:
        if quick and self._rng.random() < 0.7:
            self._work(job)
        else:
            self._loop.call_later(self._lag(), self._work, job)

    async def finish(self, job: Job[T]) -> T:
        if not job.finished:
            done = self._loop.create_future()
            self._waiting.setdefault(job, []).append(done)
            await done
        return job.result()

    async def run(self, work: Callable[[], T]) -> T:
        job = Job(work)
        self.start(job, quick=False)
        return await self.finish(job)

    def then(self, work: Callable[[], T], told: Callable[[Job[T]], object]) -> None:
        self._loop.call_later(self._lag(), self._work_and_tell, Job(work), told)

    def close(self) -> None:
        """There are no threads."""

    def _work(self, job: Job[Any]) -> None:
        if dead():
            return
        job.run()
        for done in self._waiting.pop(job, ()):
            self._deliver(done)

    def _work_and_tell(self, job: Job[T], told: Callable[[Job[T]], object]) -> None:
        if not dead():
            job.run()
            self._loop.call_later(self._lag() + self._disk.take_debt(), told, job)

    def _deliver(self, done: SimFuture) -> None:
        self._loop.call_later(self._lag() + self._disk.take_debt(), _resolve, done)

    def _lag(self) -> float:
        return self._rng.random() * self._lag_secs


def _resolve(done: SimFuture) -> None:
    if not done.done():
        done.set_result(None)
