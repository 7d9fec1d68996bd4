"""Metrics and log lines."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json

from prometheus_client.parser import text_string_to_metric_families

from domicile.node import telemetry
from domicile.node.telemetry import Telemetry, exposition, logger, node_registry, watch_loop

DOCUMENTED = {
    "calls": {"class", "outcome"}, "call_seconds": set(), "mailbox_depth": set(), "residents": {"class"},
    "activations": {"from"}, "activation_seconds": set(), "flights": {"leg", "outcome"}, "flight_seconds": {"leg"},
    "flight_writes": set(), "unshipped_bytes": set(), "store_lag_seconds": set(), "replica_appends": {"outcome"},
    "replica_sync_seconds": set(), "reads": {"served_by"}, "claims": {"outcome"}, "fenced": {"at"},
    "incidents_open": set(), "bases_lost": set(), "takeovers": {"laid_from"}, "stuck_threads": set(),
    "alarms_due": set(), "region_hops": {"to"}, "alarm_lag_seconds": set(), "admission_remaining_seconds": set(),
    "members": set(), "loop_lag_seconds": set(),
}  # fmt: skip


def scraped(metrics: Telemetry) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    text = exposition(node_registry(metrics)).decode()
    samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    return {(sample.name, tuple(sorted(sample.labels.items()))): sample.value for sample in samples}


def test_every_documented_metric_is_exposed_with_its_labels() -> None:
    """The list of the documentation and what Prometheus reads are the same, before anything happened too."""
    metrics = Telemetry()
    families = {family.name.removeprefix("domicile_"): family for family in metrics.collect()}
    labels = {name: set(getattr(getattr(metrics, name), "labels", ())) for name in DOCUMENTED}

    assert set(families) == set(DOCUMENTED)
    assert labels == DOCUMENTED
    assert families["calls"].type == "counter"
    assert families["flight_seconds"].type == "histogram"


def test_calls_are_counted_and_spread() -> None:
    """What the core tells a class's meter is what Prometheus reads."""
    metrics = Telemetry()
    meter = metrics.of_class("Auction")
    meter.done("ok", 0.0005)
    meter.done("ok", 40.0)
    meter.done("bad_arguments", 0.002)
    meter.residents.add()

    found = scraped(metrics)

    assert found["domicile_calls_total", (("class", "Auction"), ("outcome", "ok"))] == 2
    assert found["domicile_calls_total", (("class", "Auction"), ("outcome", "bad_arguments"))] == 1
    assert found["domicile_residents", (("class", "Auction"),)] == 1
    assert found["domicile_call_seconds_bucket", (("le", "0.0005"),)] == 1
    assert found["domicile_call_seconds_bucket", (("le", "30.0"),)] == 2
    assert found["domicile_call_seconds_bucket", (("le", "+Inf"),)] == 3
    assert found["domicile_call_seconds_count", ()] == 3
    assert abs(found["domicile_call_seconds_sum", ()] - 40.0025) < 1e-9
    assert metrics.of_class("Auction") is meter


def test_a_gauge_may_be_asked_instead_of_set() -> None:
    """The admission that remains is computed when Prometheus asks."""
    metrics = Telemetry()
    metrics.admission_remaining_seconds.read = lambda: 7.5

    assert scraped(metrics)["domicile_admission_remaining_seconds", ()] == 7.5


def test_labels_are_bounded() -> None:
    """However many values a label is given, a family stays within its bound and loses no count."""
    metrics = Telemetry()
    for number in range(telemetry.CHILDREN_MAX + 50):
        metrics.fenced.of(f"place-{number}").add()

    assert len(metrics.fenced.children) == telemetry.CHILDREN_MAX + 1
    assert metrics.fenced.of("other").value == 50


def test_the_process_is_measured_too() -> None:
    """The registry has the process's own metrics beside the node's."""
    assert ("process_resident_memory_bytes", ()) in scraped(Telemetry())


def test_a_late_loop_is_seen() -> None:
    """The lag is the time beyond the sleep that was asked for."""

    class Clock:
        now = 0.0

        def monotonic(self) -> float:
            return self.now

        def wall_ms(self) -> int:
            return 0

        async def sleep(self, secs: float) -> None:
            if self.now:
                raise asyncio.CancelledError
            self.now += secs + 0.25

    metrics = Telemetry()
    with contextlib.suppress(asyncio.CancelledError):
        asyncio.run(watch_loop(metrics, Clock()))

    assert metrics.loop_lag_seconds.total == 0.25


def test_json_lines_are_one_object_each() -> None:
    """A line has event, level, time, what the logger was bound to and the fields; below the level there is none."""
    stream = io.StringIO()
    log = logger("json", "warning", stream, node="n1")

    log.info("node.started")
    log.error("flight.failed", leg="store", text="half \ud83d\n", exc_info=ValueError("x"))

    (line,) = map(json.loads, stream.getvalue().splitlines())
    assert line.pop("timestamp").endswith("Z")
    assert line.pop("exception").endswith("ValueError: x")
    assert line == {"event": "flight.failed", "level": "error", "leg": "store", "node": "n1", "text": "half \ud83d\n"}


def test_console_lines_are_for_people() -> None:
    """The other shape is text."""
    stream = io.StringIO()

    logger("console", "info", stream).info("node.started", port=8080)

    assert "node.started" in stream.getvalue()
    assert "port=8080" in stream.getvalue()
