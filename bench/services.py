"""Starts the servers that readers read from: object stores, nginx, a feeder."""

from __future__ import annotations

import contextlib
import json
import shutil
import socket
import ssl
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from bench.cases import say
from streamrec.flow.child_process import ChildProcess

STORE_KEYS = {"key": "bench", "secret": "bench-secret"}
START = 10.0
"""Seconds after which nginx must listen; it takes a hundredth of one."""


class Certificate(NamedTuple):
    """A certificate of a server on this machine."""

    path: Path
    """PEM file of the certificate and its key."""
    alone: Path
    """PEM file of the certificate: some clients refuse a key among the authorities."""

    @property
    def trust(self) -> dict[str, str]:
        """Return the variables by which OpenSSL, botocore and curl trust the certificate."""
        names = ("SSL_CERT_FILE", "AWS_CA_BUNDLE", "CURL_CA_BUNDLE", "REQUESTS_CA_BUNDLE")
        return dict.fromkeys(names, str(self.alone))


class Served(NamedTuple):
    """A running store."""

    endpoint: str
    pid: int

    def clear(self) -> None:
        """Set the counters to zero."""
        self._control("DELETE", "statistics")

    def statistics(self) -> dict[str, Any]:
        """Return the counters of requests and bytes."""
        return self._control("GET", "statistics")

    def requests(self) -> list[dict[str, Any]]:
        """Return the last 100,000 requests."""
        found: list[dict[str, Any]] = self._control("GET", "statistics?records")["records"]
        return found

    def _control(self, method: str, what: str) -> dict[str, Any]:
        request = urllib.request.Request(f"{self.endpoint}/_devstore/{what}", method=method)
        trusting = ssl._create_unverified_context() if self.endpoint.startswith("https") else None  # noqa: SLF001 - its certificate is its own
        with urllib.request.urlopen(request, context=trusting) as answer:
            plain: dict[str, Any] = json.load(answer)
        return plain


@contextlib.contextmanager
def store(
    root: Path | None = None,
    *,
    latency: float,
    bandwidth: float | None,
    recipes: Mapping[str, Any] | None = None,
    faults: Sequence[Mapping[str, Any]] = (),
    certificate: Certificate | None = None,
    caps: Mapping[str, float] = MappingProxyType({}),
) -> Iterator[Served]:
    """Run an object store of the datasets below ``root``, or of synthetic objects.

    It reads every shard once before it listens, so that all of them are in the page cache. Requests
    without a signature are answered, too.

    Args:
        root: Directory whose directories are buckets.
        latency: Seconds to the first byte of each answer.
        bandwidth: Bytes a second of a connection, or ``None`` for no limit.
        recipes: Plain values of :class:`streamrec.devstore.SyntheticObjects`, instead of ``root``.
        faults: Plain values of :class:`streamrec.devstore.FaultRule`.
        certificate: Certificate of the store, which speaks TLS if there is one.
        caps: More options of ``python -m streamrec.devstore``, by name.
    """
    options: dict[str, Any] = {"latency": latency, **STORE_KEYS}
    options |= caps if bandwidth is None else {"bandwidth": bandwidth, **caps}
    with tempfile.TemporaryDirectory() as directory:
        plain = {"synthetic": recipes, "faults": list(faults) or None}
        for name, rules in plain.items():
            if rules is not None:
                options[name] = Path(directory, name)
                options[name].write_text(json.dumps(rules))
        options |= {} if root is None else {"root": root}
        arguments = [f"--{name}={value}" for name, value in options.items()]
        if certificate is not None:
            arguments.append(f"--tls={certificate.path}")
        command = ["streamrec.devstore", *arguments, "--anonymous", "--warm"]
        say("starting the store, which reads its shards first")
        with ChildProcess("store", command, Path(directory, "store.log")) as child:
            yield Served(child.ready()["endpoint"], child.process.pid)


@contextlib.contextmanager
def self_signed() -> Iterator[Certificate | None]:
    """Make a certificate for loopback, or ``None`` where there is no ``openssl``."""
    with tempfile.TemporaryDirectory() as directory:
        made, alone = (Path(directory, name) for name in ("with-key.pem", "certificate.pem"))
        command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "30"]
        command += ["-subj", "/CN=localhost"]
        command += ["-addext", "subjectAltName=IP:127.0.0.1,DNS:localhost"]
        # Clients in Rust refuse a server that shows the certificate of an authority.
        command += ["-addext", "basicConstraints=critical,CA:FALSE"]
        command += ["-out", str(made), "-keyout", str(made)]
        if shutil.which("openssl") is None:
            yield None
            return
        subprocess.run(command, capture_output=True, check=True)
        subprocess.run(["openssl", "x509", "-in", made, "-out", alone], check=True)
        yield Certificate(made, alone)


@contextlib.contextmanager
def nginx(root: Path, certificate: Certificate | None) -> Iterator[tuple[str, int]]:
    """Serve the files below ``root``; yield the endpoint and the id of the process.

    Args:
        root: Directory that paths are relative to.
        certificate: Certificate of the server, which speaks TLS if there is one.
    """
    port = _free_port()
    with tempfile.TemporaryDirectory() as directory:
        home = Path(directory)
        (home / "nginx.conf").write_text(_nginx_configuration(home, root, port, certificate))
        say("starting nginx")
        command = ["nginx", "-p", directory, "-c", str(home / "nginx.conf")]
        process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
        try:
            _wait_until_it_listens(port)
            scheme = "http" if certificate is None else "https"
            yield f"{scheme}://127.0.0.1:{port}", process.pid
        finally:
            process.terminate()
            process.wait()


def _nginx_configuration(home: Path, root: Path, port: int, certificate: Certificate | None) -> str:
    """Return a configuration of one process, whose CPU seconds are those of one id."""
    pem = None if certificate is None else certificate.path
    tls = "" if pem is None else f"ssl_certificate {pem}; ssl_certificate_key {pem};"
    listen = f"127.0.0.1:{port}{' ssl' if certificate else ''} backlog=1024"
    kinds = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    places = " ".join(f"{kind}_temp_path {home}/{kind};" for kind in kinds)
    return f"""
daemon off; master_process off; pid {home}/pid; error_log {home}/errors;
events {{ worker_connections 1024; }}
http {{
  access_log off; sendfile on; tcp_nopush on; keepalive_requests 1000000; {places}
  server {{ listen {listen}; {tls} root {root}; }}
}}
"""


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
    return port


def _wait_until_it_listens(port: int) -> None:
    deadline = time.monotonic() + START
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=START).close()
        except ConnectionRefusedError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.01)
        else:
            return


@contextlib.contextmanager
def burner() -> Iterator[tuple[Mapping[str, Any], Mapping[str, int]]]:
    """Run a process that only takes a core's time, to measure the cost of a loaded machine."""
    process = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        yield {}, {}
    finally:
        process.kill()
        process.wait()


class Daemon(NamedTuple):
    """A running ``streamrec serve``."""

    listen: str
    """Address of its clients."""
    status: str
    """``host:port`` of its status page."""
    pid: int
    log: Path
    """File of its standard error, which is gone when the daemon is."""

    def snapshot(self) -> dict[str, Any]:
        """Return what the daemon says of itself."""
        with urllib.request.urlopen(f"http://{self.status}/status.json") as answer:
            plain: dict[str, Any] = json.load(answer)
        return plain

    def until(self, condition: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        while not condition(snapshot := self.snapshot()):
            time.sleep(0.1)
        return snapshot


@contextlib.contextmanager
def feeder(name: str, dataset: Mapping[str, Any]) -> Iterator[tuple[str, int]]:
    """Run a feeder of one dataset; yield the dataset's address and the id of the process.

    Args:
        dataset: Settings of the dataset, plain values; mappings in it become tables.
    """
    with daemon({name: dataset}) as running:
        yield f"{running.listen}/{name}", running.pid


@contextlib.contextmanager
def daemon(datasets: Mapping[str, Mapping[str, Any]], **server: Any) -> Iterator[Daemon]:
    """Run a feeder.

    Args:
        datasets: Settings of the datasets by name, plain values; mappings in them become tables.
        **server: Settings of the daemon, plain values.
    """
    with tempfile.TemporaryDirectory() as directory:
        config, log = Path(directory, "feeder.toml"), Path(directory, "feeder.log")
        server = {"listen": ["tcp://127.0.0.1:0"], "status": "127.0.0.1:0", **server}
        config.write_text(toml({"server": server, "datasets": datasets}))
        command = ["streamrec", "serve", str(config), "--json"]
        say("starting the feeder")
        with ChildProcess("feeder", command, log) as child:
            ready = child.ready()
            yield Daemon(ready["listen"][0], ready["status"], child.process.pid, log)


def toml(tables: Mapping[str, Any], above: str = "") -> str:
    """Return tables of plain values as TOML, which writes values of these kinds as JSON does."""
    text = ""
    for name, value in tables.items():
        path = f"{above}{name}"
        plain = {key: one for key, one in value.items() if not isinstance(one, Mapping)}
        deeper = {key: one for key, one in value.items() if isinstance(one, Mapping)}
        lines = [f"{key} = {json.dumps(one)}\n" for key, one in plain.items()]
        text += f"[{path}]\n{''.join(lines)}{toml(deeper, f'{path}.')}"
    return text
