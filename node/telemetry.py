"""What a node tells of itself: metrics (API, "Metrics") and log lines.

The meters are plain numbers, read when Prometheus asks: a call costs some hundred nanoseconds of them, where the
client library's own, with a lock each, cost microseconds. They are written on the event loop's thread only. An instance
that is registered nowhere is the no-op the simulation uses.

Labels are bounded: classes, legs, outcomes, never names; past `CHILDREN_MAX` of a family the rest is `other`.
"""

from __future__ import annotations

import contextlib
import json
from bisect import bisect_left
from collections.abc import Callable, Iterator
from typing import Any, Generic, Protocol, TextIO, TypeVar

import structlog
from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from domicile.node.clock import Clock

CHILDREN_MAX = 1000
LOOP_CHECK_SECS = 0.5
CALL_BOUNDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
SYNC_BOUNDS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0)
LAG_BOUNDS = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 30.0, 60.0, 300.0, 3600.0)
COUNT_BOUNDS = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0)


class Counter:
    """Only grows."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = 0.0

    def add(self, amount: float = 1) -> None:
        self.value += amount


class Gauge:
    """A level. Set `value`, or give `read` to be asked when Prometheus asks."""

    __slots__ = ("read", "value")

    def __init__(self) -> None:
        self.value = 0.0
        self.read: Callable[[], float] | None = None

    def add(self, amount: float = 1) -> None:
        self.value += amount


class Histogram:
    """How observations spread over `bounds` (upper ends, inclusive)."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value


M = TypeVar("M", Counter, Gauge, Histogram)
A = TypeVar("A")


class Family(Generic[M]):
    """Meters of one name, told apart by labels. Keep what `of` gives: the look-up is not for the path of a call."""

    def __init__(self, make: Callable[[], M], labels: tuple[str, ...]) -> None:
        self.labels = labels
        self.children: dict[tuple[str, ...], M] = {}
        self.make: Callable[[], M] = make

    def of(self, *values: str) -> M:
        """The meter with these label values."""
        child = self.children.get(values)
        if child is None:
            if len(self.children) >= CHILDREN_MAX:
                values = ("other",) * len(self.labels)
            child = self.children.setdefault(values, self.make())
        return child


class ClassMeter:
    """The meters of one class, bound once: `done` is on the path of every call."""

    __slots__ = ("_by_outcome", "_calls", "_cls", "_seconds", "residents")

    def __init__(self, cls: str, calls: Family[Counter], seconds: Histogram, residents: Gauge) -> None:
        self._cls = cls
        self._calls = calls
        self._seconds = seconds
        self._by_outcome: dict[str, Counter] = {}
        self.residents = residents

    def done(self, outcome: str, secs: float) -> None:
        """A call ended: `ok`, or the code of its error."""
        counter = self._by_outcome.get(outcome)
        if counter is None:
            counter = self._by_outcome[outcome] = self._calls.of(self._cls, outcome)
        counter.value += 1
        self._seconds.observe(secs)


class Telemetry:
    """Every metric of a node, as attributes named like the metric without its unit of count."""

    def __init__(self) -> None:
        self._classes: dict[str, ClassMeter] = {}
        self._metrics: list[tuple[str, str, Any]] = []
        self.calls = self._counters("calls", "calls ended, by class and outcome", "class", "outcome")
        self.call_seconds = self._spread("call_seconds", "from arrival to answer", CALL_BOUNDS)
        self.mailbox_depth = self._level("mailbox_depth", "calls waiting in mailboxes")
        self.residents = self._levels("residents", "objects awake", "class")
        self.activations = self._counters("activations", "residencies begun, by what was laid", "from")
        self.activation_seconds = self._spread("activation_seconds", "from claim to the first call", CALL_BOUNDS)
        self.flights = self._counters("flights", "flights ended", "leg", "outcome")
        self.flight_seconds = self._spreads("flight_seconds", "length of flights", CALL_BOUNDS, "leg")
        self.flight_writes = self._spread("flight_writes", "tickets a flight released", COUNT_BOUNDS)
        self.unshipped_bytes = self._level("unshipped_bytes", "committed bytes the store has not")
        self.store_lag_seconds = self._level("store_lag_seconds", "age of the oldest frame the store has not")
        self.replica_appends = self._counters("replica_appends", "appends taken as a replica", "outcome")
        self.replica_sync_seconds = self._spread("replica_sync_seconds", "sync passes of the journal", SYNC_BOUNDS)
        self.reads = self._counters("reads", "reads served, by which copy", "served_by")
        self.region_hops = self._counters("region_hops", "calls and requests sent to another region", "to")
        self.claims = self._counters("claims", "claims of leases", "outcome")
        self.fenced = self._counters("fenced", "times a newer epoch was met, by where", "at")
        self.incidents_open = self._level("incidents_open", "incidents of residents, open")
        self.bases_lost = self._level("bases_lost", "residents whose base lacks what the store has lost")
        self.takeovers = self._counters("takeovers", "takeovers, by the copy laid", "laid_from")
        self.stuck_threads = self._level("stuck_threads", "threads of methods that would not end")
        self.alarms_due = self._level("alarms_due", "alarms due and not yet run")
        self.alarm_lag_seconds = self._spread("alarm_lag_seconds", "from due to run", LAG_BOUNDS)
        self.admission_remaining_seconds = self._level("admission_remaining_seconds", "right to serve left")
        self.members = self._level("members", "nodes in the region's list")
        self.loop_lag_seconds = self._spread("loop_lag_seconds", "how late the event loop was", LAG_BOUNDS)

    def of_class(self, cls: str) -> ClassMeter:
        """The meters of a class the application has; keep it with the residency."""
        meter = self._classes.get(cls)
        if meter is None:
            meter = ClassMeter(cls, self.calls, self.call_seconds, self.residents.of(cls))
            self._classes[cls] = meter
        return meter

    def describe(self) -> list[Metric]:
        """None are announced: the names are this class's own."""
        return []

    def collect(self) -> Iterator[Metric]:
        """What `CollectorRegistry` asks for."""
        for name, about, meter in self._metrics:
            if isinstance(meter, Family):
                yield _exposed(f"domicile_{name}", about, meter.labels, meter.children, meter.make())
            else:
                yield _exposed(f"domicile_{name}", about, (), {(): meter}, meter)

    def _counters(self, name: str, about: str, *labels: str) -> Family[Counter]:
        return self._add(name, about, Family(Counter, labels))

    def _levels(self, name: str, about: str, *labels: str) -> Family[Gauge]:
        return self._add(name, about, Family(Gauge, labels))

    def _spreads(self, name: str, about: str, bounds: tuple[float, ...], *labels: str) -> Family[Histogram]:
        return self._add(name, about, Family(lambda: Histogram(bounds), labels))

    def _level(self, name: str, about: str) -> Gauge:
        return self._add(name, about, Gauge())

    def _spread(self, name: str, about: str, bounds: tuple[float, ...]) -> Histogram:
        return self._add(name, about, Histogram(bounds))

    def _add(self, name: str, about: str, meter: A) -> A:
        self._metrics.append((name, about, meter))
        return meter


def node_registry(telemetry: Telemetry) -> CollectorRegistry:
    """A registry with the node's metrics, and the process's."""
    registry = CollectorRegistry()
    registry.register(telemetry)
    for collector in (ProcessCollector, PlatformCollector, GCCollector):
        collector(registry=registry)
    return registry


def exposition(registry: CollectorRegistry) -> bytes:
    """The text of `/metrics`."""
    return generate_latest(registry)


async def watch_loop(telemetry: Telemetry, clock: Clock) -> None:
    """Measures how late the loop comes back, until cancelled."""
    while True:
        before = clock.monotonic()
        await clock.sleep(LOOP_CHECK_SECS)
        telemetry.loop_lag_seconds.observe(max(0.0, clock.monotonic() - before - LOOP_CHECK_SECS))


class Log(Protocol):
    """The logger every part is given: an event, named `part.what_happened`, and its fields."""

    def debug(self, event: str, **fields: Any) -> Any: ...
    def info(self, event: str, **fields: Any) -> Any: ...
    def warning(self, event: str, **fields: Any) -> Any: ...
    def error(self, event: str, **fields: Any) -> Any: ...


class _Lines:
    """Writes a line a call. A line that cannot be written is dropped: a full disk under the log stops nothing else."""

    def __init__(self, stream: TextIO) -> None:
        self._write = structlog.WriteLogger(stream).msg

    def msg(self, line: str) -> None:
        with contextlib.suppress(OSError):
            self._write(line)

    debug = info = warning = error = exception = critical = log = msg


def logger(shape: str, level: str, stream: TextIO, **fields: Any) -> Log:
    """A logger that writes lines to `stream`: `json`, one object each, or `console`, for people."""
    render: list[Any] = [structlog.dev.ConsoleRenderer(colors=stream.isatty())]
    if shape == "json":
        # The library's own encoder, since what is logged may be half a surrogate pair; it escapes those.
        render = [structlog.processors.format_exc_info, structlog.processors.JSONRenderer(json.dumps, default=str)]
    before: list[Any] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    log: Log = structlog.wrap_logger(
        _Lines(stream),
        processors=[*before, *render],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        cache_logger_on_first_use=True,
        **fields,
    )
    return log


def _exposed(
    name: str,
    about: str,
    labels: tuple[str, ...],
    children: dict[tuple[str, ...], Any],
    like: Counter | Gauge | Histogram,
) -> Metric:
    if isinstance(like, Histogram):
        spread = HistogramMetricFamily(name, about, labels=labels)
        for values, meter in list(children.items()):
            spread.add_metric(values, _buckets(meter), meter.total)
        return spread
    if isinstance(like, Counter):
        counter = CounterMetricFamily(name, about, labels=labels)
        for values, meter in list(children.items()):
            counter.add_metric(values, meter.value)
        return counter
    gauge = GaugeMetricFamily(name, about, labels=labels)
    for values, meter in list(children.items()):
        gauge.add_metric(values, meter.read() if meter.read else meter.value)
    return gauge


def _buckets(histogram: Histogram) -> list[tuple[str, float]]:
    counts, running, buckets = list(histogram.counts), 0, []
    for bound, count in zip((*histogram.bounds, float("inf")), counts, strict=True):
        running += count
        buckets.append(("+Inf" if bound == float("inf") else repr(bound), float(running)))
    return buckets
