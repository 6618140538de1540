"""A root file system that systemd boots, in namespaces of its own."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from tests.deploy.chroot import PATH
from tests.feeder.support import until

PATIENCE = 60.0
TARGET = "[Unit]\nWants=systemd-journald.service\n"
"""Of the system's services the log alone is started."""
BOOT = """
set -e
root=$1
echo $$ > "$2/cgroup.procs"
exec unshare --mount --pid --uts --ipc --net --cgroup --fork --kill-child sh -c '
set -e
mount --make-rprivate /
mount --bind "$0" "$0"
cd "$0"
mount -t proc proc proc
mount --bind proc/sys proc/sys
mount -o remount,bind,ro proc/sys
mount -t sysfs -o ro sysfs sys
mount -t cgroup2 cgroup2 sys/fs/cgroup
for place in run tmp dev; do mount -t tmpfs tmpfs $place; done
for device in null zero full random urandom tty; do
    touch dev/$device
    mount --bind /dev/$device dev/$device
done
mkdir -p dev/pts dev/shm old
mount -t devpts -o newinstance,ptmxmode=0666 devpts dev/pts
ln -s pts/ptmx dev/ptmx
ip link set lo up
pivot_root . old
umount -l /old
exec env -i container=lxc PATH="$PATH" /lib/systemd/systemd --system --unit=test.target
' "$root"
"""


def cgroups() -> Path | None:
    """Return where version 2 of control groups is mounted, which systemd needs."""
    mounts = (line.split() for line in Path("/proc/self/mounts").read_text().splitlines())
    places = [Path(place) for _, place, kind, *_ in mounts if kind == "cgroup2"]
    return next((place for place in places if os.access(place, os.W_OK)), None)


class Machine:
    """A system that systemd runs, without a network.

    Args:
        root: Its root file system, with systemd in it.
        cgroups: Where control groups are mounted.
    """

    def __init__(self, root: Path, cgroups: Path) -> None:
        (root / "etc/systemd/system/test.target").write_text(TARGET)
        self._group = cgroups / f"streamrec-test-{os.getpid()}"
        self._group.mkdir()
        boot = ["sh", "-c", BOOT, "sh", str(root), str(self._group)]
        with (root / "boot.log").open("w") as log:
            self._process = subprocess.Popen(boot, stdout=log, stderr=log)

    def wait(self) -> None:
        """Return when systemd answers."""
        until(self._is_up, PATIENCE)

    def close(self) -> None:
        """End all of its processes."""
        self._process.kill()
        self._process.wait()
        until(self._is_gone, PATIENCE)

    def run(self, *command: str, user: str = "root") -> subprocess.CompletedProcess[str]:
        """Run a command in it to its end."""
        spaces = ["--mount", "--pid", "--uts", "--ipc", "--net", "--cgroup"]
        words = ["nsenter", f"--target={self._init()}", *spaces]
        words += ["setpriv", f"--reuid={user}", f"--regid={user}", "--init-groups"]
        words += ["env", "-i", f"PATH={PATH}", *command]
        return subprocess.run(words, capture_output=True, text=True, check=False)

    def property(self, unit: str, name: str) -> str:
        """Return a property of a unit."""
        return self.run("systemctl", "show", f"--property={name}", "--value", unit).stdout.strip()

    def log(self, unit: str) -> str:
        """Return the log of a unit."""
        return self.run("journalctl", f"--unit={unit}", "--no-pager", "--output=cat").stdout

    def _init(self) -> str:
        """Return the number, out here, of its first process; nothing while there is none."""
        children = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children")
        return children.read_text().strip()

    def _is_up(self) -> bool:
        """Return whether systemd answers in there; out here it is never asked."""
        assert self._process.poll() is None, "it does not boot: boot.log in its root says why"
        init = self._init()
        is_there = bool(init) and Path(f"/proc/{init}/comm").read_text() == "systemd\n"
        return is_there and self.run("systemctl", "show-environment").returncode == 0

    def _is_gone(self) -> bool:
        """Remove its control groups, the innermost first; return whether nothing runs in them."""
        try:
            for place, _, _ in os.walk(self._group, topdown=False):
                Path(place).rmdir()
        except OSError:
            return False
        return True
