"""The judge, judged: each kind of bad history is caught by its name, and no good one is ever called bad."""

from __future__ import annotations

import pytest
from hypothesis import given, note, settings
from hypothesis import strategies as st
from simworld.checker import check
from simworld.history import Attempt, History, Operation, Shown
from simworld.linear import search, search_plainly

from domicile.placement.records import Epoch

FOREVER = None


def op(kind, item, began, ended, shows=None, outcome=None, **more):
    """One operation of object `o`; answered if it shows something, or as `outcome` says."""
    outcome = outcome or ("unknown" if shows is None and kind != "delete" else "answered")
    attempt = Attempt(began, ended, outcome)
    epoch = more.pop("epoch", None)
    shown = None
    if outcome == "answered":
        shown = Shown(tuple(shows or ()), more.pop("value", None), more.pop("who", ()), epoch)
    return Operation(more.pop("client", "c"), "o", kind, item, more.pop("key", None), [attempt], shown)


def dump(operations):
    return "\n".join(
        f"{o.client} {o.op} {o.item} [{o.invoked}, {o.returned}] {o.outcome} {o.shown and o.shown.items}"
        for o in operations
    )


def judge(*operations):
    history = History()
    for operation in operations:
        history.begin(operation)
    return {violation.kind for violation in check(history)}


A = op("append", "a", 0, 1, "a")
B = op("append", "b", 2, 3, "ab")


def test_a_plain_history_is_fine():
    """Two writes, a read between and one after, a deletion and a new life."""
    history = [
        A,
        op("read", "", 1.2, 1.5, "a"),
        B,
        op("read", "", 4, 5, "ab"),
        op("delete", "", 6, 7),
        op("read", "", 8, 9, ""),
        op("append", "c", 10, 11, "c"),
    ]

    assert judge(*history) == set()


def test_an_unknown_write_may_show_or_not():
    """A write of unknown outcome may have happened, at any time after it was sent, or never."""
    unknown = op("append", "x", 0.5, 0.9)

    assert judge(A, unknown, op("read", "", 4, 5, "a")) == set()
    assert judge(A, unknown, op("read", "", 4, 5, "ax"), op("append", "b", 6, 7, "axb")) == set()
    assert judge(A, unknown, op("read", "", 4, 5, "a"), op("read", "", 8, 9, "ax")) == set()


@pytest.mark.parametrize(
    ("kind", "history"),
    [
        ("lost", [A, op("read", "", 4, 5, ""), op("append", "b", 6, 7, "b")]),
        ("lost", [A, op("append", "b", 2, 3, "b")]),
        ("lost", [op("append", "a", 0, 1, "")]),
        ("stale", [A, B, op("read", "", 4, 5, "a"), op("read", "", 6, 7, "ab")]),
        ("taken-back", [A, op("append", "x", 1, 2), op("read", "", 4, 5, "ax"), op("read", "", 6, 7, "a")]),
        ("forked", [A, op("append", "b", 2, 5, "ab"), op("append", "c", 2, 5, "ac")]),
        ("twice", [A, op("append", "b", 2, 3, key="k"), op("read", "", 4, 5, "abb")]),
        ("refused-ran", [A, op("append", "b", 2, 3, outcome="not_run"), op("read", "", 4, 5, "ab")]),
        ("refused-ran", [A, op("append", "b", 2, 3, outcome="ran"), op("read", "", 4, 5, "ab")]),
        ("invented", [A, op("read", "", 4, 5, "az")]),
        ("invented", [A, op("read", "", 2, 3, "ab"), op("append", "b", 4, 5, "ab")]),
        ("lives-mixed", [A, op("delete", "", 2, 3), op("append", "b", 4, 5, "ab")]),
        ("lives-mixed", [A, op("delete", "", 2, 3), op("append", "b", 4, 5, "b"), op("append", "x", 6, 7, "bax")]),
        ("epoch-fell", [op("append", "a", 0, 1, "a", epoch=Epoch(1, 9)), op("read", "", 2, 3, "a", epoch=Epoch(1, 8))]),
        ("epoch-fell", [A, op("append", "b", 2, 3, "ab", who=(Epoch(1, 9), Epoch(1, 8)))]),
        ("miscounted", [op("increment", "a", 0, 1, "a", value=2)]),
        ("not-linearizable", [A, op("delete", "", 2, 3), op("read", "", 4, 5, "a"), op("delete", "", 0.1, 0.2)]),
        ("not-linearizable", [A, op("read", "", 4, 5, outcome="absent")]),
    ],
)
def test_each_kind_of_bad_history_is_caught(kind, history):
    """One history for each promise, with that promise broken."""
    found = judge(*history)

    assert kind in found or (kind == "not-linearizable" and found)


def test_a_retry_counts_once_and_from_its_first_attempt_that_may_have_run():
    """Refused attempts prove that nothing ran; the interval begins with the first that does not."""
    retried = Operation(
        "c", "o", "append", "b", "k", [Attempt(1, 2, "not_run"), Attempt(3, 4, "unknown"), Attempt(6, 7, "answered")]
    )
    retried.shown = Shown(("a", "b"))

    assert retried.outcome == "answered"
    assert (retried.invoked, retried.returned) == (3, 7)
    assert judge(A, retried, op("read", "", 4.5, 5, "ab")) == set()
    assert judge(A, retried, op("read", "", 2.1, 2.5, "ab")) != set()


def test_a_key_is_of_one_life():
    """A node sends a call again under its key, and a deletion that came between has taken the record along."""
    keyed = op("append", "b", 2, 9, "b", key="k")
    before, deletion = op("read", "", 3, 4, "ab"), op("delete", "", 5, 6)

    assert judge(A, keyed, before, deletion, op("read", "", 10, 11, "b")) == set()
    assert judge(A, keyed, before, op("read", "", 10, 11, "b")) != set()
    assert "lives-mixed" in judge(A, op("append", "b", 2, 9, "b"), before, deletion)
    assert "lives-mixed" in judge(A, keyed, before, op("delete", "", 12, 13), op("delete", "", 0.2, 0.3))


def test_a_try_that_nobody_heard_of_may_run_after_a_deletion():
    """Its answer came by another try; an answered try alone never comes back."""
    tried = [Attempt(0, 0.5, "unknown"), Attempt(0.6, 1, "answered")]
    twice = Operation("c", "o", "append", "a", "k", tried, Shown(("a",)))
    history = [op("delete", "", 2, 3), op("read", "", 4, 5, ""), op("read", "", 6, 7, "a")]

    assert judge(twice, *history) == set()
    assert judge(op("append", "a", 0.6, 1, "a", key="k"), *history) == {"lives-mixed"}


@st.composite
def histories(draw):
    """What a correct object could show to concurrent clients, then perhaps bent in one place."""
    count = draw(st.integers(1, 6))
    state, operations = (), []
    for n in range(count):
        kind = draw(st.sampled_from(["append", "append", "read", "read", "delete"]))
        began = n - draw(st.floats(0, 2.5))
        ended = n + draw(st.floats(0.01, 2.5))
        item = "abcdef"[n] if kind == "append" else ""
        state = {"append": (*state, item), "read": state, "delete": ()}[kind]
        outcome = "unknown" if draw(st.integers(0, 4)) == 0 else "answered"
        if outcome == "unknown" and draw(st.booleans()) and kind != "read":
            state = operations[-1][1] if operations else ()
        operations.append(([kind, item, began, ended, "".join(state), outcome], state))
    bent = draw(st.integers(0, 2 * count))
    made = []
    for n, (fields, _) in enumerate(operations):
        kind, item, began, ended, shows, outcome = fields
        if n == bent:
            shows = draw(st.sampled_from([shows[:-1], shows[1:], shows[::-1], operations[0][0][4], shows + item]))
        made.append(op(kind, item, began, ended, shows, outcome, client=f"c{n}"))
    return made


@given(histories())
@settings(max_examples=600, deadline=None)
def test_the_fast_search_agrees_with_trying_every_order(history):
    """The shortcuts of the search change nothing: same verdict as every subset in every order."""
    note(dump(history))
    assert search(history) == search_plainly(history)


@given(histories())
@settings(max_examples=600, deadline=None)
def test_the_named_checks_never_call_a_good_history_bad(history):
    """A history that some order explains has no violation, and one that none explains has some."""
    note(dump(history))
    assert (judge(*history) == set()) == search_plainly(history)
