#!/bin/bash
# gcp-storage-emulator on this machine alone: a second opinion on GCS's JSON API for the store tests.
#
#   .ci/gcs.sh start    prints the endpoint, for STREAMREC_TEST_GCS_ENDPOINT; does nothing if it already answers
#   .ci/gcs.sh stop     ends what `start` began and removes its directory
#
# Needs: pip install gcp-storage-emulator. Objects are in memory, nobody is asked for a token, and
# nothing listens beyond loopback. Port: 19023.
set -euo pipefail

port=19023
endpoint="http://127.0.0.1:$port"
home="${TMPDIR:-/tmp}/streamrec-gcs"

say() { echo "gcs.sh: $*" >&2; }

answers() { (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null; }

wait_until_ready() {
    for _ in $(seq 600); do
        if answers; then return; fi
        kill -0 "$1" 2>/dev/null || break
        sleep 0.1
    done
    say "the emulator does not answer:"
    tail -n 20 "$home/log" >&2
    return 1
}

start() {
    if answers; then
        say "already running"
        echo "$endpoint"
        return
    fi
    mkdir -p "$home"
    # The daemon inherits descriptors: with the log as its stdout, `endpoint=$(gcs.sh start)` ends.
    gcp-storage-emulator start --host=127.0.0.1 --port="$port" --in-memory --quiet \
        >"$home/log" 2>&1 </dev/null &
    echo $! >"$home/pid"
    wait_until_ready $!
    echo "$endpoint"
}

stop() {
    local pid
    [ -f "$home/pid" ] || return 0
    pid=$(cat "$home/pid")
    # A pid file outlives its process, and the number may be another's by now.
    if grep -qa 'gcp-storage-emulator' "/proc/$pid/cmdline" 2>/dev/null; then
        kill "$pid" && say "ended the emulator"
    fi
    rm -rf "$home"
}

case "${1:-}" in
    start) start ;;
    stop) stop ;;
    *)
        say "usage: $0 start | stop"
        exit 2
        ;;
esac
