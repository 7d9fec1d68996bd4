"""The etcd store with certificates and passwords, and opened as the settings say."""

from __future__ import annotations

import asyncio
import datetime
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from ipaddress import IPv4Address
from pathlib import Path
from typing import Any

import pytest
from aetcd.rpc import auth_pb2, rpc_pb2
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from etcd_servers import Etcd, running, until

from domicile.node import etcd_gateway
from domicile.node.config import Config
from domicile.node.etcd_gateway import Access, Gateway, GatewayError, Timer
from domicile.placement import etcd_link
from domicile.placement.embedded import EmbeddedStore
from domicile.placement.etcd import EtcdStore
from domicile.placement.etcd_link import EtcdConfig, Member
from domicile.placement.open import endpoints_of, open_store
from domicile.placement.store import Committed, Event, Put, StoreUnavailable

pytestmark = pytest.mark.anyio
PASSWORD = "correct horse"


class Authority:
    """A certificate authority of one test, and what it has signed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "test authority")])
        own = self._certificate(self._name, self._key, x509.BasicConstraints(ca=True, path_length=0))
        self.ca = self._write("ca.pem", own.public_bytes(serialization.Encoding.PEM))

    def sign(self, name: str, *, common_name: bool = False) -> tuple[Path, Path]:
        """Certificate and key for `name`, good for both ends of a connection to this machine."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)] if common_name else [])
        signed = self._certificate(subject, key, x509.BasicConstraints(ca=False, path_length=None))
        secret = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        return (
            self._write(f"{name}.pem", signed.public_bytes(serialization.Encoding.PEM)),
            self._write(f"{name}.key", secret),
        )

    def _certificate(self, subject: x509.Name, key: Any, constraints: x509.BasicConstraints) -> x509.Certificate:
        now = datetime.datetime.now(datetime.UTC)
        names = x509.SubjectAlternativeName([x509.IPAddress(IPv4Address("127.0.0.1")), x509.DNSName("localhost")])
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(hours=1))
            .not_valid_after(now + datetime.timedelta(days=1))
            .add_extension(names, critical=False)
            .add_extension(constraints, critical=True)
            .sign(self._key, hashes.SHA256())
        )

    def _write(self, name: str, pem: bytes) -> Path:
        (self.folder / name).write_bytes(pem)
        return self.folder / name


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def guarded(authority: Authority, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Etcd]:
    """etcd that wants certificates from everyone and a password from all but who has none to give."""
    cert, key = authority.sign("server")
    flags = (
        *("--client-cert-auth", "--trusted-ca-file", str(authority.ca)),
        *("--cert-file", str(cert), "--key-file", str(key)),
        *("--heartbeat-interval", "50", "--election-timeout", "250", "--bcrypt-cost", "4", "--auth-token-ttl", "2"),
    )
    with running(tmp_path_factory.mktemp("guarded"), 1, flags, "https") as etcd:
        asyncio.run(turn_auth_on(EtcdConfig(etcd.endpoints, authority.ca.read_bytes(), *pems(authority, "admin"))))
        yield etcd


def pems(authority: Authority, name: str) -> tuple[bytes, bytes]:
    cert, key = authority.sign(name)
    return cert.read_bytes(), key.read_bytes()


async def turn_auth_on(config: EtcdConfig) -> None:
    """A root, and a user `node` who may do everything below /c/."""
    member = Member(config.endpoints[0], config)
    assert await member.connected(10.0)
    auth = member.auth
    await auth.UserAdd(rpc_pb2.AuthUserAddRequest(name="root", password="r"))
    await auth.RoleAdd(rpc_pb2.AuthRoleAddRequest(name="root"))
    await auth.UserGrantRole(rpc_pb2.AuthUserGrantRoleRequest(user="root", role="root"))
    await auth.UserAdd(rpc_pb2.AuthUserAddRequest(name="node", password=PASSWORD))
    await auth.RoleAdd(rpc_pb2.AuthRoleAddRequest(name="nodes"))
    below = auth_pb2.Permission(permType=auth_pb2.Permission.READWRITE, key=b"/c/", range_end=b"/c0")
    await auth.RoleGrantPermission(rpc_pb2.AuthRoleGrantPermissionRequest(name="nodes", perm=below))
    await auth.UserGrantRole(rpc_pb2.AuthUserGrantRoleRequest(user="node", role="nodes"))
    await auth.AuthEnable(rpc_pb2.AuthEnableRequest())
    await member.close()


@pytest.fixture
def settings(guarded: Etcd, authority: Authority, tmp_path: Path) -> Config:
    """The settings of a node that is let in."""
    cert, key = authority.sign("node-client")
    (tmp_path / "password").write_text(f"{PASSWORD}\n")
    return Config(
        placement=f"etcd://{guarded.endpoints[0]}",
        placement_ca_file=str(authority.ca),
        placement_cert_file=str(cert),
        placement_key_file=str(key),
        placement_user="node",
        placement_password_file=str(tmp_path / "password"),
    )


@pytest.fixture
async def store(settings: Config) -> AsyncIterator[EtcdStore]:
    store = open_store(settings, time.monotonic, asyncio.sleep)
    assert isinstance(store, EtcdStore)
    yield store
    await store.close()


async def put(store: EtcdStore, key: str) -> int:
    outcome = await store.write([], [Put(key, b"1")])
    assert isinstance(outcome, Committed)
    return outcome.version


async def test_a_node_with_certificate_and_password_is_let_in(store: EtcdStore) -> None:
    """Reads, writes, scans, watches and grants all go with both."""
    grant = await store.grant(5)
    start = await put(store, "/c/a")
    await store.write([], [Put("/c/mine", b"")], grant)
    await store.keep(grant)
    assert [record.key for record in (await store.scan("/c/")).records] == ["/c/a", "/c/mine"]
    watch = store.watch("/c/", start)
    event = await anext(watch)
    assert isinstance(event, Event)
    assert event.key == "/c/mine"
    await watch.aclose()
    await store.revoke(grant)
    assert await store.read(["/c/mine"]) == {}


async def test_a_token_that_ran_out_is_got_anew(store: EtcdStore, guarded: Etcd, settings: Config) -> None:
    """A restarted member knows no token it gave: neither requests nor watches notice."""
    start = await put(store, "/c/a")
    watch = store.watch("/c/", start)
    version = await put(store, "/c/b")
    assert (await anext(watch)).version == version
    (member,) = guarded.members
    member.kill()
    guarded.restart(member)
    await asyncio.to_thread(until, guarded.listening)
    async with asyncio.timeout(30):
        while True:
            try:
                version = await put(store, "/c/c")
                break
            except StoreUnavailable:
                continue
        assert (await anext(watch)).version == version
    await watch.aclose()


async def test_who_is_not_allowed_has_not_written(settings: Config, store: EtcdStore) -> None:
    """A wrong password and a row outside what the user may write are certain refusals, told at once."""
    wrong = EtcdConfig(
        endpoints_of(settings.placement),
        *(Path(p).read_bytes() for p in (settings.placement_ca_file, settings.placement_cert_file)),
        Path(settings.placement_key_file).read_bytes(),
        user="node",
        password="guess",
    )
    stranger = EtcdStore(wrong, time.monotonic, asyncio.sleep)
    # Without a user etcd goes by the common name of the certificate; these have none.
    nobody = EtcdStore(replace(wrong, user="", password=""), time.monotonic, asyncio.sleep)
    for refusing, why in (
        (stranger, "authentication failed"),
        (store, "permission denied"),
        (nobody, "permission denied"),
    ):
        began = time.monotonic()
        with pytest.raises(StoreUnavailable, match=why) as refused:
            await put(refusing, "/elsewhere")
        assert not refused.value.maybe
        assert time.monotonic() - began < etcd_link.REQUEST_SECS, "it is not tried again"
    await stranger.close()
    await nobody.close()


async def test_a_supervisor_is_let_in_the_same_way(store: EtcdStore, guarded: Etcd, settings: Config) -> None:
    """By the gateway, with certificate and password; a token that is no more is got anew."""
    access = Access(
        guarded.endpoints,
        settings.placement_ca_file,
        settings.placement_cert_file,
        settings.placement_key_file,
        settings.placement_user,
        settings.placement_password_file,
    )
    gateway = Gateway(access, Timer(time.monotonic, time.sleep))
    grant = gateway.grant(30)
    await put(store, "/c/nodes/n")
    assert gateway.depart("/c/nodes/n", "/c/departures/n", b"{}")
    (member,) = guarded.members
    member.kill()
    guarded.restart(member)
    assert not gateway.depart("/c/nodes/n", "/c/departures/n", b"again")
    gateway.revoke(grant)
    assert [(r.key, r.value) for r in (await store.scan("/c/departures/")).records] == [("/c/departures/n", b"{}")]
    with pytest.raises(GatewayError, match="denied"):
        gateway.depart("/c/departures/n", "/elsewhere", b"")
    once = iter((0.0, 0.0, 60.0))
    stranger = Gateway(replace(access, cert_file=""), Timer(lambda: next(once), lambda secs: None))
    with pytest.raises(GatewayError):
        stranger.grant(30)


async def test_a_supervisors_certificate_with_a_common_name_is_refused_in_words(
    guarded: Etcd, authority: Authority
) -> None:
    """etcd's gateway takes none; the supervisor is told at once and can say why."""
    cert, key = authority.sign("named", common_name=True)
    began = time.monotonic()
    named = Gateway(
        Access(guarded.endpoints, str(authority.ca), str(cert), str(key)), Timer(time.monotonic, time.sleep)
    )
    with pytest.raises(GatewayError, match="CommonName"):
        named.grant(30)
    assert time.monotonic() - began < etcd_gateway.TRY_SECS, "it is not tried again"


@pytest.mark.parametrize("trusting", ["another authority", "no certificate", "no TLS"])
async def test_a_connection_that_is_not_trusted_is_not_made(
    settings: Config, tmp_path: Path, trusting: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither does the node trust a server it does not know, nor does etcd a node without a certificate."""
    monkeypatch.setattr(etcd_link, "REQUEST_SECS", 0.5)
    config = EtcdConfig(endpoints_of(settings.placement), Path(settings.placement_ca_file).read_bytes())
    if trusting == "another authority":
        config = replace(config, ca=Authority(tmp_path).ca.read_bytes())
    elif trusting == "no TLS":
        config = replace(config, ca=None)
    outside = EtcdStore(config, time.monotonic, asyncio.sleep)
    with pytest.raises(StoreUnavailable):
        await outside.read(["/c/a"])
    await outside.close()


async def test_settings_name_the_store(tmp_path: Path) -> None:
    """`sqlite:` is the embedded store, in the data directory unless a path is given."""
    for placement, path in (("sqlite:", "placement.db"), (f"sqlite:{tmp_path}/else.db", "else.db")):
        store = open_store(Config(placement=placement, data=str(tmp_path)), time.monotonic, asyncio.sleep)
        assert isinstance(store, EmbeddedStore)
        await store.close()
        assert (tmp_path / path).exists()


def test_settings_that_do_not_fit_together_are_refused(tmp_path: Path) -> None:
    """Half of a pair opens nothing; a file that is not there is told as such."""
    etcd = Config(placement="etcd://h:2379, other:2379")
    assert endpoints_of(etcd.placement) == ("h:2379", "other:2379")
    (tmp_path / "x").write_text("x")
    for half in (
        {"placement_cert_file": str(tmp_path / "x")},
        {"placement_user": "node"},
        {"placement_password_file": str(tmp_path / "x")},
        {"placement": "etcd://h"},
        {"placement": "etcd://h:1,"},
        {"placement": "consul://h:1"},
    ):
        with pytest.raises(ValueError, match="PLACEMENT"):
            open_store(replace(etcd, **half), time.monotonic, asyncio.sleep)
    with pytest.raises(FileNotFoundError):
        open_store(replace(etcd, placement_ca_file=str(tmp_path / "none")), time.monotonic, asyncio.sleep)
