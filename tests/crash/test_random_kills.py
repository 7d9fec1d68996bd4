"""kill -9 at any moment, again and again, under load; the next node starts at once. DOMICILE_KILLS says how often."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest
from crashkit.campaign import Campaign
from crashkit.clients import progress
from crashkit.process import until

KILLS = int(os.environ.get("DOMICILE_KILLS", "25"))
SEED = int(os.environ.get("DOMICILE_SEED", "1"))
UNREADY = 0.15  # share of kills that come while the node starts


@pytest.mark.timeout(120 + 10 * KILLS)
def test_random_kills_lose_nothing_answered(tmp_path: Path) -> None:
    """Clients ride through any number of deaths, some with loss of local files, and the promises hold all the while."""
    rng = random.Random(SEED)
    campaign = Campaign(tmp_path, clients=5, seed=SEED)
    try:
        for kill in range(KILLS):
            campaign.load.era = kill // 3
            _live_and_die(campaign, rng)
            if kill % 5 == 0 or kill == KILLS - 1:
                campaign.check()
            _lose_files(campaign, rng)
        campaign.conclude()
    finally:
        campaign.abandon()


def _live_and_die(campaign: Campaign, rng: random.Random) -> None:
    campaign.node.start(supervised=rng.random() < 0.3)
    if rng.random() < UNREADY:
        until(lambda: rng.random() < 0.02, "a moment of its start")
    else:
        campaign.node.wait_ready()
        progress(campaign.history, rng.choice((0, 1, 5, 20, 60)), until)
    campaign.node.kill()


def _lose_files(campaign: Campaign, rng: random.Random) -> None:
    draw = rng.random()
    if draw < 0.15:
        campaign.node.wipe()
    elif draw < 0.35:
        campaign.node.lose_some(rng)
