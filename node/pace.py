"""How long a store flight that nobody waits for lets frames gather (PROTOCOLS section 7, "Store leg").

A flight costs about the same whatever it carries. With few objects writing each flies as soon as its oldest frame is
`OBJECT_STORE_INTERVAL_MS` old; the more gather at the same time, the longer each waits, up to what leaves a flight time
to land within `OBJECT_STORE_LAG_MS`.
"""

from __future__ import annotations

CALM = 32
LAG_SHARE = 0.8


class Pace:
    """One for a node. `gathering`: the legs that wait now."""

    def __init__(self) -> None:
        self.gathering = 0

    def rest_secs(self, interval_secs: float, lag_secs: float) -> float:
        """The age of the oldest frame at which a flight sets out."""
        stretched = interval_secs * max(1.0, self.gathering / CALM)
        return max(interval_secs, min(stretched, LAG_SHARE * lag_secs))
