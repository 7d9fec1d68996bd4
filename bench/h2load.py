"""h2load as a gRPC client: unary calls of one message, one outstanding on each connection."""

import re
import resource
import shutil
import signal
import struct
import subprocess
import tempfile
import time
from pathlib import Path

from bench.load import Answers, Load
from bench.process import BenchError, die_with_parent

_RUN_SECONDS = 180
_OUTCOME = re.compile(r"(\d+) succeeded, (\d+) failed, (\d+) errored, (\d+) timeout")


def require() -> None:
    """Raises BenchError when it is not installed."""
    if shutil.which("h2load") is None:
        raise BenchError("h2load, which speaks gRPC to it, is not installed: sudo apt install nghttp2-client")


def version() -> str:
    return (
        subprocess.run(["h2load", "--version"], capture_output=True, text=True, check=True)
        .stdout.split("/")[-1]
        .strip()
    )


def field(number: int, value: bytes) -> bytes:
    """A field of a protobuf message; the value shorter than 128 bytes."""
    return bytes([number << 3 | 2, len(value)]) + value


def run(url: str, method: str, message: bytes, load: Load, folder: Path) -> Answers:
    """`load` of its connections and length only. Latencies are whole calls, each kept."""
    with tempfile.TemporaryDirectory(dir=folder) as room:
        body, log = Path(room) / "body", Path(room) / "log"
        body.write_bytes(b"\0" + struct.pack(">I", len(message)) + message)
        length = ["-n", str(load.count)]
        if not load.count:
            length = ["-D", f"{load.seconds * 1000:.0f}ms", "--warm-up-time", f"{load.warm * 1000:.0f}ms"]
        command = [
            *("h2load", "-c", str(load.conns), "-m", "1", "-t", "1", *length, "-d", str(body)),
            *("-H", "content-type: application/grpc", "-H", "te: trailers", f"--log-file={log}", f"{url}/{method}"),
        ]
        used, began = _used_by_children(), time.monotonic()
        ran = subprocess.run(
            command, capture_output=True, text=True, timeout=_RUN_SECONDS, preexec_fn=die_with_parent(signal.SIGKILL)
        )
        if ran.returncode or not log.exists():
            raise BenchError(f"h2load failed: {ran.stderr.strip()[-300:]} {ran.stdout.strip()[-100:]}")
        return _answers(ran.stdout, log, load, time.monotonic() - began, _used_by_children() - used)


def _answers(said: str, log: Path, load: Load, wall: float, cpu: float) -> Answers:
    lines = [line.split("\t") for line in log.read_text().splitlines()]  # start, status, microseconds
    took = sorted(float(micros) for _, status, micros in lines if status == "200")
    outcome = _OUTCOME.search(said)
    if outcome is None or not took:
        raise BenchError(f"h2load said {said.strip()[-300:]!r}")
    errors = sum(int(number) for number in outcome.groups()[1:]) + len(lines) - len(took)
    seconds = load.seconds or wall
    return Answers(
        rate=len(took) / seconds,
        p50_us=took[len(took) // 2],
        p99_us=took[int(len(took) * 0.99)],
        max_us=took[-1],
        kept=len(took),
        # The calls of the warm-up are not in its log.
        answered=round(len(took) * (seconds + load.warm) / seconds),
        seconds=seconds,
        wall=wall,
        client_cpu=cpu,
        errors=errors,
        error=outcome.group(0) if errors else "",
        last="",
    )


def _used_by_children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
