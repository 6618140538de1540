"""Carries out the Dockerfile and runs its image, with a chroot of Debian for the base image.

The chroot has Debian's Python 3.13 as a virtual environment at ``/usr/local``, where the base image
has its own. A container is a process with its own mounts and process numbers and a root file system
that it cannot write to.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.deploy.dockerfile import ROOT, files_of, stages

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from tests.deploy.dockerfile import Instruction

RELEASE = "trixie"
TOOLS = ("debootstrap", "ip", "nsenter", "unshare")
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
CERTIFICATES = "/etc/ssl/certs/ca-certificates.crt"
CONTAIN = """
set -e
root=$1 user=$2 shared=$3
shift 3
mount --bind "$root" "$root"
mount -o remount,bind,ro "$root"
mount -t tmpfs tmpfs "$root/tmp"
mount --bind "$shared" "$root/run"
mount -t proc proc "$root/proc"
exec chroot --userspec="$user" "$root" /usr/bin/env -i "$@"
"""


@cache
def missing() -> str | None:
    """Return the reason for which no chroot can be made here."""
    if os.geteuid() != 0:
        return "it takes root"
    absent = [tool for tool in TOOLS if not shutil.which(tool)]
    if absent:
        return f"{', '.join(absent)}: not installed"
    apart = ["unshare", "--mount", "--pid", "--net", "--fork", "true"]
    is_allowed = subprocess.run(apart, capture_output=True, check=False).returncode == 0
    return None if is_allowed else "no namespaces may be made here"


def make_base(root: Path) -> None:
    """Make a Debian with ``python`` and ``pip`` in ``/usr/local``.

    Like Debian's images of containers it does not wait for the disk after each package.
    """
    packages = "--include=python3-dev,python3-venv,ca-certificates"
    _done(["debootstrap", "--variant=minbase", packages, RELEASE, str(root)])
    (root / "etc/dpkg/dpkg.cfg.d/docker-apt-speedup").write_text("force-unsafe-io\n")
    for name in ("/etc/resolv.conf", "/etc/hosts", CERTIFICATES):
        shutil.copy(name, f"{root}{name}")
    _done(["chroot", str(root), "python3", "-m", "venv", "/usr/local"])


class Image:
    """A root file system, and what the Dockerfile says about running it.

    Args:
        base: The directory of the base image.
        root: The directory to make.
        stages: The images of earlier stages, by name.
    """

    def __init__(self, base: Path, root: Path, stages: Mapping[str, Image]) -> None:
        _done(["cp", "--archive", str(base), str(root)])
        self.root = root
        self.user = "0:0"
        self.environment = {"PATH": PATH}
        self.entrypoint: list[str] = []
        self.command: list[str] = []
        self.health: list[str] = []
        self._directory = "/"
        self._stages = stages

    def carry_out(self, step: Instruction) -> None:
        """Do what an instruction says."""
        match step.word:
            case "RUN":
                self._run(step.text)
            case "COPY":
                self._copy(step.words)
            case "WORKDIR":
                self._directory = step.text
                self.inside(step.text).mkdir(parents=True, exist_ok=True)
            case "USER":
                self.user = step.text
            case "ENV":
                self.environment |= dict(word.split("=", 1) for word in step.words)
            case "ENTRYPOINT":
                self.entrypoint = step.words
            case "CMD":
                self.command = step.words
            case "HEALTHCHECK":
                self.health = json.loads(step.text.partition("CMD ")[2])
            case "FROM" | "EXPOSE":
                pass
            case word:
                raise NotImplementedError(word)

    def inside(self, path: str) -> Path:
        """Return the place of one of the image's paths."""
        return Path(f"{self.root}{path}")

    def put(self, source: Path, path: str) -> None:
        """Copy a file or a directory into the image, as a volume would show it."""
        target = self.inside(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, target, dirs_exist_ok=True)
        else:
            shutil.copy(source, target)

    def _run(self, text: str) -> None:
        mounts = re.findall(r"--mount=(\S+)", text)
        command = re.sub(r"--mount=\S+", "", text)
        with self._mounted([dict(part.split("=", 1) for part in one.split(",")) for one in mounts]):
            variables = {**self.environment, "PIP_CERT": CERTIFICATES, "HOME": "/root"}
            script = f"cd {self._directory} && {command}"
            chroot = ["unshare", "--pid", "--fork", f"--mount-proc={self.root}/proc", "chroot"]
            shell = [str(self.root), "/usr/bin/env", "-i", *_assigned(variables), "/bin/sh", "-c"]
            _done([*chroot, *shell, script])

    @contextmanager
    def _mounted(self, mounts: list[dict[str, str]]) -> Iterator[None]:
        for one in mounts:
            assert one["type"] == "bind", one
            self.put(self._stages[one["from"]].inside(one["source"]), one["target"])
        yield
        for one in mounts:
            shutil.rmtree(self.inside(one["target"]))

    def _copy(self, words: Sequence[str]) -> None:
        *sources, target = words
        for source in sources:
            for name in files_of(source):
                below = Path(name).relative_to(source) if source != name else Path(name)
                path = self.inside(os.path.normpath(f"{self._directory}/{target}/{below}"))
                path.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(ROOT / name, path)


def build(base: Path, work: Path) -> Image:
    """Carry out all stages; return the last one's image."""
    named: dict[str, Image] = {}
    image: Image | None = None
    for number, steps in enumerate(stages()):
        image = Image(base, work / f"stage-{number}", named)
        for step in steps:
            image.carry_out(step)
        named[steps[0].words[-1]] = image
    assert image is not None
    return image


class Pod:
    """A network with a loopback alone, and a directory that its containers share as ``/run``.

    Args:
        shared: The directory.
    """

    def __init__(self, shared: Path) -> None:
        self._shared = shared
        holder = "ip link set lo up && echo up && exec sleep infinity"
        self._holder = subprocess.Popen(
            ["unshare", "--net", "sh", "-c", holder], stdout=subprocess.PIPE
        )
        assert self._holder.stdout is not None
        assert self._holder.stdout.readline() == b"up\n"

    def close(self) -> None:
        """End it, when nothing runs in it any more."""
        self._holder.kill()
        self._holder.communicate()

    def command(self, *command: str) -> list[str]:
        """Return the command that runs another one in this network."""
        return ["nsenter", f"--net=/proc/{self._holder.pid}/ns/net", *command]

    def contained(
        self, image: Image, *command: str, environment: Mapping[str, str] | None = None
    ) -> list[str]:
        """Return the command that runs an image, as its user."""
        variables = {**image.environment, "HOME": "/nonexistent", **(environment or {})}
        apart = ["unshare", "--mount", "--pid", "--fork", "--kill-child"]
        places = [str(image.root), image.user, str(self._shared)]
        words = [*places, *_assigned(variables), *command]
        return self.command(*apart, "sh", "-c", CONTAIN, "sh", *words)


def first_process(container: subprocess.Popen[Any]) -> int:
    """Return the number, out here, of the process that is number 1 in there."""
    children = Path(f"/proc/{container.pid}/task/{container.pid}/children")
    return int(children.read_text().split()[0])


def _assigned(variables: Mapping[str, str]) -> list[str]:
    return [f"{name}={value}" for name, value in variables.items()]


def _done(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{command}\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
