# shellcheck shell=bash
# Sourced by run and nightly, on a clean checkout and a clean Debian machine: installs what the tests
# need and starts the stores. It leaves
#
#   $work       a directory that goes when the script ends, the virtual environment in it
#   $command    the README's test command, of which the installation is done
#   check       a function: style, types and the site of the documentation
#
# and exports where the stores answer.
set -euo pipefail

work=$(mktemp -d)
finish() {
    status=$?
    # shellcheck disable=SC2046
    kill $(jobs -p) 2>/dev/null || true
    .ci/ceph.sh stop 2>/dev/null || true  # silent: the last line is pytest's
    .ci/gcs.sh stop 2>/dev/null || true
    rm -rf "$work"
    exit "$status"
}
trap finish EXIT

check() {
    ruff check . && ruff format --check . && mypy && site
}

# Without --quiet, which hides the warnings from --strict, so that it finds none.
site() {
    NO_MKDOCS_2_WARNING=1 mkdocs build --strict --site-dir "$work/site"
}

# A real S3, what the fuzz targets are built with, and what deploy/ is checked by.
start_ceph() {
    local packages="radosgw ceph-mon ceph-osd clang libclang-rt-dev"
    packages+=" debootstrap iproute2 libjpeg-turbo-progs prometheus systemd"
    # shellcheck disable=SC2086
    if ! dpkg --status $packages >/dev/null; then
        apt-get update -qq
        DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $packages
    fi
    .ci/ceph.sh start >"$work/s3"
}

# The command is the README's own: the block under the marker.
command=$(sed -n '/<!-- the test command -->/,/^```$/p' README.md | sed '1,2d;$d')
[ -n "$command" ] || { echo "the README names no test command"; exit 1; }

install() {
    # With the README's: what we are held against, and the loaders that we work with. In two commands,
    # so that this core compiles the tests' assertions once while the other one unpacks. uv takes a
    # quarter of pip's processor time; pip knows more sources, where uv finds a package missing.
    local ours="${command%&&*} -e '.[deploy,docs]' gcp-storage-emulator"
    pip install uv || return
    eval "uv $ours" || eval "$ours" || return
    python -m pytest -q --collect-only >/dev/null 2>&1 &
    local beside="tensorflow-cpu torch==2.13.0 torchdata accelerate lightning transformers pyarrow"
    beside+=" jax orbax-checkpoint pandas polars tensorboard wandb"
    beside+=" tensorflow-datasets mlflow-skinny sqlalchemy alembic"  # mlflow itself needs an older pyarrow
    # shellcheck disable=SC2086
    uv pip install --no-cache $beside || pip install $beside || return
    [ "$(uname -m)" != x86_64 ] || .ci/helm.sh "$work/venv/bin" || return
    wait $! || true  # it may have met a package that was not yet whole
}

ceph=
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    start_ceph >"$work/ceph.log" 2>&1 &
    ceph=$!
fi

python3 -m venv "$work/venv"
# shellcheck disable=SC1091
. "$work/venv/bin/activate"
export PIP_DISABLE_PIP_VERSION_CHECK=1
export PIP_COMPILE=0  # most of TensorFlow's files are never imported
unset PYTHONDONTWRITEBYTECODE  # what is imported is compiled once, not in each of the tests' processes
export STREAMREC_BUILD_KERNEL=require  # a kernel in C that cannot be built is a failure here
install >"$work/install.log" 2>&1 || { cat "$work/install.log"; exit 1; }

STREAMREC_TEST_GCS_ENDPOINT=$(.ci/gcs.sh start)
export STREAMREC_TEST_GCS_ENDPOINT
echo "GCS's emulator answers at $STREAMREC_TEST_GCS_ENDPOINT"
if [ -n "$ceph" ]; then
    wait "$ceph" || { cat "$work/ceph.log"; exit 1; }
    STREAMREC_TEST_S3_ENDPOINT=$(cat "$work/s3")
    export STREAMREC_TEST_S3_ENDPOINT
    echo "Ceph's gateway answers at $STREAMREC_TEST_S3_ENDPOINT"
    export STREAMREC_TEST_FUZZ=require
fi

# One worker more than cores: tests wait for processes and servers, too.
export PYTEST_XDIST_AUTO_NUM_WORKERS=$(($(nproc) + 1))
