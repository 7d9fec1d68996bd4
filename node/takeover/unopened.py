"""Births claimed by this process whose object was never opened: the next claim over such a one is a birth, too.

Nothing was written under the first: no copy of anything can be anywhere. Without this a birth that failed once, because
the bucket did not answer, would ask members on its second try, wait for a quorum of those that cannot be reached, and
record an incident about nothing.
"""

from __future__ import annotations

import dataclasses
from collections import OrderedDict

from domicile.placement.claims import Claimed

REMEMBERED_MAX = 10_000  # one that is forgotten is taken over in the ordinary way


class Unopened:
    """By object id, the version of the claim."""

    def __init__(self) -> None:
        self._claims: OrderedDict[str, int] = OrderedDict()

    def as_born(self, claimed: Claimed) -> Claimed:
        """The claim just won, as a birth if that is what it is. To be told by `opened` before a file is made."""
        before = self._claims.pop(claimed.key.id, None)
        if before is not None and claimed.previous is not None and claimed.previous.version == before:
            claimed = dataclasses.replace(claimed, created=True)
        if claimed.created:
            self._claims[claimed.key.id] = claimed.version
            if len(self._claims) > REMEMBERED_MAX:
                self._claims.popitem(last=False)
        return claimed

    def opened(self, object_id: str) -> None:
        """From now on something may be written."""
        self._claims.pop(object_id, None)
