"""The loop of the world: virtual time, seeded order, exact kills, and the same run from the same seed."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest
from simworld.loop import Deadlock, OutOfTime, SimLoop
from simworld.process import Process

HERE = Path(__file__).parent


def run(main, seed=1, **options):
    loop = SimLoop(seed, **options)
    try:
        return loop.run(main(loop))
    finally:
        loop.end()


def test_time_jumps_to_the_next_timer():
    """An hour of waiting takes no time, and the clock then shows it."""

    async def main(loop):
        await asyncio.sleep(3600)
        return loop.time()

    assert run(main) == 3600


def test_ready_callbacks_keep_their_order_and_equal_timers_do_not():
    """What is ready runs first in, first out; timers of one instant run in an order that the seed draws."""

    async def main(loop):
        soon, timed = [], []
        for n in range(6):
            loop.call_soon(soon.append, n)
            loop.call_at(5.0, timed.append, n)
        await asyncio.sleep(10)
        return soon, tuple(timed)

    results = [run(main, seed) for seed in range(8)]

    assert all(soon == list(range(6)) for soon, _ in results)
    assert len({timed for _, timed in results}) > 1
    assert results[3] == run(main, 3)


def test_a_deadlock_names_who_waits():
    """When nothing can happen any more the run fails and says where each task stands."""

    async def forgotten(loop):
        await loop.create_future()

    async def main(loop):
        await loop.create_task(forgotten(loop))

    with pytest.raises(Deadlock, match=r"forgotten"):
        run(main)


def test_a_run_is_bounded_in_time_and_steps():
    """A world that goes on for ever is ended."""

    async def ticks(loop):
        loop.secs_max = 100
        while True:
            await asyncio.sleep(1)

    async def spins(loop):
        loop.steps_max = 1000
        while True:
            await asyncio.sleep(0)

    for main in (ticks, spins):
        with pytest.raises(OutOfTime):
            run(main)


def test_a_killed_process_stops_where_it_waits():
    """After a kill no step of the process runs, timers and answers included; its clean-up happens, as a dead one."""

    async def main(loop):
        did, process = [], Process(loop, "node-1")

        async def work():
            try:
                did.append("began")
                await asyncio.sleep(1)
                did.append("never")
            finally:
                did.append("cleaned up, alive" if process.alive else "cleaned up, dead")
                asyncio.get_running_loop().call_soon(did.append, "never")
                await asyncio.sleep(1)

        process.spawn(work())
        await asyncio.sleep(0.5)
        process.kill()
        await asyncio.sleep(10)
        return did

    assert run(main) == ["began", "cleaned up, dead"]


def test_a_process_may_kill_itself_in_the_middle_of_a_step():
    """The step that runs ends, and none follows."""

    async def main(loop):
        did, process = [], Process(loop, "node-1")

        async def work():
            process.kill()
            did.append("this step")
            await asyncio.sleep(0)
            did.append("never")

        process.spawn(work())
        await asyncio.sleep(1)
        return did

    assert run(main) == ["this step"]


def test_a_stopped_process_goes_on_later():
    """SIGSTOP holds every step back, while the world goes on; SIGCONT lets them run."""

    async def main(loop):
        at, process = [], Process(loop, "node-1")

        async def work():
            while True:
                await asyncio.sleep(1)
                at.append(loop.time())

        process.spawn(work())
        await asyncio.sleep(2.5)
        process.stop()
        await asyncio.sleep(10)
        process.resume()
        await asyncio.sleep(1.2)
        return at

    assert run(main) == [1, 2, 12.5, 13.5]


def test_threads_are_played_inline():
    """asyncio.to_thread and call_soon_threadsafe work, on the one thread there is."""

    async def main(loop):
        heard = loop.create_future()
        loop.call_soon_threadsafe(heard.set_result, "heard")
        return await asyncio.to_thread(lambda: 6 * 7), await heard

    assert run(main) == (42, "heard")


def test_sets_of_tasks_have_the_runs_own_order():
    """The order in which a set of futures is walked is the run's, not that of addresses."""

    async def main(loop):
        tasks = [loop.create_task(asyncio.sleep(n % 3, n)) for n in range(50)]
        done, _ = await asyncio.wait(set(tasks))
        return [task.result() for task in done]

    assert run(main) == run(main)


REPLAY = """
import hashlib
from simworld.nodes import options_for
from simworld.world import run_seed
for node, seed in (("toy", 3), ("toy", 12), ("real", 5), ("real", 21)):
    options = options_for(node)
    options.traced = True
    report = run_seed(seed, options)
    print(seed, report.digest, report.steps, hashlib.sha256(report.history.dump().encode()).hexdigest(), report.notes)
"""


def test_a_seed_replays_byte_for_byte_in_another_process():
    """Steps, history and log of a run depend on its seed alone: not on hashes of text, not on addresses."""
    told = set()
    for hash_seed in ("0", "1", "77"):
        env = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(HERE)}
        ran = subprocess.run([sys.executable, "-c", REPLAY], env=env, capture_output=True, text=True, check=True)
        told.add(ran.stdout)

    assert len(told) == 1
    assert len({line.split()[1] for line in told.pop().splitlines()}) == 4
