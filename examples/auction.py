"""An auction: each lot is an object, and closes ten minutes after its last bid, whichever machine it is on by then.

domicile dev examples/auction.py

curl -X POST localhost:8080/v1/demo/objects/Auction/lot-42/bid -d '["ada", 25]'
curl -X POST localhost:8080/v1/demo/objects/Auction/lot-42/bid -d '{"user": "grace", "amount": 30}'
curl -X POST localhost:8080/v1/demo/objects/Auction/lot-42/state
curl -X POST localhost:8080/v1/demo/objects/Winnings/grace/lots        # once the lot has closed

A retried bid is not bid twice if both requests carry the same key:
curl -X POST localhost:8080/v1/demo/objects/Auction/lot-42/bid -H 'Idempotency-Key: 7f3a' -d '["ada", 35]'
"""

from typing import Any, TypedDict

import domicile

QUIET = "10m"


class Bid(TypedDict):
    """What a bidder hears: whether the bid leads, and the highest one."""

    ok: bool
    high: int | None


class Auction(domicile.Object):
    """One lot. Calls to it run one at a time, so two bids never see the same highest one."""

    migrations = "migrations/auction"

    def bid(self, user: str, amount: int) -> Bid:
        high = self._high()
        if self.kv.get("closed") or (high and amount <= high["amount"]):
            return {"ok": False, "high": high["amount"] if high else None}
        self.sql.exec("INSERT INTO bids(at, user, amount) VALUES (?, ?, ?)", self.now(), user, amount)
        self.set_alarm(QUIET)
        return {"ok": True, "high": amount}

    @domicile.read
    def state(self) -> dict[str, Any]:
        high = self._high()
        return {"closed": self.kv.get("closed", False), "high": high, "bids": self._bids()}

    def on_alarm(self) -> None:
        """Nobody has bid for a while: the lot goes to whoever leads. Runs again if it fails, so it may be repeated."""
        high = self._high()
        self.kv.put("closed", True)
        if high:
            self.object(Winnings, high["user"]).add(self.name, high["amount"])

    def _high(self) -> dict[str, Any] | None:
        return self.sql.one("SELECT user, amount FROM bids ORDER BY amount DESC LIMIT 1")

    def _bids(self) -> int:
        row = self.sql.one("SELECT count(*) AS n FROM bids")
        return row["n"] if row else 0


class Winnings(domicile.Object):
    """What one user has won. Another object, perhaps on another machine."""

    def add(self, lot: str, amount: int) -> None:
        self.kv.put(lot, amount)

    @domicile.read
    def lots(self) -> dict[str, int]:
        return self.kv.list()
