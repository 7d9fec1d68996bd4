"""Settings: sources, types, relations and the words of their errors."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from domicile.node.config import PROFILES, Config, ConfigError, load, rows

API_DEFAULTS: dict[str, Any] = {
    "REGION": "local", "CLUSTER": "domicile", "PLACEMENT": "sqlite:", "BLOBS": "file:", "TEMPORAL": "",
    "NODE_TTL_SECS": 45, "NODE_HEARTBEAT_SECS": 5, "NODE_ADMISSION_SECS": 10, "NODE_FENCE_MARGIN_SECS": 5,
    "OBJECT_REPLICAS": 3, "OBJECT_QUORUM": 2, "OBJECT_REPLICA_SYNC": "fsync", "OBJECT_ACK_GATE_MS": 10000,
    "OBJECT_WAL_ROTATE_KB": 4096, "OBJECT_WAL_ROTATE_FRACTION": 0.125, "OBJECT_MAX_SEGMENTS": 64,
    "OBJECT_SHIP_CONCURRENCY": 32, "OBJECT_SHIP_RESERVED": 8,
    "OBJECT_REPLICA_IDLE_SECS": 1800, "OBJECT_REPLICA_TTL_SECS": 30, "OBJECT_IDLE_SECS": 300, "OBJECT_SWEEP_SECS": 30,
    "OBJECT_DB_MAX_MB": 64, "OBJECT_CALL_SECS": 10, "OBJECT_CALL_GRACE_MS": 1000, "OBJECT_MAILBOX": 128,
    "OBJECT_IDEMPOTENCY_SECS": 86400, "OBJECT_TAKEOVER_WAIT_MS": 5000, "OBJECT_READ_WAIT_MS": 50,
    "OBJECT_FLUSH_MS": 50, "OBJECT_ACTIVATIONS": 64, "OBJECT_SWEEP_ROWS": 256, "OBJECT_STORE_INTERVAL_MS": 1000,
    "OBJECT_STORE_LAG_MS": 2000, "OBJECT_JOURNAL_MB": 64, "OBJECT_CACHE_MB": 1024, "OBJECT_PAGED_MB": 8,
    "OBJECT_RESIDENTS": 5000, "ON_INCIDENT": "serve", "BODY_MAX_MB": 10, "LEASE_VERIFY_SECS": 600,
    "HOLDER_CACHE_SECS": 15, "CALL_DEADLINE_SECS": 30, "MOVE_KEEP_HOURS": 72, "NODE_RENEW_TIMEOUT_SECS": 3,
    "PROFILE": "", "CONTROL": "",
}  # fmt: skip


def problems_of(environ: dict[str, str], toml: str | None = None, **flags: Any) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load(environ, toml, flags)
    return caught.value.problems


def test_defaults_are_the_documented_ones() -> None:
    """Every setting of the table has its documented default, and the defaults agree with each other."""
    config = load({}).config

    assert {name: getattr(config, name.lower()) for name in API_DEFAULTS} == API_DEFAULTS


@pytest.mark.parametrize("name", ["LISTEN", "PEER_LISTEN", "ADVERTISE", "INGRESS", "DATA", "APP", "ZONE", "WEIGHT"])
def test_every_place_of_a_node_can_be_set(name: str) -> None:
    """The settings without a documented default are settings too."""
    assert name in {row.name for row in rows(load({}))}


def test_flags_beat_environment_beats_file_beats_profile() -> None:
    """The nearer source wins, and each value says where it came from."""
    toml = "node_ttl_secs = 20\nobject_mailbox = 5\nprofile = 'fast'\nobject_quorum = 1"
    loaded = load({"DOMICILE_OBJECT_MAILBOX": "6", "OBJECT_QUORUM": "3"}, toml, {"object_quorum": 0, "region": None})

    c = loaded.config
    assert (c.node_ttl_secs, c.object_mailbox, c.object_quorum, c.node_admission_secs) == (20, 6, 0, 2.0)
    assert {name: loaded.sources.get(name) for name in ("node_ttl_secs", "object_mailbox", "object_quorum")} == {
        "node_ttl_secs": "domicile.toml",
        "object_mailbox": "environment DOMICILE_OBJECT_MAILBOX",
        "object_quorum": "flag",
    }
    assert loaded.sources["node_admission_secs"] == "profile fast"
    assert "region" not in loaded.sources


def test_bare_names_are_taken_only_where_the_source_had_them() -> None:
    """`OBJECT_*` and `NODE_*` work bare, the prefixed name wins, and other bare or foreign names mean nothing."""
    environ = {
        "NODE_TTL_SECS": "60",
        "OBJECT_REPLICAS": "2",
        "DOMICILE_OBJECT_REPLICAS": "4",
        "REGION": "eu",
        "NODE_ENV": "production",
        "OBJECT_STORE": "x",
        "DOMICILE_FAILPOINTS": "a:kill",
    }
    config = load(environ).config

    assert (config.node_ttl_secs, config.object_replicas, config.region) == (60, 4, "local")


@pytest.mark.parametrize(
    ("environ", "toml", "told"),
    [
        ({"DOMICILE_NODE_TTL_SEC": "5"}, None, ["DOMICILE_NODE_TTL_SEC;", "did you mean NODE_TTL_SECS?"]),
        ({}, "object_mailbx = 1", ["domicile.toml", "object_mailbx", "OBJECT_MAILBOX?"]),
        ({"DOMICILE_XYZZY": "1"}, None, ["there is no setting DOMICILE_XYZZY"]),
        ({"OBJECT_MAILBOX": "5s"}, None, ["OBJECT_MAILBOX = '5s'", "environment OBJECT_MAILBOX", "no unit"]),
        ({"NODE_HEARTBEAT_SECS": "nan"}, None, ["NODE_HEARTBEAT_SECS = 'nan'", "0.05 to 600"]),
        ({}, "object_mailbox = true", ["OBJECT_MAILBOX = True", "domicile.toml"]),
        ({}, "object_mailbox = 1.5", ["OBJECT_MAILBOX = 1.5"]),
        ({}, "region = ['a']", ["REGION = ['a']"]),
        ({"DOMICILE_REGION": "control"}, None, ["REGION = 'control'", "reserved"]),
        ({"DOMICILE_LISTEN": "8080"}, None, ["LISTEN = '8080'", "host:port"]),
        ({"DOMICILE_PLACEMENT": "redis://x"}, None, ["PLACEMENT = 'redis://x'", "etcd://"]),
        ({"DOMICILE_ON_INCIDENT": "maybe"}, None, ["ON_INCIDENT", "serve, wait"]),
        ({"DOMICILE_PROFILE": "slow"}, None, ["PROFILE", "fast"]),
        ({"DOMICILE_PLACEMENT": "etcd://x:1"}, None, ["PLACEMENT = etcd://x:1", "BLOBS = file: (from default)"]),
        ({}, "x = ", ["domicile.toml is not TOML"]),
    ],
)  # fmt: skip
def test_a_wrong_setting_is_named_with_value_source_and_what_is_allowed(
    environ: dict[str, str], toml: str | None, told: list[str]
) -> None:
    """One line says which setting, what it was, where it came from and what it takes."""
    (problem,) = problems_of(environ, toml)

    assert [part for part in told if part not in problem] == []


def test_all_mistakes_are_told_at_once() -> None:
    """Nobody has to start a node three times to find three mistakes."""
    assert len(problems_of({"OBJECT_MAILBOX": "x", "DOMICILE_NOPE": "1"}, "region = 5.5")) == 3


@pytest.mark.parametrize(
    ("environ", "rule"),
    [
        ({"NODE_HEARTBEAT_SECS": "7"}, "less than NODE_ADMISSION_SECS"),
        ({"NODE_RENEW_TIMEOUT_SECS": "5"}, "less than NODE_ADMISSION_SECS"),
        ({"NODE_TTL_SECS": "14"}, "at most NODE_TTL_SECS"),
        ({"NODE_LOOP_SECS": "9"}, "at least NODE_ADMISSION_SECS"),
        ({"OBJECT_SHIP_RESERVED": "32"}, "less than OBJECT_SHIP_CONCURRENCY"),
        ({"OBJECT_STORE_LAG_MS": "999"}, "at least OBJECT_STORE_INTERVAL_MS"),
        ({"OBJECT_QUORUM": "4"}, "at most OBJECT_REPLICAS"),
        ({"OBJECT_CALL_SECS": "31"}, "at most CALL_DEADLINE_SECS"),
        ({"OBJECT_ACK_GATE_MS": "30001"}, "at most CALL_DEADLINE_SECS"),
    ],
)
def test_broken_relations_are_refused(environ: dict[str, str], rule: str) -> None:
    """A relation that does not hold is told with both values and their sources."""
    (problem,) = problems_of(environ)
    ((name, value),) = environ.items()

    assert rule in problem
    assert f"{name} = {float(value):g} (from environment {name})" in problem


@pytest.mark.parametrize(
    "environ",
    [
        {"NODE_TTL_SECS": "15"},
        {"NODE_HEARTBEAT_SECS": "6.9"},
        {"OBJECT_STORE_LAG_MS": "1000"},
        {"OBJECT_REPLICAS": "0"},
    ],
)
def test_relations_hold_at_their_edge(environ: dict[str, str]) -> None:
    """The last value before a relation breaks is allowed; without replicas the quorum means nothing."""
    load(environ)


def test_the_fast_profile_is_the_documented_one() -> None:
    """`PROFILE=fast` is heartbeat 0.5, timeout 0.3, admission 2, margin 1, TTL 5, and keeps the relations."""
    c = load({"DOMICILE_PROFILE": "fast"}).config

    assert (c.node_heartbeat_secs, c.node_renew_timeout_secs, c.node_admission_secs) == (0.5, 0.3, 2)
    assert (c.node_fence_margin_secs, c.node_ttl_secs) == (1, 5)
    assert set(PROFILES["fast"]) <= {f.name for f in dataclasses.fields(Config)}


def test_secrets_are_not_shown() -> None:
    """Neither the listing nor an error prints a secret."""
    listed = {row.name: row for row in rows(load({"DOMICILE_BLOBS_SECRET_ACCESS_KEY": "hunter2"}))}
    (problem,) = problems_of({"DOMICILE_BLOBS_SECRET_ACCESS_KEY": "hunter2\n\x01"})

    assert listed["BLOBS_SECRET_ACCESS_KEY"].value == "***"
    assert "hunter2" not in problem


def test_the_listing_has_every_setting_with_value_source_and_meaning() -> None:
    """What `domicile config` prints is the whole table."""
    listed = rows(load({"DOMICILE_ZONE": "z1"}))

    assert [row.name for row in listed] == [f.name.upper() for f in dataclasses.fields(Config)]
    assert all(row.meaning for row in listed)
    assert ("ZONE", "z1", "environment DOMICILE_ZONE") in [row[:3] for row in listed]


@given(st.sampled_from([f.name for f in dataclasses.fields(Config)]), st.text(max_size=12))
def test_any_text_is_taken_or_refused_in_words(name: str, text: str) -> None:
    """No value of any setting makes anything but a configuration or a ConfigError."""
    told = name.upper()
    try:
        load({f"DOMICILE_{name.upper()}": text})
    except ConfigError as error:
        told = str(error)

    assert name.upper() in told
