"""The oracle: answered is there once, refused is not there, unknown is there or not and stays so.

`check_live` holds the whole history against the promises; `check_cold` holds it against what a look into the bucket
alone finds, while no node runs.
"""

from __future__ import annotations

from collections import Counter

from simworld.checker import check
from simworld.history import History, Operation

from crashkit.bucket import Cold


def check_live(history: History) -> None:
    """Every answer given so far: one order explains them all, nothing is lost, taken back or doubled."""
    violations = check(history)
    assert not violations, "\n".join(str(violation) for violation in violations[:20])


def check_heard(history: History) -> None:
    """Nobody waited for an answer until their own patience was over: what the node read it answered, or it died."""
    hung = [
        f"{operation.object} {operation.op} {operation.item}: {attempt.code}"
        for operation in history.operations
        for attempt in operation.attempts
        if attempt.outcome == "open" or "timed out" in attempt.code or "TimeoutError" in attempt.code
    ]
    assert not hung, "\n".join(hung[:20])


def check_cold(history: History, cold: dict[str, Cold]) -> None:
    """The bucket alone holds every answered write, once, whole and in the order that was shown."""
    for name, operations in history.of_objects().items():
        found = cold.get(name)
        if found is not None:
            _check_whole(name, found)
        if any(operation.op == "delete" for operation in operations):
            continue  # which of its lives a write belongs to is the history's affair
        _check_object(name, operations, found.items if found else ())


def _check_whole(name: str, found: Cold) -> None:
    assert found.integrity == "ok", f"{name}: {found.integrity}"
    assert found.items == found.twins, f"{name}: half a transaction lasted"
    assert found.last == (found.items[-1] if found.items else None), f"{name}: half a transaction lasted"
    for items in (found.items, found.fired):
        doubled = [item for item, count in Counter(items).items() if count > 1]
        assert not doubled, f"{name}: {doubled} are there more than once"


def _check_object(name: str, operations: list[Operation], items: tuple[str, ...]) -> None:
    there = set(items)
    for operation in operations:
        if operation.op == "append" and not operation.may_have_run:
            assert operation.item not in there, f"{name}: {operation.item} was refused, and is there"
        if operation.shown is not None:
            shown = operation.shown.items
            assert items[: len(shown)] == shown, (
                f"{name}: {operation.op} {operation.item} was answered with what the bucket does not hold: "
                f"{shown[-3:]} of {len(shown)}, the bucket has {len(items)}"
            )
