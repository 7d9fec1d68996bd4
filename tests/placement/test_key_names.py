"""Key names are stored: golden vectors, and every name read back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from domicile.errors import BadName
from domicile.placement.keys import Keys
from domicile.placement.records import ObjectKey

KEYS = Keys("prod", "eu-west")
OID = "ab" * 32
NAMES = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=60)


def test_golden_names_of_every_table() -> None:
    """The table of section 2, byte for byte."""
    key = ObjectKey("acme", "Auction", "lot/42 é🏠")
    control = KEYS.control
    assert [
        KEYS.node("n1"),
        KEYS.gate_project("acme"),
        KEYS.gate_class("acme", "Auction"),
        KEYS.gate_object(OID),
        KEYS.lease(OID),
        KEYS.deleted(key),
        KEYS.alarm(1_700_000_000_000, OID),
        KEYS.alarm(0, OID),
        KEYS.alarm_of(OID),
        KEYS.instance(key),
        KEYS.departure("n1"),
        KEYS.incident(OID, "3.17"),
        control.project("acme"),
        control.project_class("acme", "Auction"),
        control.region("eu-west"),
        control.standin("mars"),
        control.token("00ff"),
    ] == [
        "/prod/eu-west/nodes/n1",
        "/prod/eu-west/gates/acme",
        "/prod/eu-west/gates/acme/Auction",
        f"/prod/eu-west/gates/o/{OID}",
        f"/prod/eu-west/leases/{OID}",
        "/prod/eu-west/deleted/acme/Auction/lot/42 é🏠",
        f"/prod/eu-west/alarms/1700000000000/{OID}",
        f"/prod/eu-west/alarms/0000000000000/{OID}",
        f"/prod/eu-west/alarm-of/{OID}",
        "/prod/eu-west/instances/acme/Auction/lot/42 é🏠",
        "/prod/eu-west/departures/n1",
        f"/prod/eu-west/incidents/{OID}/3.17",
        "/prod/control/projects/acme",
        "/prod/control/projects/acme/classes/Auction",
        "/prod/control/regions/eu-west",
        "/prod/control/standins/mars",
        "/prod/control/tokens/00ff",
    ]


@given(NAMES)
def test_an_objects_name_comes_back_whole(name: str) -> None:
    """Whatever is in a name, slashes too, the key says exactly that name."""
    key = ObjectKey("s.nightly.x", "Cron", name)
    assert KEYS.instance_of(KEYS.instance(key)) == key
    assert KEYS.deletion_of(KEYS.deleted(key)) == key


def test_every_other_key_reads_back() -> None:
    """Both directions agree."""
    assert KEYS.node_of(KEYS.node("n1")) == "n1"
    assert KEYS.object_of_lease(KEYS.lease(OID)) == OID
    assert KEYS.alarm_at(KEYS.alarm(5, OID)) == (5, OID)
    assert KEYS.incident_of(KEYS.incident(OID, "1.2")) == (OID, "1.2")
    assert KEYS.departure_of(KEYS.departure("n1")) == "n1"
    assert KEYS.gate_of(KEYS.gate_class("acme", "A")) == ("acme", "A")
    assert KEYS.control.class_of(KEYS.control.project_class("acme", "A")) == ("acme", "A")
    assert KEYS.control.project_of(KEYS.control.project("acme")) == "acme"
    assert KEYS.control.project_of(KEYS.control.project_class("acme", "A")) is None
    assert KEYS.control.class_of(KEYS.control.project("acme")) is None
    with pytest.raises(ValueError, match="not under"):
        KEYS.node_of(KEYS.lease(OID))


def test_a_listing_holds_only_its_own_scope_and_class() -> None:
    """A project is no prefix of another, nor a class; a name prefix may be any text."""
    assert not KEYS.instance(ObjectKey("acme-2", "A", "x")).startswith(KEYS.instances("acme"))
    assert not KEYS.instance(ObjectKey("acme", "AB", "x")).startswith(KEYS.instances("acme", "A"))
    assert KEYS.instance(ObjectKey("acme", "A", "lot/1")).startswith(KEYS.instances("acme", "A", "lo"))
    with pytest.raises(ValueError, match="within a class"):
        KEYS.instances("acme", None, "lo")


def test_alarm_rows_sort_by_time() -> None:
    """13 digits, or it is refused: text order is time order."""
    dues = [0, 9, 10, 1_700_000_000_000, 10**13 - 1]
    assert [KEYS.alarm(due, OID) for due in dues] == sorted(KEYS.alarm(due, OID) for due in dues)
    for due in (-1, 10**13):
        with pytest.raises(ValueError, match="alarm row"):
            KEYS.alarm(due, OID)


def test_no_class_can_take_an_objects_gate() -> None:
    """In a project called `o`, a class named like an object id would be that object's gate: refused."""
    KEYS.gate_class("o", "Auction")
    with pytest.raises(BadName):
        KEYS.gate_class("o", OID)


def test_control_is_no_region() -> None:
    """The control keyspace cannot be taken for a region's."""
    for cluster, region in (("prod", "control"), ("a/b", "r"), ("prod", "")):
        with pytest.raises(BadName):
            Keys(cluster, region)
