"""Secrets of a feeder, looked for in all that a run of the daemon says."""

from __future__ import annotations

import json
import signal
import urllib.request
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import streamrec as sr
from streamrec.devstore import DevStore
from tests.cli.support import command, environment, started, streamrec
from tests.feeder.certificates import Authority, write_secret
from tests.feeder.shards import write_shards
from tests.feeder.support import until

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Iterator

INLINE, FILE, OWN, WRONG = (f"swordfish-{name}-token" for name in ("inline", "file", "own", "bad"))
STORE = {"swordfish-key": "swordfish-secret"}


@pytest.fixture
def store(tmp_path: Path) -> Iterator[DevStore]:
    write_shards(tmp_path, shards=2, records=20)
    with DevStore(keys=STORE) as running:
        for shard in sorted(tmp_path.glob("*.tfrecord")):
            running.put(f"data/{shard.name}", shard.read_bytes())
        yield running


def configuration(directory: Path, store: DevStore, authority: Authority) -> Path:
    tls = authority.server(asks=True)
    options = json.dumps(store.storage_options).replace(": ", " = ")
    path = directory / "feeder.toml"
    path.write_text(f"""
    [server]
    listen = ["tls://127.0.0.1:0"]
    status = "127.0.0.1:0"
    workers = 2
    log_level = "debug"
    tls = {{ cert = "{tls.cert}", key = "{tls.key}", client_ca = "{tls.client_ca}" }}
    tokens = ["{write_secret(directory / "all", FILE)}"]
    [datasets.train]
    source = "s3://data/shard-*.tfrecord"
    batch_size = 4
    tokens = ["{write_secret(directory / "own", OWN)}"]
    storage_options = {options}
    """)
    return path


def key_lines(directory: Path) -> list[str]:
    """Return lines that stand in private keys alone."""
    keys = [path.read_text().splitlines() for path in directory.glob("*.key")]
    return [line for lines in keys for line in lines if len(line) > 40]


def test_none_is_in_anything_that_is_said(
    tmp_path: Path, store: DevStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority = Authority(tmp_path)
    config = configuration(tmp_path, store, authority)
    monkeypatch.setenv("STREAMREC_SERVER_TOKEN", INLINE)
    mine = {"ca": authority.file, **authority.pair("client")}
    connect = partial(sr.connect, rank=0, world_size=1, engine="thread")
    checked = streamrec("serve", config, "--check-config", "--open")
    assert checked.code == 0
    said = [checked.out, checked.err]
    log = (tmp_path / "log").open("w+")
    with ExitStack() as stack:
        stack.enter_context(log)
        process = stack.enter_context(
            started("serve", config, "--json", "--debug", stderr=log, env=environment())
        )
        said.append(read_line(process))
        bound = json.loads(said[-1])
        address = f"{bound['listen'][0]}/train"
        for token in (INLINE, FILE, f"file:{tmp_path}/own", WRONG, ""):
            stream = connect(address, tls=mine, token=token)
            try:
                with stream:
                    assert sum(len(batch) for batch in stream) == 40
                    said += [repr(stream), repr(stream.statistics())]
            except sr.FeederRefused as error:
                said += [str(error), repr(error), repr(error.fields()), repr(stream)]
        with pytest.raises(sr.FeederRefused) as caught:
            next(iter(connect(address, tls=mine["ca"], token=FILE)))
        said.append(repr(caught.value))
        for page in ("metrics", "status.json", "readyz"):
            with urllib.request.urlopen(f"http://{bound['status']}/{page}", timeout=30) as answer:
                said.append(answer.read().decode())
        processes = [process.pid, *map(int, children(process.pid))]
        assert len(processes) == 3
        said += [Path(f"/proc/{pid}/cmdline").read_text() for pid in processes]
        write_secret(tmp_path / "all", "swordfish")
        for number, words in (
            (signal.SIGUSR1, "thread MainThread"),
            (signal.SIGHUP, "certificates and tokens stay as they were: server.tokens: "),
        ):
            process.send_signal(number)
            until(lambda words=words: words in Path(log.name).read_text())  # type: ignore[misc]
        process.terminate()
        assert process.wait(100) == 0
        said.append(Path(log.name).read_text())
    everything = "\n".join(said)
    for expected in ("the handshake of TLS failed", "the token is wrong", "a client has gone"):
        assert expected in everything
    assert command("serve", config)[-1] in everything
    secrets = [INLINE, FILE, OWN, WRONG, "swordfish", "X-Amz-Signature=", *key_lines(tmp_path)]
    assert [secret for secret in secrets if secret in everything] == []


def children(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()


def read_line(process: subprocess.Popen[bytes]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().decode()
