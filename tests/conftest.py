"""For all tests: how long property tests search. `make soak` takes the long profile."""

from __future__ import annotations

from hypothesis import settings

# The machines that test are busy; how long one example takes says nothing.
settings.register_profile("fast", deadline=None)
settings.register_profile("soak", deadline=None, max_examples=10_000)
settings.load_profile("fast")
