"""The worker threads: which one takes a job, and when there is a new one."""

from __future__ import annotations

import asyncio
import threading

from domicile.node.workers import Job, ThreadWorkers

THREADS = 8


async def idents(workers: ThreadWorkers, count: int) -> tuple[set[int], int]:
    """The threads of so many short jobs, one after the other, and how many of those the loop did not wait for."""
    seen, slow = set(), 0
    for _ in range(count):
        job = Job(threading.get_ident)
        workers.start(job, quick=True)
        seen.add(await workers.finish(job))
        slow += job.slow
    return seen, slow


def test_short_jobs_one_after_the_other_need_one_thread() -> None:
    """A thread is free for the next job by the time the loop has the result: no other is started beside it."""

    async def main() -> None:
        workers = ThreadWorkers(asyncio.get_running_loop())
        seen, slow = await idents(workers, 300)
        assert len(seen) <= 1 + slow
        workers.close()

    asyncio.run(main())


def test_the_thread_that_became_idle_last_takes_the_next_job() -> None:
    """Of many idle threads one does all short jobs, and the others sleep."""

    async def main() -> None:
        workers = ThreadWorkers(asyncio.get_running_loop())
        together = threading.Barrier(THREADS)
        await asyncio.gather(*(workers.run(together.wait) for _ in range(THREADS)))
        await idents(workers, 50)
        seen, slow = await idents(workers, 300)
        assert len(seen) <= 1 + slow
        workers.close()

    asyncio.run(main())


def test_jobs_beyond_the_threads_wait_in_their_order() -> None:
    """However many come at once, each is done, and the first to come is the first to begin."""

    async def main() -> None:
        workers = ThreadWorkers(asyncio.get_running_loop(), 1)
        begun: list[int] = []
        await asyncio.gather(*(workers.run(lambda at=at: begun.append(at)) for at in range(50)))  # type: ignore[misc]
        assert begun == list(range(50))
        told = asyncio.get_running_loop().create_future()
        workers.then(lambda: 7, told.set_result)
        assert (await told).result() == 7
        workers.close()

    asyncio.run(main())
