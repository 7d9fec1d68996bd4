"""TLS between nodes, and the cluster's secret, from the files the settings name.

Both ends show a certificate signed by PEER_CA_FILE's authority: who has none cannot speak. The dialer also checks the
name: the certificate must carry, as a subject alternative name, the host under which the node is dialled, which is the
one in ADVERTISE (else PEER_LISTEN): a DNS name, or an IP address as an IP entry. The listener checks no name: a node
dials from anywhere. One certificate serves both roles, so it must not be limited to one in its extended key usage.
"""

from __future__ import annotations

import ssl

from domicile.node.config import ConfigError
from domicile.node.wire.hello import SECRET_BYTES_MIN
from domicile.node.wire.network import PeerTls


def peer_tls(ca_file: str, cert_file: str, key_file: str) -> PeerTls | None:
    """None when all three are empty. Raises ConfigError when some are missing, or cannot be used."""
    files = {"PEER_CA_FILE": ca_file, "PEER_CERT_FILE": cert_file, "PEER_KEY_FILE": key_file}
    missing = [name for name, path in files.items() if not path]
    if len(missing) == len(files):
        return None
    if missing:
        raise ConfigError([f"TLS between nodes needs {', '.join(files)} together; missing: {', '.join(missing)}"])
    try:
        return PeerTls(
            _context(ssl.PROTOCOL_TLS_CLIENT, ca_file, cert_file, key_file),
            _context(ssl.PROTOCOL_TLS_SERVER, ca_file, cert_file, key_file),
        )
    except OSError as error:  # a file that is missing, or (SSLError) is not what it should be
        raise ConfigError([f"the certificates between nodes cannot be used: {error} ({files})"]) from None


def secret_from(text: bytes) -> bytes:
    """The cluster's secret from its file's bytes, white space around it left out. Raises ConfigError if too short."""
    secret = text.strip()
    if len(secret) < SECRET_BYTES_MIN:
        raise ConfigError([f"CLUSTER_SECRET_FILE must hold at least {SECRET_BYTES_MIN} random bytes"])
    return secret


def _context(role: int, ca_file: str, cert_file: str, key_file: str) -> ssl.SSLContext:
    context = ssl.SSLContext(role)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(ca_file)
    context.load_cert_chain(cert_file, key_file)
    return context
