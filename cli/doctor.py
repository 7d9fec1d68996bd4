"""`domicile doctor`: what one node needs, of this machine and of its servers, each with what to do about it."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import random
import resource
import shutil
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path

import apsw

from domicile.cli import settings
from domicile.cli.doctor_servers import servers
from domicile.cli.failures import CliError, Exit
from domicile.cli.findings import Finding
from domicile.cli.output import Output
from domicile.node.blobs.base import UnfitStoreError
from domicile.node.blobs.opening import open_blobs
from domicile.node.blobs.probe import probe
from domicile.node.clock import SystemClock
from domicile.node.config import Config
from domicile.node.errors import BlobError

SQLITE_MIN = (3, 51, 3)
DISK_FREE_MIN = 1 << 30
SLOW_SYNC_SECS = 0.02
PROBE_SECS = 10.0
FILES_FOR_THE_REST = 1024
FILES_FOR_AN_OBJECT = 3
EARLIEST_SANE_YEAR = 2025
# By name as in /proc/self/mounts.
NETWORK_FILE_SYSTEMS = frozenset({"nfs", "nfs4", "cifs", "smb3", "9p", "fuse.sshfs", "ceph", "glusterfs"})
MEMORY_FILE_SYSTEMS = frozenset({"tmpfs", "ramfs"})


def run(environ: Mapping[str, str], output: Output) -> None:
    """Prints a line a check. Raises CliError when something is broken; warnings are not."""
    config = settings.loaded(environ).config
    findings = list(examine(config))
    if output.as_json:
        output.value([asdict(finding) for finding in findings])
    for finding in findings:
        mark = {"ok": "ok     ", "warning": "warning", "broken": "BROKEN "}[finding.state]
        output.say(
            f"{mark}  {finding.check}: {finding.found}" + (f"\n         -> {finding.fix}" if finding.fix else "")
        )
    broken = [finding.check for finding in findings if finding.state == "broken"]
    if broken:
        raise CliError(f"a node would not run well here: {', '.join(broken)}", Exit.FAILED)


def examine(config: Config) -> Iterator[Finding]:
    """Every check of one node, in the order of what to fix first."""
    data = Path(config.data).absolute()
    checks: tuple[Callable[[], Finding], ...] = (
        sqlite_version,
        lambda: data_directory(data),
        lambda: file_system(data),
        lambda: disk_space(data),
        lambda: blob_store(config, data),
        clock,
        lambda: open_files(config),
        lambda: port(config.listen),
    )
    for check in checks:
        yield check()
    yield from servers(config)


def sqlite_version() -> Finding:
    """The SQLite that apsw brings."""
    version = apsw.sqlite_lib_version()
    if tuple(map(int, version.split(".")[:3])) >= SQLITE_MIN:
        return Finding("SQLite", "ok", version)
    wanted = ".".join(map(str, SQLITE_MIN))
    return Finding("SQLite", "broken", f"{version}, older than {wanted}", "pip install --upgrade apsw")


def data_directory(data: Path) -> Finding:
    """Whether files can be written and synced there, and how fast."""
    probe = data / ".doctor"
    try:
        data.mkdir(parents=True, exist_ok=True)
        began = time.perf_counter()
        with probe.open("wb") as file:
            file.write(bytes(4096))
            file.flush()
            os.fsync(file.fileno())
        took = time.perf_counter() - began
        probe.unlink()
    except OSError as error:
        return Finding(
            "data directory", "broken", f"{data}: {error.strerror}", "give DATA a directory this user may write to"
        )
    found = f"{data}, a synced write takes {took * 1000:.1f} ms"
    if took > SLOW_SYNC_SECS:
        return Finding("data directory", "warning", found, "every answered write waits for syncs: use a faster disk")
    return Finding("data directory", "ok", found)


def file_system(data: Path) -> Finding:
    """Locks and syncs mean nothing on some file systems."""
    kind = mounted_as(existing(data), Path("/proc/self/mounts").read_text())
    if kind in NETWORK_FILE_SYSTEMS:
        return Finding("file system", "broken", f"{kind}: locks there are not SQLite's", "put DATA on a local disk")
    if kind in MEMORY_FILE_SYSTEMS:
        return Finding("file system", "warning", f"{kind}: gone with the machine", "put DATA on a disk")
    return Finding("file system", "ok", kind)


def mounted_as(path: Path, mounts: str) -> str:
    """The type of the file system `path` is on, by the text of /proc/self/mounts: the longest mount point above it."""
    best, kind = -1, "unknown"
    for line in mounts.splitlines():
        point, name = line.split(" ")[1:3]
        point = point.replace("\\040", " ")
        if len(point) > best and path.is_relative_to(point):
            best, kind = len(point), name
    return kind


def existing(path: Path) -> Path:
    """`path`, or its nearest ancestor that is there."""
    while not path.exists():
        path = path.parent
    return path.resolve()


def disk_space(data: Path) -> Finding:
    """Room to write."""
    free = shutil.disk_usage(existing(data)).free
    found = f"{free / (1 << 30):.1f} GiB free"
    if free >= DISK_FREE_MIN:
        return Finding("disk space", "ok", found)
    return Finding("disk space", "broken", found, "free some: a node on a full disk refuses writes")


def clock() -> Finding:
    """Whether the kernel holds the clock to be synchronized. Alarms are told in wall time; nothing else is."""
    year = time.gmtime().tm_year
    if year < EARLIEST_SANE_YEAR:
        return Finding("clock", "broken", f"it is {year} here", "set the clock: alarms fire by it")
    marker = Path("/run/systemd/timesync/synchronized")
    chrony = Path("/run/chrony/chronyd.pid")
    if marker.exists() or chrony.exists():
        return Finding("clock", "ok", "kept by a time service")
    return Finding("clock", "warning", "no time service found", "run chrony or systemd-timesyncd: alarms fire by it")


def open_files(config: Config) -> Finding:
    """Two or three descriptors for each object that is awake."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    need = config.object_residents * FILES_FOR_AN_OBJECT + FILES_FOR_THE_REST
    found = f"{soft} may be open; {config.object_residents} objects awake may need {need}"
    if soft == resource.RLIM_INFINITY or soft >= need:
        return Finding("open files", "ok", found)
    fix = f"ulimit -n {need} (LimitNOFILE= in systemd), or lower OBJECT_RESIDENTS"
    return Finding("open files", "warning", f"{found}; hard limit {hard}", fix)


def port(listen: str) -> Finding:
    """Whether the HTTP address is free."""
    host, _, number = listen.rpartition(":")
    family = socket.AF_INET6 if host.startswith("[") else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host.strip("[]"), int(number)))
        except OSError as error:
            fix = "is a node running already? else set LISTEN to another address"
            return Finding("HTTP address", "warning", f"{listen}: {error.strerror}", fix)
    return Finding("HTTP address", "ok", f"{listen} is free")


def blob_store(config: Config, data: Path) -> Finding:
    """Whether the store keeps a conditional put's promise; one that does not loses answered writes."""
    return asyncio.run(_probe(config, data))


async def _probe(config: Config, data: Path) -> Finding:
    rng = random.Random(os.urandom(16))
    fix = "see BLOBS, BLOBS_ENDPOINT and the keys; docs/operations.md"
    try:
        blobs = await open_blobs(dataclasses.replace(config, data=str(data)), SystemClock(), rng)
        try:
            async with asyncio.timeout(PROBE_SECS):
                await probe(blobs, f"probe/{rng.getrandbits(128):032x}")
        finally:
            await blobs.close()
    except UnfitStoreError as error:
        return Finding("blob store", "broken", str(error), "two nodes could overwrite each other: use another store")
    except TimeoutError:
        return Finding("blob store", "broken", f"{config.blobs}: no answer within {PROBE_SECS:g} s", fix)
    except (BlobError, OSError) as error:
        return Finding("blob store", "broken", f"{config.blobs}: {error}", fix)
    return Finding("blob store", "ok", f"{config.blobs} keeps conditional puts")
