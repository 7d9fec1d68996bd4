"""`python -m simworld --seeds 0:2000 [--toy FLAW] [--log]`: run seeds, say which fail, and how to run one again."""

from __future__ import annotations

import argparse
import sys
import time

from simworld.nodes import options_for
from simworld.world import Report, run_seed

FAILURES_MAX = 10


def main() -> int:
    parser = argparse.ArgumentParser(prog="simworld")
    parser.add_argument("--seeds", default="0:200", help="one seed, or FROM:TO")
    parser.add_argument("--node", default="toy", help="what to run: real, cluster, toy, or toy:FLAW")
    parser.add_argument("--log", action="store_true", help="print the plan, the log and the history of each run")
    asked = parser.parse_args()
    first, _, last = asked.seeds.partition(":")
    seeds = range(int(first), int(last) if last else int(first) + 1)
    started, failed, answered = time.monotonic(), 0, 0
    for seed in seeds:
        report = run_seed(seed, options_for(asked.node))
        answered += report.answered
        if asked.log:
            print(explain(report))
        if report.violations:
            failed += 1
            print(f"seed {seed}: {report.violations[0]}")
            print(f"  again: python -m simworld --node {asked.node} --seeds {seed} --log")
            if failed >= FAILURES_MAX:
                break
    secs = time.monotonic() - started
    print(f"{len(seeds)} seeds, {failed} failed, {answered} answers, {len(seeds) / secs:.1f} seeds/s")
    return 1 if failed else 0


def explain(report: Report) -> str:
    """Everything about one run, as text."""
    plan = "\n".join(f"  {fault}" for fault in report.plan.faults)
    found = "\n".join(f"  {violation}" for violation in report.violations)
    log = "\n".join(f"  {line}" for line in report.notes)
    history = report.history.dump()
    return f"plan, calm at {report.plan.calm_at}:\n{plan}\nlog:\n{log}\nhistory:\n{history}violations:\n{found}"


if __name__ == "__main__":
    sys.exit(main())
