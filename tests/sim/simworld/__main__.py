"""`python -m simworld --seeds 0:2000 [--node NODE] [--jobs N] [--log]`: run seeds, say which fail and how to run one
again.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial

from simworld.nodes import options_for
from simworld.world import Report, run_seed

FAILURES_MAX = 10
BLOCK = 20


def main() -> int:
    parser = argparse.ArgumentParser(prog="simworld")
    parser.add_argument("--seeds", default="0:200", help="one seed, or FROM:TO")
    parser.add_argument("--node", default="toy", help="what to run: real, cluster, storm, toy, or toy:FLAW")
    parser.add_argument("--jobs", type=int, default=1, help="processes that share the seeds")
    parser.add_argument("--log", action="store_true", help="print the plan, the log and the history of each run")
    asked = parser.parse_args()
    first, _, last = asked.seeds.partition(":")
    seeds = range(int(first), int(last) if last else int(first) + 1)
    started, failed, played, answered = time.monotonic(), 0, 0, 0
    for seed, found, answers in _played(asked.node, seeds, asked.jobs, log=asked.log):
        played, answered = played + 1, answered + answers
        if found:
            failed += 1
            print(f"seed {seed}: {found}")
            print(f"  again: python -m simworld --node {asked.node} --seeds {seed} --log", flush=True)
            if failed >= FAILURES_MAX:
                break
    secs = time.monotonic() - started
    print(f"{played} seeds, {failed} failed, {answered} answers, {played / secs:.1f} seeds/s")
    return 1 if failed else 0


Played = tuple[int, str, int]
"""A seed, the first promise it broke (or nothing), and how many operations were answered."""


def _played(node: str, seeds: range, jobs: int, *, log: bool) -> Iterator[Played]:
    if jobs == 1:
        for seed in seeds:
            yield _play(node, seed, log=log)
        return
    pool = ProcessPoolExecutor(jobs)
    try:
        yield from pool.map(partial(_play, node, log=log), seeds, chunksize=BLOCK)
    finally:
        pool.shutdown(cancel_futures=True)


def _play(node: str, seed: int, *, log: bool) -> Played:
    report = run_seed(seed, options_for(node, seed))
    if log:
        print(explain(report))
    return seed, str(report.violations[0]) if report.violations else "", report.answered


def explain(report: Report) -> str:
    """Everything about one run, as text."""
    plan = "\n".join(f"  {fault}" for fault in report.plan.faults)
    found = "\n".join(f"  {violation}" for violation in report.violations)
    log = "\n".join(f"  {line}" for line in report.notes)
    history = report.history.dump()
    return f"plan, calm at {report.plan.calm_at}:\n{plan}\nlog:\n{log}\nhistory:\n{history}violations:\n{found}"


if __name__ == "__main__":
    sys.exit(main())
