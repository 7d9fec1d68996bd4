"""The command: choose cases, run them in rounds, print and keep the results."""

import argparse
import dataclasses
import json
import re
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from bench.cache import cache_dir
from bench.cases import Case, Throughput
from bench.machine import describe
from bench.peers import Peer
from bench.process import BenchError
from bench.report import Results, markdown
from bench.rig import Rig, Settings, rig
from bench.suites import CLUSTER, ONE_NODE, Suite
from bench.syncs import count_syncs

RESULTS = Path(__file__).resolve().parent / "results"


def main(argv: Sequence[str] | None = None) -> int:
    options = _options(argv)
    if options.quick:
        settings = Settings(rounds=options.rounds or 1, seconds=options.seconds or 1.0, warm=0.2, quick=True)
    else:
        settings = Settings(rounds=options.rounds or Settings.rounds, seconds=options.seconds or Settings.seconds)
    suites = [suite for suite, only in ((ONE_NODE, options.one_node), (CLUSTER, options.cluster)) if only]
    chosen = [(suite, _chosen(suite, options.cases)) for suite in suites or (ONE_NODE, CLUSTER)]
    if not any(cases for _, cases in chosen):
        there_are = ", ".join(case.key for suite, _ in chosen for case in suite.cases())
        print(f"no case matches {options.cases!r}; there are: {there_are}")
        return 2
    codes = [_suite(suite, settings, cases, options) for suite, cases in chosen if cases]
    return max(codes)


def _chosen(suite: Suite, pattern: str) -> list[Case]:
    wanted = re.compile(pattern)
    return [case for case in suite.cases() if wanted.search(case.key) or wanted.search(case.title)]


def _suite(suite: Suite, settings: Settings, cases: list[Case], options: argparse.Namespace) -> int:
    """One run and its results; the exit code it is worth."""
    print(f"== {suite.title}", flush=True)
    started = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime())
    results = Results(suite, settings, describe(cache_dir()), [], cases, started)
    try:
        _run(results, options.peers.split(",") if options.peers else None)
    except BenchError as reason:
        print(f"cannot run: {reason}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        results.failures.append(("everything after", "all", "interrupted"))
        _keep(results, options.json)
        raise
    also: Path | None = options.json
    if also is not None and not options.cluster:  # both runs may want it
        also = also.with_stem(also.stem + suite.suffix)
    _keep(results, also)
    print("\n" + markdown(results))
    return 1 if results.failures or any(sample.errors for sample in results.samples) else 0


def _options(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="bench", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one round of one second per case: a smoke test")
    parser.add_argument("--one-node", action="store_true", help="only the run of one node; without either, both")
    parser.add_argument("--cluster", action="store_true", help="only the run of the cluster")
    parser.add_argument("--cases", default="", metavar="REGEX", help="only the cases whose key or title matches")
    parser.add_argument("--peers", metavar="A,B", help="only these peers: domicile, baseline, workerd, etcd, nats")
    parser.add_argument("--rounds", type=int, metavar="N", help=f"rounds of each case (default {Settings.rounds})")
    parser.add_argument("--seconds", type=float, metavar="S", help=f"length of a load (default {Settings.seconds:g})")
    parser.add_argument(
        "--json",
        type=Path,
        metavar="FILE",
        help="write every sample there too; of two runs, the cluster's with -cluster in its name",
    )
    return parser.parse_args(argv)


def _run(results: Results, names: Sequence[str] | None) -> None:
    with rig(results.settings) as made:
        for peer in results.suite.peers():
            if names is None or peer.name in names:
                _admit(results, peer, made)
        for case in results.cases:
            _measure(results, case, made)
        if any(isinstance(case, Throughput) and case.method == "increment" for case in results.cases):
            _count_syncs(results, made)


def _admit(results: Results, peer: Peer, made: Rig) -> None:
    """A peer takes part if it can be installed, started and called."""
    try:
        peer.prepare()
        made.instance(peer, "shared")
    except BenchError as reason:
        results.skipped[peer.name] = str(reason)
        print(f"skipping {peer.name}: {reason}", flush=True)
        return
    results.peers.append(peer)
    results.versions |= peer.versions()


def _measure(results: Results, case: Case, made: Rig) -> None:
    """The rounds of one case. Each starts with the next peer, so that none always runs in the wake of the same one."""
    taking_part = [peer for peer in results.peers if case.takes(peer) and _prepared(results, case, peer, made)]
    print(f"{case.title} ({case.key})", flush=True)
    for turn in range(results.settings.rounds):
        start = turn % max(1, len(taking_part))
        for peer in taking_part[start:] + taking_part[:start]:
            try:
                sample = case.measure(made, peer, turn)
            except BenchError as reason:
                _failed(results, case, peer, reason)
                taking_part = [other for other in taking_part if other is not peer]
                continue
            results.samples.append(sample)
            trouble = f"  {sample.errors} ERRORS: {sample.error}" if sample.errors else ""
            print(f"    {peer.name:9} {sample.value:>12,.1f} {case.unit}{trouble}", flush=True)


def _prepared(results: Results, case: Case, peer: Peer, made: Rig) -> bool:
    try:
        case.prepare(made, peer)
    except BenchError as reason:
        _failed(results, case, peer, reason)
        return False
    return True


def _failed(results: Results, case: Case, peer: Peer, reason: BenchError) -> None:
    results.failures.append((case.title, peer.name, str(reason)))
    print(f"    {peer.name:9} FAILED: {reason}", flush=True)


def _count_syncs(results: Results, made: Rig) -> None:
    print("sync calls per increment, by strace", flush=True)
    for peer in results.peers:
        for conns in (1, 64):
            try:
                found = count_syncs(made, peer, conns)
            except BenchError as reason:
                results.failures.append(("sync calls", peer.name, str(reason)))
                print(f"    {peer.name:9} not counted: {reason}", flush=True)
                continue
            results.syncs.append(found)
            print(f"    {peer.name:9} {found.per_call:>12.2f} at {conns}  {found.by_name}", flush=True)


def _keep(results: Results, also: Path | None) -> None:
    """Every sample as JSON and the tables as markdown, named by the time of the run."""
    kept = {
        "suite": results.suite.title,
        "started": results.started,
        "settings": dataclasses.asdict(results.settings),
        "machine": results.machine,
        "versions": results.versions,
        "peers": {peer.name: peer.answer_means for peer in results.peers},
        "skipped": results.skipped,
        "failures": results.failures,
        "samples": [dataclasses.asdict(sample) for sample in results.samples],
        "syncs": [dataclasses.asdict(sync) for sync in results.syncs],
    }
    RESULTS.mkdir(exist_ok=True)
    stem = re.sub(r"\D", "", results.started) + results.suite.suffix
    (RESULTS / f"{stem}.md").write_text(markdown(results))
    for path in (RESULTS / f"{stem}.json", also):
        if path is not None:
            path.write_text(json.dumps(kept, indent=1) + "\n")
