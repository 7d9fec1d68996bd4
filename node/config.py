"""Settings: where they come from, what they may be, and how they hang together (API, "Settings").

    flags > environment (`DOMICILE_` + name; `NODE_*`, `OBJECT_*` also bare) > `domicile.toml` > PROFILE > default

`load` reads nothing itself: environment and file are handed in. Every mistake is found before any socket opens, and all
of them are told at once, each with the setting, its value, where it came from and what is allowed.
"""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Mapping
from dataclasses import Field, dataclass, fields
from typing import Any, NamedTuple

from domicile.node.config_relations import broken_relations
from domicile.node.setting import (
    ADDRESS,
    ADDRESSES,
    BLOBS,
    CONTROL,
    DAYS,
    MAYBE_ADDRESS,
    MAYBE_URL,
    REGION,
    SCRIPT,
    STORE,
    TEXT,
    WORD,
    Kind,
    number,
    setting,
    whole,
    words,
)

PREFIX = "DOMICILE_"
BARE_PREFIXES = ("NODE_", "OBJECT_")
OTHER_NAMES = frozenset({"FAILPOINTS", "GRANT", "LOCK_FD"})  # DOMICILE_ names of the process, not settings of the node
PROFILES: dict[str, dict[str, Any]] = {
    "fast": {
        "node_heartbeat_secs": 0.5,
        "node_renew_timeout_secs": 0.3,
        "node_admission_secs": 2.0,
        "node_fence_margin_secs": 1.0,
        "node_ttl_secs": 5,
    }
}


class ConfigError(Exception):
    """One or more settings cannot be used; `problems` has a line for each."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


@dataclass(frozen=True, kw_only=True)
class Config:
    """Every setting of a node, validated. Units are in the names. Build with `load`; `Config()` is the defaults."""

    # Where the node is and what it stands on.
    region: str = setting("local", REGION, "the region this node is in")
    cluster: str = setting("domicile", WORD, "the cluster's name: the first part of every placement key")
    zone: str = setting("", TEXT, "failure zone; replicas go to distinct zones first")
    placement: str = setting("sqlite:", STORE, "the placement store of this region")
    placement_ca_file: str = setting("", TEXT, "certificate authority the etcd servers are checked against")
    placement_cert_file: str = setting("", TEXT, "client certificate for etcd")
    placement_key_file: str = setting("", TEXT, "key of the client certificate for etcd")
    placement_user: str = setting("", TEXT, "etcd user")
    placement_password_file: str = setting("", TEXT, "file with the etcd user's password")
    control: str = setting("", CONTROL, "the placement store of the control keyspace; empty: as PLACEMENT")
    blobs: str = setting("file:", BLOBS, "the blob store of this region")
    blobs_endpoint: str = setting("", MAYBE_URL, "S3 endpoint, where it is not Amazon's")
    blobs_access_key_id: str = setting("", TEXT, "S3 key id; empty: the S3 client's own search")
    blobs_secret_access_key: str = setting("", TEXT, "S3 secret key", secret=True)
    temporal: str = setting("", MAYBE_ADDRESS, "Temporal's frontend; empty: no workflows")
    temporal_namespace: str = setting("default", TEXT, "Temporal namespace")
    temporal_ca_file: str = setting("", TEXT, "certificate authority of Temporal's frontend; turns TLS on")
    temporal_cert_file: str = setting("", TEXT, "client certificate for Temporal")
    temporal_key_file: str = setting("", TEXT, "key of the client certificate for Temporal")
    # This process.
    app: str = setting("", TEXT, "the application: a file or a module with the object classes")
    name: str = setting("", SCRIPT, "the application's script id for its schedules; empty: the module's name")
    data: str = setting("data", TEXT, "directory of this node's files")
    listen: str = setting("127.0.0.1:8080", ADDRESS, "address the HTTP surface listens on; port 0 takes a free one")
    peer_listen: str = setting("", MAYBE_ADDRESS, "address other nodes reach this one on; empty: no peers")
    advertise: str = setting("", MAYBE_ADDRESS, "address written into the node's row; empty: as listened on")
    ingress: str = setting("", ADDRESSES, "where other regions' nodes call this region: its nodes' peer addresses")
    ingress_url: str = setting("", MAYBE_URL, "base URL of this region's HTTP surface, for people and consoles")
    cluster_secret_file: str = setting("", TEXT, "file with the secret that nodes prove to each other")
    peer_ca_file: str = setting("", TEXT, "certificate authority of the nodes; turns TLS between them on")
    peer_cert_file: str = setting("", TEXT, "this node's certificate; it names the host of ADVERTISE")
    peer_key_file: str = setting("", TEXT, "key of this node's certificate")
    weight: float = setting(1.0, number(0.01, 1000, "shares"), "share of cold objects homed here")
    capacity: int = setting(0, whole(0, 10_000_000, "objects"), "most objects homed here; 0: no limit")
    log: str = setting("json", words("json", "console"), "shape of log lines")
    log_level: str = setting("info", words("debug", "info", "warning", "error"), "least level logged")
    profile: str = setting("", words("", *PROFILES), "preset of the membership's times")
    # Membership (PROTOCOLS section 3).
    node_ttl_secs: int = setting(45, whole(2, 3600, "seconds"), "life of the node's grant without a renewal")
    node_heartbeat_secs: float = setting(5.0, number(0.05, 600, "seconds"), "between renewals of the node's row")
    node_renew_timeout_secs: float = setting(3.0, number(0.05, 600, "seconds"), "longest wait for one renewal")
    node_admission_secs: float = setting(10.0, number(0.1, 3600, "seconds"), "right to serve after a renewal")
    node_fence_margin_secs: float = setting(5.0, number(0.1, 600, "seconds"), "beyond admission before an eviction")
    node_loop_secs: float = setting(15.0, number(0, 3600, "seconds"), "blocked event loop ends the process; 0: never")
    lease_verify_secs: float = setting(600.0, number(1, DAYS, "seconds"), "between re-reads of a resident's lease")
    holder_cache_secs: float = setting(15.0, number(0, 3600, "seconds"), "how long a holder once found is remembered")
    # Replicas and shipping (PROTOCOLS section 7).
    object_replicas: int = setting(3, whole(0, 16, "replicas"), "nodes an owner ships to")
    object_quorum: int = setting(2, whole(0, 16, "replicas"), "acks that answer a call; 0: the manifest answers")
    object_replica_sync: str = setting("fsync", words("fsync", "os"), "when a replica acks; os: from the page cache")
    object_ack_gate_ms: int = setting(10_000, whole(1, 600_000, "milliseconds"), "longest wait for a landing")
    object_wal_rotate_kb: int = setting(4096, whole(16, 1 << 20, "KiB"), "log length that makes a rotation due")
    object_wal_rotate_fraction: float = setting(0.125, number(0.001, 1, "base sizes"), "the same, against the base")
    object_max_segments: int = setting(64, whole(1, 4096, "segments"), "segments that make a rotation due")
    object_ship_concurrency: int = setting(32, whole(1, 4096, "flights"), "store flights at once")
    object_ship_reserved: int = setting(8, whole(0, 4096, "flights"), "of them for flights a caller waits on")
    object_store_interval_ms: int = setting(1000, whole(1, 600_000, "milliseconds"), "age that sends a store flight")
    object_store_lag_ms: int = setting(2000, whole(1, 600_000, "milliseconds"), "furthest the store may be behind")
    object_replica_idle_secs: float = setting(1800.0, number(0, 30 * DAYS, "seconds"), "idle copies leave the disk")
    object_replica_ttl_secs: float = setting(30.0, number(1, DAYS, "seconds"), "refresh of the store's read copy")
    object_journal_mb: int = setting(64, whole(1, 65_536, "MiB"), "the replicas' journal, zero-filled at start")
    # Objects (PROTOCOLS sections 4 to 6).
    object_idle_secs: float = setting(300.0, number(0.05, 30 * DAYS, "seconds"), "idle objects go to sleep")
    object_sweep_secs: float = setting(30.0, number(0.1, DAYS, "seconds"), "between sweeps for due alarms")
    object_sweep_rows: int = setting(256, whole(1, 1000, "rows"), "rows a pass of a sweep")
    object_db_max_mb: int = setting(64, whole(1, 65_536, "MiB"), "largest database of an object")
    object_call_secs: float = setting(10.0, number(0.01, 3600, "seconds"), "longest run of a method")
    object_call_grace_ms: int = setting(1000, whole(1, 600_000, "milliseconds"), "for it to return when interrupted")
    object_mailbox: int = setting(128, whole(1, 65_536, "calls"), "waiting calls an object holds")
    object_idempotency_secs: float = setting(86_400.0, number(1, 365 * DAYS, "seconds"), "life of a call's record")
    object_takeover_wait_ms: int = setting(5000, whole(1, 600_000, "milliseconds"), "for a takeover's read quorum")
    object_read_wait_ms: int = setting(50, whole(1, 600_000, "milliseconds"), "for a read at a replica")
    object_flush_ms: int = setting(50, whole(1, 600_000, "milliseconds"), "for each dirty or called object, at stop")
    object_activations: int = setting(64, whole(1, 4096, "objects"), "laid at once")
    object_residents: int = setting(5000, whole(1, 1_000_000, "objects"), "awake at once")
    object_cache_mb: int = setting(1024, whole(0, 1 << 20, "MiB"), "local cache of chunks")
    object_paged_mb: int = setting(8, whole(1, 65_536, "MiB"), "bases above this may be laid in pages")
    # Calls and operations.
    projects: str = setting("declared", words("declared", "first-use"), "whether calling a project creates it")
    on_incident: str = setting("serve", words("serve", "wait"), "what a takeover without a read quorum does")
    body_max_mb: int = setting(10, whole(1, 1024, "MiB"), "largest request body")
    call_deadline_secs: float = setting(30.0, number(0.05, 3600, "seconds"), "longest life of a call, waiting included")
    move_keep_hours: float = setting(72.0, number(0, 8760, "hours"), "the old copy after a project's move")


@dataclass(frozen=True)
class Loaded:
    """A configuration and where each value came from, by field name: `flag`, `environment …`, a path, `profile …`."""

    config: Config
    sources: dict[str, str]


class Row(NamedTuple):
    """One line of `domicile config`."""

    name: str
    value: str
    source: str
    meaning: str


def load(
    environ: Mapping[str, str],
    toml: str | None = None,
    flags: Mapping[str, Any] | None = None,
    toml_path: str = "domicile.toml",
) -> Loaded:
    """The configuration. `flags` are by field name; None values are flags not given. Raises ConfigError."""
    problems: list[str] = []
    raw: dict[str, tuple[Any, str]] = {}
    raw.update(_from_toml(toml, toml_path, problems))
    raw.update(_from_environ(environ, problems))
    raw.update({name: (value, "flag") for name, value in (flags or {}).items() if value is not None})
    values = {name: _typed(_FIELDS[name], value, source, problems) for name, (value, source) in raw.items()}
    if problems:
        raise ConfigError(problems)
    sources = {name: source for name, (_, source) in raw.items()}
    for name, value in PROFILES.get(values.get("profile", ""), {}).items():
        if name not in values:
            values[name], sources[name] = value, f"profile {values['profile']}"
    config = Config(**values)
    if problems := broken_relations(config, sources):
        raise ConfigError(problems)
    return Loaded(config, sources)


def rows(loaded: Loaded) -> list[Row]:
    """What `domicile config` prints; secrets are masked."""
    return [
        Row(f.name.upper(), _shown(f, getattr(loaded.config, f.name)), loaded.sources.get(f.name, "default"), meaning)
        for f in fields(Config)
        for meaning in [f"{f.metadata['meaning']} ({f.metadata['kind'].allowed})"]
    ]


_FIELDS: dict[str, Field[Any]] = {f.name: f for f in fields(Config)}


def _from_toml(toml: str | None, path: str, problems: list[str]) -> dict[str, tuple[Any, str]]:
    if toml is None:
        return {}
    try:
        table = tomllib.loads(toml)
    except tomllib.TOMLDecodeError as error:
        problems.append(f"{path} is not TOML: {error}")
        return {}
    found: dict[str, tuple[Any, str]] = {}
    for key, value in table.items():
        if key.lower() in _FIELDS:
            found[key.lower()] = (value, path)
        else:
            problems.append(f"{path}: there is no setting {key}{_nearest(key)}")
    return found


def _from_environ(environ: Mapping[str, str], problems: list[str]) -> dict[str, tuple[Any, str]]:
    bare = {n: v for n, v in environ.items() if n.startswith(BARE_PREFIXES) and n.lower() in _FIELDS}
    found: dict[str, tuple[Any, str]] = {n.lower(): (v, f"environment {n}") for n, v in bare.items()}
    for name, value in environ.items():
        short = name.removeprefix(PREFIX)
        if not name.startswith(PREFIX) or short in OTHER_NAMES:
            continue
        if short.isupper() and short.lower() in _FIELDS:
            found[short.lower()] = (value, f"environment {name}")
        else:
            problems.append(f"environment: there is no setting {name}{_nearest(short)}")
    return found


def _nearest(name: str) -> str:
    close = difflib.get_close_matches(name.lower(), _FIELDS, n=1, cutoff=0.6)
    return f"; did you mean {close[0].upper()}?" if close else ""


def _typed(f: Field[Any], value: Any, source: str, problems: list[str]) -> Any:
    kind: Kind = f.metadata["kind"]
    try:
        # A bool would pass as the number 1; a list or table would pass as its text.
        if isinstance(value, bool) or not isinstance(value, str | int | float):
            raise ValueError
        return kind.parse(value.strip() if isinstance(value, str) else repr(value))
    except (ValueError, OverflowError):
        shown = "***" if f.metadata["secret"] else repr(value)
        problems.append(f"{f.name.upper()} = {shown} (from {source}) is not allowed: it takes {kind.allowed}")
        return None


def _shown(f: Field[Any], value: Any) -> str:
    return "***" if f.metadata["secret"] and value else str(value)
