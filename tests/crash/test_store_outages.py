"""The bucket goes away, comes back, is slow, loses answers: a real node over S3 by a wire that is cut (field case 19).

DOMICILE_OUTAGES says how many outages; 50 is the field case's own number.
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from threading import Event

import pytest
from crashkit.campaign import Campaign
from crashkit.clients import Client, progress
from crashkit.process import until
from crashkit.s3 import S3, start_s3

OUTAGES = int(os.environ.get("DOMICILE_OUTAGES", "3"))
SEED = int(os.environ.get("DOMICILE_SEED", "1"))
SOON_SECS = 15.0  # the gate and whatever a busy machine adds
STOP_SECS_MAX = 45.0  # ten for answers, then a flush that cannot succeed, then what botocore waits

# moto's Flask and botocore call functions that newer Pythons mean to take away; neither is ours to change.
pytestmark = [
    pytest.mark.filterwarnings(r"ignore:datetime\.datetime\.utcnow:DeprecationWarning:(botocore|moto)"),
    pytest.mark.timeout(180 + 20 * OUTAGES),
]


@pytest.fixture
def s3() -> Iterator[S3]:
    s3 = start_s3()
    yield s3
    s3.close()


@pytest.fixture
def campaign(s3: S3, tmp_path: Path) -> Iterator[Campaign]:
    campaign = Campaign(tmp_path, settings=s3.settings, bucket=s3.look, clients=3, seed=SEED)
    yield campaign
    campaign.abandon()


def test_the_bucket_has_no_gap_after_any_outage(campaign: Campaign, s3: S3) -> None:
    """However outages and deaths meet, the next upload starts where the bucket ends: each object restores from it."""
    rng = random.Random(SEED)
    for outage in range(OUTAGES):
        campaign.load.era = outage
        campaign.node.start(supervised=True)
        campaign.node.wait_ready()
        progress(campaign.history, rng.choice((5, 20, 40)), until)
        s3.wire.down()
        Event().wait(rng.uniform(0.2, 1.0))
        if outage % 2:
            os.kill(campaign.node.serving_pid(), signal.SIGKILL)
        Event().wait(rng.uniform(0.8, 2.0))
        s3.wire.up()
        progress(campaign.history, 10, until)
        campaign.node.kill()
        campaign.check()
        if outage % 3 == 1:
            campaign.node.wipe()
    campaign.conclude()


def test_a_slow_store_that_loses_answers_is_waited_for(campaign: Campaign, s3: S3) -> None:
    """Every put takes long, and some answers are lost after delivery: no write is doubled, none waits for ever."""
    campaign.node.start()
    campaign.node.wait_ready()
    s3.wire.delay_secs, s3.wire.cut_every = 0.04, 7
    progress(campaign.history, 40, until)
    campaign.node.kill()
    assert s3.wire.cuts >= 5
    s3.wire.delay_secs, s3.wire.cut_every = 0.0, 0
    campaign.check()
    campaign.conclude()


def test_told_to_stop_while_the_store_is_away_it_stops(campaign: Campaign, s3: S3) -> None:
    """What cannot land is said to be unknown, and the process ends within its budget."""
    campaign.node.start()
    campaign.node.wait_ready()
    progress(campaign.history, 20, until)
    s3.wire.down()
    began = time.monotonic()
    assert campaign.node.stop() == 0
    assert time.monotonic() - began < STOP_SECS_MAX
    s3.wire.up()
    campaign.check()
    campaign.conclude()


def test_a_write_the_store_never_took_lands_by_itself(s3: S3, tmp_path: Path) -> None:
    """While the store is away reads answer and writes are unknown; when it is back, what was committed lands."""
    campaign = Campaign(tmp_path, settings={**s3.settings, "OBJECT_ACK_GATE_MS": "300"}, bucket=s3.look, clients=0)
    try:
        campaign.node.start()
        campaign.node.wait_ready()
        client = Client("one", campaign.node.port, campaign.history)
        for name in ("quiet", "busy"):
            assert client.append(name).outcome == "answered"
        s3.wire.down()
        began = time.monotonic()
        lost = client.append("busy", keyed=False)
        assert (lost.outcome, lost.attempts[-1].code) == ("unknown", "outcome_unknown")
        assert time.monotonic() - began < SOON_SECS
        assert client.read("quiet").outcome == "answered"
        s3.wire.up()
        read = client.read("busy")
        assert read.shown is not None
        assert lost.item in read.shown.items
        client.line.close()
        campaign.conclude()
    finally:
        campaign.abandon()
