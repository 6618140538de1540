"""The processes on the other side: object stores, a web server, the feeder daemon."""

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
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from streamrec.demo.processes import Child

__all__ = [
    "STORE_KEYS",
    "Certificate",
    "Served",
    "burner",
    "feeder",
    "nginx",
    "self_signed",
    "serves_tls",
    "store",
]

STORE_KEYS = {"key": "bench", "secret": "bench-secret"}
TLS_OPTION = "--tls"
"""Of devstore's command line."""
START = 10.0
"""Seconds that nginx gets to listen; it takes a hundredth."""


class Certificate(NamedTuple):
    """Of a server on this machine, and its key, in one PEM file."""

    path: Path

    @property
    def trust(self) -> dict[str, str]:
        """The variables by which clients come to trust it: OpenSSL's, botocore's, and curl's."""
        names = ("SSL_CERT_FILE", "AWS_CA_BUNDLE", "CURL_CA_BUNDLE", "REQUESTS_CA_BUNDLE")
        return dict.fromkeys(names, str(self.path))


class Served(NamedTuple):
    """A running store."""

    endpoint: str
    pid: int

    def clear(self) -> None:
        """Count from now on."""
        self._control("DELETE", "statistics")

    def statistics(self) -> dict[str, Any]:
        """What has been asked of it since."""
        return self._control("GET", "statistics")

    def requests(self) -> list[dict[str, Any]]:
        """The last 100,000 of them, one by one."""
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
) -> Iterator[Served]:
    """Serve the datasets below ``root``, or made ones; gives the endpoint and the process's id.

    It has read every shard once before it listens, so that all of them are in the page cache.
    Requests without a signature are answered as well.

    Args:
        root: Its directories are buckets.
        latency: Seconds to the first byte of each answer.
        bandwidth: Bytes a second for each connection; ``None``: all there is.
        recipes: Of :class:`streamrec.devstore.SyntheticObjects`, plain, instead of ``root``.
        faults: Of :class:`streamrec.devstore.Fault`, plain.
        certificate: It speaks TLS, with this.
    """
    options: dict[str, Any] = {"latency": latency, **STORE_KEYS}
    options |= {} if bandwidth is None else {"bandwidth": bandwidth}
    with tempfile.TemporaryDirectory() as directory:
        plain = {"synthetic": recipes, "faults": list(faults) or None}
        for name, rules in plain.items():
            if rules is not None:
                options[name] = Path(directory, name)
                options[name].write_text(json.dumps(rules))
        options |= {} if root is None else {"root": root}
        arguments = [f"--{name}={value}" for name, value in options.items()]
        if certificate is not None:
            arguments.append(f"{TLS_OPTION}={certificate.path}")
        command = ["streamrec.devstore", *arguments, "--anonymous", "--warm", "--until-eof"]
        with Child("store", command, Path(directory, "store.log")) as child:
            yield Served(child.ready()["endpoint"], child.process.pid)


@cache
def serves_tls() -> bool:
    """Whether this devstore speaks TLS."""
    command = [sys.executable, "-m", "streamrec.devstore", "--help"]
    asked = subprocess.run(command, capture_output=True, text=True, check=True)
    return TLS_OPTION in asked.stdout


@contextlib.contextmanager
def self_signed() -> Iterator[Certificate | None]:
    """A certificate for loopback, made now; ``None``: there is no ``openssl`` to make it."""
    with tempfile.TemporaryDirectory() as directory:
        made = Path(directory, "certificate-and-key.pem")
        command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "30"]
        command += [
            "-subj",
            "/CN=localhost",
            "-addext",
            "subjectAltName=IP:127.0.0.1,DNS:localhost",
        ]
        command += ["-out", str(made), "-keyout", str(made)]
        if shutil.which("openssl") is None:
            yield None
            return
        subprocess.run(command, capture_output=True, check=True)
        yield Certificate(made)


@contextlib.contextmanager
def nginx(root: Path, certificate: Certificate | None) -> Iterator[tuple[str, int]]:
    """Serve the files below ``root`` by plain HTTP or TLS; gives the endpoint and a process's id.

    Args:
        root: Of the paths.
        certificate: It speaks TLS, with this.
    """
    port = _free_port()
    with tempfile.TemporaryDirectory() as directory:
        home = Path(directory)
        (home / "nginx.conf").write_text(_nginx_configuration(home, root, port, certificate))
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
    """One process, so that its CPU seconds are those of one id."""
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
    """A process that only takes a core's time: what a loaded machine alone costs."""
    process = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        yield {}, {}
    finally:
        process.kill()
        process.wait()


@contextlib.contextmanager
def feeder(name: str, dataset: Mapping[str, Any]) -> Iterator[tuple[str, int]]:
    """Serve one dataset; gives its address and the process's id.

    Args:
        name: Of the dataset.
        dataset: Its settings, plain; mappings in it become tables.
    """
    with tempfile.TemporaryDirectory() as directory:
        config = Path(directory, "feeder.toml")
        server = {"listen": ["tcp://127.0.0.1:0"], "status": "127.0.0.1:0"}
        config.write_text(toml({"server": server, "datasets": {name: dataset}}))
        command = ["streamrec", "serve", str(config), "--until-eof", "--json"]
        with Child("feeder", command, Path(directory, "feeder.log")) as child:
            yield f"{child.ready()['listen'][0]}/{name}", child.process.pid


def toml(tables: Mapping[str, Any], above: str = "") -> str:
    """Tables of plain values; of these kinds JSON writes the same as TOML."""
    text = ""
    for name, value in tables.items():
        path = f"{above}{name}"
        plain = {key: one for key, one in value.items() if not isinstance(one, Mapping)}
        deeper = {key: one for key, one in value.items() if isinstance(one, Mapping)}
        lines = [f"{key} = {json.dumps(one)}\n" for key, one in plain.items()]
        text += f"[{path}]\n{''.join(lines)}{toml(deeper, f'{path}.')}"
    return text
