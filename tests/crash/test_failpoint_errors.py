"""An error of the disk or of a bug strikes at every named place: nothing answered is lost, and the node goes on."""

from __future__ import annotations

import signal
from pathlib import Path

from crashkit.campaign import PROGRESS, Campaign
from crashkit.clients import progress
from crashkit.process import until

from domicile.node.failpoints import NAMES

STOPPING = {name for name in NAMES if name.startswith("stop.")}


def test_an_error_at_every_place_loses_nothing_answered(tmp_path: Path) -> None:
    """Wherever an error strikes, callers get an answer, the object or the node recovers, and the promises hold."""
    campaign = Campaign(tmp_path)
    try:
        campaign.crash()
        left = set(NAMES) - STOPPING
        while left:
            if any(name.startswith("lay.") for name in left):
                campaign.node.wipe()
            came = campaign.strike(left)
            assert came, f"no error strikes at any of {sorted(left)}"
            left -= came
        campaign.conclude()
    finally:
        campaign.abandon()


def test_an_error_while_the_node_stops_loses_nothing_answered(tmp_path: Path) -> None:
    """A node that cannot stop in order ends all the same, and soon."""
    campaign = Campaign(tmp_path)
    try:
        for name in sorted(STOPPING):
            campaign.node.start(f"{name}:error")
            campaign.node.wait_ready()
            progress(campaign.history, PROGRESS, until)
            campaign.node.signal(signal.SIGTERM)
            assert campaign.node.wait_dead(secs=30) != 0
            assert f"failpoint {name} error" in campaign.node.said()
            campaign.check()
        campaign.conclude()
    finally:
        campaign.abandon()
