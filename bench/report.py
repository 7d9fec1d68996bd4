"""The readable result: markdown tables."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from statistics import median

from bench.cases import Case
from bench.numbers import Ratio, Spread, show
from bench.peers import Peer
from bench.rig import Sample, Settings
from bench.suites import Suite
from bench.syncs import Syncs
from bench.targets import OURS, Target

CPU_CALLS = 200  # the kernel counts CPU in hundredths of a second: over fewer calls it says nothing


@dataclass
class Results:
    """Everything one run found out, and everything it could not."""

    suite: Suite
    settings: Settings
    machine: dict[str, str]
    peers: list[Peer]
    cases: list[Case]
    started: str
    versions: dict[str, str] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)
    failures: list[tuple[str, str, str]] = field(default_factory=list)
    samples: list[Sample] = field(default_factory=list)
    syncs: list[Syncs] = field(default_factory=list)

    def of(self, case: str, peer: str) -> list[Sample]:
        return [sample for sample in self.samples if (sample.case, sample.peer) == (case, peer)]


def markdown(results: Results) -> str:
    sections = (_head, _meanings, _targets, _comparison, _details, _troubles)
    return "\n".join(line for section in sections for line in section(results)) + "\n"


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    yield f"| {' | '.join(header)} |"
    yield f"|{'---|' * len(header)}"
    for row in rows:
        yield f"| {' | '.join(row)} |"
    yield ""


def _head(results: Results) -> Iterator[str]:
    settings = results.settings
    yield f"# Benchmarks of {results.suite.title}, {results.started}"
    yield ""
    if settings.quick:
        yield "**A quick run: it shows that everything works; its numbers mean little.**"
        yield ""
    yield f"- {settings.rounds} rounds, the peers in turn within each"
    yield f"- {settings.seconds:g} s per load after {settings.warm:g} s of warm-up, raw closed-loop latencies"
    yield "- a number is the median of the rounds, with (least to greatest) where they differ"
    for name, value in results.machine.items():
        yield f"- {name}: {value}"
    yield f"- versions: {', '.join(f'{name} {version}' for name, version in results.versions.items())}"
    others = [sample.others_cores for sample in results.samples]
    if others:
        yield f"- cores kept busy by other processes meanwhile: {Spread.of(others).show('')}"
    for note in results.suite.notes:
        yield f"- {note}"
    yield ""


def _meanings(results: Results) -> Iterator[str]:
    yield "## What an answered increment has cost"
    yield ""
    rows = []
    for peer in results.peers:
        seen = {sync.conns: sync for sync in results.syncs if sync.peer == peer.name}
        counted = [f"{seen[conns].per_call:.2f}" if conns in seen else "-" for conns in (1, 64)]
        calls = sorted({name for sync in seen.values() for name in sync.by_name})
        rows.append([peer.name, peer.title, peer.answer_means, *counted, ", ".join(calls) or "-"])
    header = ["peer", "", "an answer means", "syncs per call, 1 connection", "64 connections", "by"]
    yield from _table(header, rows)


def _targets(results: Results) -> Iterator[str]:
    rows = []
    for case in results.cases:
        for target in (target for target in results.suite.targets if target.case == case.key):
            ratio = Ratio.of(results.of(case.key, OURS), results.of(target.than or case.key, target.against))
            measured = [ratio.show(), _verdict(target, ratio, case)] if ratio else ["not measured", "-"]
            rows.append([case.title, _wanted(results, target, case), *measured])
    if rows:
        yield "## Targets"
        yield ""
        yield from _table(["case", "target", "of medians; per round", "met"], rows)


def _wanted(results: Results, target: Target, case: Case) -> str:
    sign = "≥" if case.higher_is_better else "≤"
    than = next((f", {other.title}" for other in results.cases if other.key == target.than), "")
    return f"{f'{sign} {target.bound:g}' if target.bound else 'to be stated: times that'} of {target.against}{than}"


def _verdict(target: Target, ratio: Ratio, case: Case) -> str:
    """By the ratio of medians, and said with doubt when single rounds disagree."""
    if target.bound is None:
        return "stated"
    met = target.met(ratio.medians, case.higher_is_better)
    rounds = {target.met(value, case.higher_is_better) for value in (ratio.rounds.least, ratio.rounds.most)}
    return ("yes" if met else "**no**") + ("" if rounds == {met} else ", not in every round")


def _comparison(results: Results) -> Iterator[str]:
    yield "## Side by side"
    yield ""
    yield "Rates: higher is better, and so is a ratio. Latencies (p50) and sizes: lower is better."
    yield "Ratios are Domicile's number divided by the other's, of the medians; then round by round."
    yield ""
    others = [peer.name for peer in results.peers if peer.name != OURS]
    rows = []
    for case in results.cases:
        cells = [_value(results.of(case.key, peer.name), case.unit) for peer in results.peers]
        ratios = [Ratio.of(results.of(case.key, OURS), results.of(case.key, other)) for other in others]
        if any(cell != "-" for cell in cells):
            rows.append([case.title, *cells, *(ratio.show() if ratio else "-" for ratio in ratios)])
    header = ["case", *(peer.name for peer in results.peers), *(f"{OURS} / {other}" for other in others)]
    yield from _table(header, rows)


def _value(samples: Sequence[Sample], unit: str) -> str:
    if not samples:
        return "-"
    errors = sum(sample.errors for sample in samples)
    return Spread.of([s.value for s in samples]).show(unit) + (f" **{errors} errors**" if errors else "")


def _details(results: Results) -> Iterator[str]:
    yield "## Latency and server CPU"
    yield ""
    rows = []
    for case in results.cases:
        for peer in results.peers:
            if (samples := results.of(case.key, peer.name)) and samples[0].p50_us:
                rows.append([case.title, peer.name, *_latencies(samples), f"{sum(s.answered for s in samples):,}"])
    header = ["case", "peer", "p50", "p99", "slowest", "CPU per call, all servers", "one of each", "calls"]
    yield from _table(header, rows)


def _latencies(samples: Sequence[Sample]) -> list[str]:
    enough = samples[0].answered >= CPU_CALLS
    return [
        Spread.of([s.p50_us for s in samples]).show("us"),
        Spread.of([s.p99_us for s in samples]).show("us"),
        show(max(s.max_us for s in samples), "us"),
        *([show(median(s.server_us for s in samples), "us"), _roles(samples)] if enough else ["-", "-"]),
    ]


def _roles(samples: Sequence[Sample]) -> str:
    roles = [(role, median(s.roles_us.get(role, 0) for s in samples)) for role in samples[0].roles_us]
    return ", ".join(f"{role} {show(micros, 'us')}" for role, micros in roles) or "-"


def _troubles(results: Results) -> Iterator[str]:
    errors = [
        (s.case, s.peer, f"{s.errors} errors in round {s.round + 1}: {s.error}") for s in results.samples if s.errors
    ]
    troubles = [("everything", peer, why) for peer, why in results.skipped.items()] + results.failures + errors
    if troubles:
        yield "## Skipped, failed and refused"
        yield ""
        yield from _table(
            ["case", "peer", "why"], [[case, peer, why.replace("|", "/")] for case, peer, why in troubles]
        )
