"""What the etcd store says and how it reads what it is told, without an etcd."""

from __future__ import annotations

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from domicile.placement.etcd_wire import Fate, fate, lease_of, pack_token, span, unpack_token
from domicile.placement.store import Grant, GrantGone

KEYS = st.text(st.characters(blacklist_characters="\0", blacklist_categories=["Cs"]), min_size=1, max_size=20)


def failure(details: str) -> grpc.aio.AioRpcError:
    nothing = grpc.aio.Metadata()
    return grpc.aio.AioRpcError(grpc.StatusCode.UNAVAILABLE, nothing, nothing, details)


@pytest.mark.parametrize(
    ("details", "expected"),
    [
        ("etcdserver: no leader", Fate.NOT_HERE),
        ("failed to connect to all addresses; last error: UNKNOWN: connection refused", Fate.NOT_HERE),
        ("etcdserver: invalid auth token", Fate.LOG_IN),
        ("etcdserver: permission denied", Fate.NEVER),
        ("etcdserver: requested lease not found", Fate.NO_GRANT),
        ("etcdserver: request timed out", Fate.MAYBE),
        ("etcdserver: request timed out, possibly due to previous leader failure", Fate.MAYBE),
        ("etcdserver: server stopped", Fate.MAYBE),
        ("Socket closed", Fate.MAYBE),
        ("Deadline Exceeded", Fate.MAYBE),
        ("", Fate.MAYBE),
    ],
)
def test_only_what_certainly_was_not_done_is_said_to_be_so(details: str, expected: Fate) -> None:
    """An error that is not known to come before the write is `maybe`."""
    assert fate(failure(details)) is expected


def test_a_scans_token_is_these_bytes() -> None:
    """8 bytes of revision, then the key: tokens outlive the process that gave them."""
    assert pack_token(258, "/c/r/é") == "AAAAAAAAAQIvYy9yL8Op"
    assert unpack_token("AAAAAAAAAQIvYy9yL8Op", "/c/") == (258, "/c/r/é")


@given(st.integers(1, (1 << 63) - 1), KEYS)
def test_tokens_come_back_as_they_were(revision: int, key: str) -> None:
    """Whatever the key is."""
    assert unpack_token(pack_token(revision, key), key[:3]) == (revision, key)


@given(st.text(max_size=40))
def test_a_made_up_token_is_refused(text: str) -> None:
    """With ValueError and nothing else, unless it happens to be one."""
    try:
        revision, key = unpack_token(text, "/c/")
    except ValueError:
        return
    assert revision > 0
    assert key.startswith("/c/")


def test_a_token_of_another_scan_is_refused() -> None:
    """It would continue where nothing of this scan is."""
    with pytest.raises(ValueError, match="token"):
        unpack_token(pack_token(5, "/b/1"), "/a/")


@given(KEYS, KEYS)
def test_a_span_is_exactly_the_keys_with_the_prefix(prefix: str, key: str) -> None:
    """In the order of their bytes, for prefixes that end anywhere."""
    first, end = span(prefix)
    for candidate in (key, prefix + key, prefix):
        assert (first <= candidate.encode() < end) == candidate.startswith(prefix)


@pytest.mark.parametrize("grant", ["", "embedded-3", "-1", "٣"])
def test_a_grant_of_another_store_is_gone(grant: str) -> None:
    """It is nothing that etcd could still have."""
    with pytest.raises(GrantGone):
        lease_of(Grant(grant))
