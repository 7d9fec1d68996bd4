"""The right to serve: registered, renewed, lost, left, evicted — on a clock that only the test moves."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pytest

from domicile.errors import NotServing
from domicile.placement.admission import Admission, Timing
from domicile.placement.eviction import Evictor
from domicile.placement.heartbeat import HeartbeatThread
from domicile.placement.keys import Keys
from domicile.placement.node_registry import Membership, RowGone
from domicile.placement.records import DepartureRow, NodeRow, encode
from domicile.placement.store import Delete, Put, StoreUnavailable

pytestmark = pytest.mark.anyio

TIMING = Timing()


@dataclass
class Node:
    """One membership under test, and what happened to it."""

    store: Any
    keys: Keys
    clock: Any
    timing: Timing = TIMING
    state: str = "serving"
    lost: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.membership = Membership(
            self.store, self.keys, self.timing, self.clock, self.row, lambda: self.lost.append(self.clock.now)
        )

    @property
    def admission(self) -> Admission:
        return self.membership.admission

    def row(self) -> NodeRow:
        return NodeRow("n1", "h:1", copy_id="copy-1", state=self.state)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        await self.membership.register()
        task = asyncio.ensure_future(self.membership.run())
        await self.clock.advance(0)
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def stored(self) -> NodeRow | None:
        record = (await self.store.read([self.keys.node("n1")])).get(self.keys.node("n1"))
        return msgspec.json.decode(record.value, type=NodeRow) if record else None


@pytest.fixture
def node(store: Any, keys: Keys, clock: Any) -> Node:
    return Node(store, keys, clock)


def test_the_relations_of_the_settings_are_checked() -> None:
    """heartbeat + timeout < admission; admission + margin ≤ TTL; the message names the settings."""
    Timing().check()
    Timing(ttl=5, heartbeat=0.5, timeout=0.3, admission=2, margin=1).check()
    with pytest.raises(ValueError, match="NODE_ADMISSION_SECS"):
        Timing(heartbeat=5, timeout=5).check()
    with pytest.raises(ValueError, match="NODE_TTL_SECS"):
        Timing(ttl=14.9).check()
    Timing(ttl=15).check()
    with pytest.raises(ValueError, match="greater than 0"):
        Timing(margin=0).check()


def test_golden_node_row() -> None:
    """Node rows are stored and read by other releases: their JSON, byte for byte."""
    assert encode(NodeRow("n1", "h:1")) == b'{"node_id":"n1","http":"h:1"}'
    row = NodeRow("n1", "h:1", "h:2", "c1", "z", ("A",), 2.0, 9, "leaving", 3, 4)
    assert encode(row) == (
        b'{"node_id":"n1","http":"h:1","peer":"h:2","copy_id":"c1","zone":"z","classes":["A"],"weight":2.0,'
        b'"capacity":9,"state":"leaving","load":3,"beat":4}'
    )


async def test_nothing_may_leave_before_the_row_is_there(node: Node) -> None:
    """A node that has not registered serves nothing."""
    with pytest.raises(NotServing):
        node.admission.check()
    registration = await node.membership.register()
    node.admission.check()
    record = (await node.store.read([node.keys.node("n1")]))[node.keys.node("n1")]
    assert (registration.node_id, registration.created) == ("n1", record.created)


async def test_the_deadline_counts_from_before_the_renewal_was_sent(node: Node) -> None:
    """A slow commit costs the node, not the safety."""

    async def slowly() -> None:
        node.clock.jump(2.5)

    node.store.before_write = slowly
    await node.membership.register()
    assert node.admission.remaining() == pytest.approx(TIMING.admission - 2.5)


async def test_every_beat_renews(node: Node) -> None:
    """The row is rewritten every heartbeat with the next beat, and the right to serve never runs low."""
    async with node.running():
        before = await node.stored()
        for _ in range(20):
            await node.clock.advance(TIMING.heartbeat)
            assert node.admission.remaining() > TIMING.admission - TIMING.heartbeat
        after = await node.stored()
        assert before is not None
        assert after is not None
        assert after.beat == before.beat + 20
        assert node.lost == []


async def test_the_grant_is_kept(node: Node) -> None:
    """Far past the TTL the row is still there: renewals keep the grant besides."""
    async with node.running():
        await node.clock.advance(3 * TIMING.ttl)
        assert await node.stored() is not None


async def test_a_store_that_is_down_ends_the_right_to_serve_and_no_sooner(node: Node) -> None:
    """Until the deadline answers leave; past it nothing does; with the store back the node serves again, same id."""
    async with node.running():
        node.store.down = True
        await node.clock.advance(TIMING.admission - 0.1)
        node.admission.check()
        await node.clock.advance(0.2)
        with pytest.raises(NotServing):
            node.admission.check()
        node.store.down = False
        await node.clock.advance(1.1)
        node.admission.check()
        assert node.lost == []


async def test_a_failed_renewal_is_retried_at_once(node: Node) -> None:
    """Two short failures in a row cost a fraction of a second, not a beat each."""
    async with node.running():
        await node.clock.advance(TIMING.heartbeat - 0.01)
        node.store.down = True
        await node.clock.advance(0.2)
        tries = node.store.writes
        node.store.down = False
        await node.clock.advance(0.3)
        assert node.store.writes > tries
        assert node.admission.remaining() > TIMING.admission - 0.5


async def test_retries_back_off(node: Node) -> None:
    """A store that is down for long is not hammered: about one try a second."""
    async with node.running():
        node.store.down = True
        await node.clock.advance(60)
        before = node.store.writes
        await node.clock.advance(60)
        assert 50 <= node.store.writes - before <= 70


async def test_a_lost_answer_is_read_again_by_its_beat(node: Node) -> None:
    """The renewal whose answer was lost counts from its own sending, and the next goes on from it."""
    async with node.running():
        node.store.lose_answers = 1
        await node.clock.advance(TIMING.heartbeat)
        assert node.admission.remaining() > TIMING.admission - 0.2
        await node.clock.advance(5 * TIMING.heartbeat)
        assert node.lost == []
        node.admission.check()


async def test_a_lost_answer_to_the_registration_is_read_again(node: Node) -> None:
    """Registering again finds the row of the first attempt: the same registration."""
    node.store.lose_answers = 1
    with pytest.raises(StoreUnavailable):
        await node.membership.register()
    with pytest.raises(NotServing):
        node.admission.check()
    registration = await node.membership.register()
    record = (await node.store.read([node.keys.node("n1")]))[node.keys.node("n1")]
    assert registration.created == record.created


async def test_a_store_that_is_slow_for_a_moment_is_asked_again(node: Node) -> None:
    """With patience one call outlasts lost answers, under one node id; the row of the first attempt is the one."""
    node.store.lose_answers = 3
    registering = asyncio.ensure_future(node.membership.register(10.0))
    while not registering.done():
        await node.clock.advance(0.5)
    registration = await registering
    record = (await node.store.read([node.keys.node("n1")]))[node.keys.node("n1")]
    assert registration.created == record.created


async def test_a_store_that_stays_silent_ends_the_patience(node: Node) -> None:
    """The caller decides what then."""
    node.store.lose_answers = 1_000
    late = asyncio.ensure_future(node.membership.register(2.0))
    for _ in range(10):
        await node.clock.advance(0.5)
    with pytest.raises(StoreUnavailable):
        await late


async def test_a_renewal_found_landed_does_not_count_from_a_later_try(node: Node) -> None:
    """Only what was sent before the commit may start the deadline: a later try that conflicts adds nothing."""
    await node.membership.register()
    sent = node.clock.now
    node.store.lose_answers = 1
    assert not await node.membership.renew()
    node.clock.jump(4)
    assert not await node.membership.renew()
    assert node.admission.remaining() <= sent + TIMING.admission - node.clock.now
    assert await node.membership.renew()
    assert node.admission.remaining() == pytest.approx(TIMING.admission)


async def test_a_row_of_another_run_is_not_taken_over(node: Node, store: Any, keys: Keys) -> None:
    """A node id is one run's; finding its row there is the end of it."""
    await store.write([], [Put(keys.node("n1"), encode(NodeRow("n1", "h:9", beat=1_000)))])
    with pytest.raises(RowGone):
        await node.membership.register()


async def test_a_row_that_is_gone_is_the_end_of_the_node_id(node: Node, store: Any, keys: Keys) -> None:
    """Evicted: at the next beat nothing leaves any more, `lost` is told once, no renewal brings the row back."""
    async with node.running():
        await store.write([], [Delete(keys.node("n1"))])
        await node.clock.advance(TIMING.heartbeat)
        assert len(node.lost) == 1
        with pytest.raises(NotServing):
            node.admission.check()
        await node.clock.advance(5 * TIMING.heartbeat)
        assert await node.stored() is None
        assert len(node.lost) == 1


async def test_a_grant_that_ran_out_is_the_end_too(node: Node) -> None:
    """The broom swept while the node was stopped: it must register anew."""
    async with node.running():
        node.clock.jump(TIMING.ttl + 1)
        await node.clock.advance(TIMING.heartbeat)
        assert len(node.lost) == 1


async def test_after_a_stop_nothing_leaves_until_a_renewal_commits(node: Node) -> None:
    """Stopped for longer than a beat but within the deadline: refused at once, served again after a renewal."""
    async with node.running():
        node.clock.jump(TIMING.heartbeat + 0.5)
        assert node.clock.now < 1_000 + TIMING.admission
        with pytest.raises(NotServing):
            node.admission.check()
        node.store.down = True
        await node.clock.advance(0.1)
        with pytest.raises(NotServing):
            node.admission.check()
        node.store.down = False
        await node.clock.advance(1.1)
        node.admission.check()


async def test_after_a_suspension_the_node_renews_with_the_first_tick(node: Node) -> None:
    """Timers stood still with the machine: the next beat is not waited for."""
    async with node.running():
        await node.clock.advance(0.1)
        node.clock.suspend(TIMING.ttl - 5)
        with pytest.raises(NotServing):
            node.admission.check()
        await node.clock.advance(TIMING.tick)
        node.admission.check()
        assert node.lost == []


async def test_a_process_slow_to_start_needs_no_other_grant_than_its_own(node: Node) -> None:
    """The supervisor's grant ran out before the child came to register: it registers under one of its own."""
    grant = await node.store.grant(node.timing.ttl)
    await node.store.revoke(grant)
    slow = Membership(node.store, node.keys, node.timing, node.clock, node.row, lambda: None, grant)
    registration = await slow.register()
    assert registration.node_id == "n1"
    assert slow.admission.remaining() > 0


async def test_every_rewrite_leaves_the_row_under_its_grant(node: Node) -> None:
    """A node that stops renewing vanishes with its grant, however often it has renewed."""
    await node.membership.register()
    assert await node.membership.renew()
    node.clock.jump(TIMING.ttl + 0.1)
    assert await node.stored() is None


async def test_a_renewal_sent_before_the_stop_does_not_count_after_it(node: Node) -> None:
    """Its commit says nothing about the time in between."""
    admission = node.admission
    await node.membership.register()
    sent = node.clock.now
    node.clock.jump(TIMING.heartbeat + 1)
    assert admission.tick()
    admission.renewed(sent)
    assert admission.remaining() <= 0
    admission.renewed(node.clock.now)
    assert admission.remaining() == pytest.approx(TIMING.admission)
    assert not admission.tick()


async def test_leaving_is_the_deadline_from_the_moment_it_is_sent(node: Node, store: Any, keys: Keys) -> None:
    """Row deleted and departure recorded in one write; nothing leaves while that is under way, nor ever after."""
    async with node.running():
        seen: list[float] = []

        async def look() -> None:
            seen.append(node.admission.remaining())

        store.before_write = look
        assert await node.membership.leave("stopped")
        assert seen == [0.0]
        found = await store.read([keys.node("n1"), keys.departure("n1")])
        assert keys.node("n1") not in found
        departure = msgspec.json.decode(found[keys.departure("n1")].value, type=DepartureRow)
        assert (departure.why, departure.copy_id) == ("stopped", "copy-1")
        node.admission.renewed(node.clock.now)
        await node.clock.advance(20)
        assert node.admission.remaining() <= 0
        assert await node.stored() is None
        assert node.lost == []


async def test_leaving_survives_lost_answers(node: Node) -> None:
    """A renewal and a departure whose answers were lost: the row goes all the same."""
    async with node.running():
        node.store.lose_answers = 1
        assert not await node.membership.renew()
        node.store.lose_answers = 1
        leaving = asyncio.ensure_future(node.membership.leave("stopped"))
        await node.clock.advance(1)
        assert await leaving
        assert await node.stored() is None


async def test_leaving_a_store_that_is_down_says_so(node: Node) -> None:
    """It gives up after a few tries, and still serves nothing."""
    async with node.running():
        node.store.down = True
        leaving = asyncio.ensure_future(node.membership.leave("stopped"))
        await node.clock.advance(5)
        assert not await leaving
        assert node.admission.remaining() <= 0


async def test_a_change_of_state_is_written_without_waiting_for_the_beat(node: Node) -> None:
    """`hurry` renews at once with what the node says of itself now."""
    async with node.running():
        node.state = "leaving"
        node.membership.hurry()
        await node.clock.advance(0)
        stored = await node.stored()
        assert stored is not None
        assert stored.state == "leaving"


async def test_a_store_that_never_answers_is_given_up_after_the_timeout(node: Node, store: Any) -> None:
    """A renewal that hangs is a failed one."""
    quick = Node(store, node.keys, node.clock, Timing(ttl=5, heartbeat=0.5, timeout=0.05, admission=2, margin=1))
    store.before_write = asyncio.Event().wait
    with pytest.raises(StoreUnavailable):
        await quick.membership.register()


async def test_no_node_is_evicted_while_it_may_serve(node: Node) -> None:
    """A row seen at one version for the admission time and the margin is past its deadline; a moment less is not."""
    evictor = Evictor(node.store, node.keys, TIMING, node.clock)
    await node.membership.register()
    verdict = await evictor.suspect("n1")
    assert (verdict.gone, verdict.wait_secs) == (False, TIMING.fence)
    node.clock.jump(TIMING.fence - 0.01)
    assert node.admission.remaining() <= 0
    verdict = await evictor.suspect("n1")
    assert not verdict.gone
    assert verdict.wait_secs == pytest.approx(0.01)
    node.clock.jump(0.02)
    assert (await evictor.suspect("n1")).gone
    departure = (await node.store.read([node.keys.departure("n1")]))[node.keys.departure("n1")]
    assert msgspec.json.decode(departure.value, type=DepartureRow).why == "evicted"
    assert (await evictor.suspect("n1")).gone


async def test_a_renewal_starts_the_count_anew(node: Node) -> None:
    """Every version has its own time."""
    evictor = Evictor(node.store, node.keys, TIMING, node.clock)
    await node.membership.register()
    for _ in range(4):
        assert not (await evictor.suspect("n1")).gone
        node.clock.jump(TIMING.admission - 1)
        assert await node.membership.renew()
    assert await node.stored() is not None


async def test_a_renewal_in_between_wins_over_the_eviction(node: Node) -> None:
    """The row is deleted on the version that was judged, or not at all."""
    evictor = Evictor(node.store, node.keys, TIMING, node.clock)
    await node.membership.register()
    await evictor.suspect("n1")
    node.clock.jump(TIMING.fence + 1)
    node.store.before_write = node.membership.renew
    verdict = await evictor.suspect("n1")
    assert (verdict.gone, verdict.wait_secs) == (False, TIMING.fence)
    assert await node.stored() is not None
    assert node.store.before_write is None


async def test_the_count_may_start_at_a_watch(node: Node) -> None:
    """What the watch showed counts from then; a version older than one read changes nothing."""
    evictor = Evictor(node.store, node.keys, TIMING, node.clock)
    registration = await node.membership.register()
    evictor.saw("n1", registration.created)
    node.clock.jump(TIMING.fence)
    evictor.saw("n1", registration.created - 1)
    assert (await evictor.suspect("n1")).gone


async def test_the_heartbeat_goes_on_while_the_loop_is_blocked(tmp_path: Any, keys: Keys) -> None:
    """A thread and a loop of its own: a caller that blocks its loop past the deadline still finds itself admitted."""
    import time

    from domicile.placement.embedded import EmbeddedStore

    class RealClock:
        now = 0.0

        def monotonic(self) -> float:
            return time.monotonic()

        def wall_ms(self) -> int:
            return 0

        async def sleep(self, secs: float) -> None:
            await asyncio.sleep(secs)

    timing = Timing(ttl=3, heartbeat=0.2, timeout=0.2, admission=0.6, margin=0.2)
    store = EmbeddedStore(str(tmp_path / "p.db"), time.monotonic)
    node = Node(store, keys, RealClock(), timing)
    heartbeat = HeartbeatThread(node.membership)
    try:
        registration = await heartbeat.start()
        first = await node.stored()
        time.sleep(1.2)
        node.admission.check()
        second = await node.stored()
        assert first is not None
        assert second is not None
        assert second.beat >= first.beat + 3
        assert registration.node_id == "n1"
        assert await heartbeat.leave("stopped")
        assert await node.stored() is None
        heartbeat.hurry()  # what is still told to a loop that has ended disturbs nobody
        with pytest.raises(RuntimeError):
            await heartbeat.leave("again")
    finally:
        await heartbeat.stop()
        await store.close()
