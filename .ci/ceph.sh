#!/bin/bash
# Ceph's RADOS gateway on this machine alone: a real S3 for the store tests.
#
#   .ci/ceph.sh start    prints the endpoint, for STREAMREC_TEST_S3_ENDPOINT; does nothing if it already answers
#   .ci/ceph.sh outage SECONDS    kills the gateway, says so, and starts it again after a while
#   .ci/ceph.sh stop     ends what `start` began and removes its directory
#
# Needs root and: apt-get install -y --no-install-recommends radosgw ceph-mon ceph-osd
# One monitor, one OSD that keeps objects in memory, one gateway; no authentication between them,
# nothing beyond loopback. S3 keys: test / testsecret. Ports: 19002 (S3), 19050 to 19070 (Ceph's own).
set -euo pipefail

port=19002
endpoint="http://127.0.0.1:$port"
monitor="v2:127.0.0.1:19050"
homes="${TMPDIR:-/tmp}/streamrec-ceph"

say() { echo "ceph.sh: $*" >&2; }

answers() { (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null; }

wait_until_ready() {
    for _ in $(seq 600); do
        if answers; then return; fi
        sleep 0.1
    done
    say "the gateway does not answer after 60 s; its log is in $home/log"
    return 1
}

write_configuration() {
    cat >"$CEPH_CONF" <<CONF
[global]
fsid = $(cat /proc/sys/kernel/random/uuid)
mon host = $monitor
mon initial members = a
public addr = 127.0.0.1
cluster addr = 127.0.0.1
ms bind port min = 19051
ms bind port max = 19070
ms bind msgr1 = false
auth cluster required = none
auth service required = none
auth client required = none
auth allow insecure global id reclaim = false
# without this the gateway's first handshake with the monitor may hang for its 300 s
ms mon client mode = crc
run dir = $home/run
admin socket = $home/run/\$name.asok
pid file = $home/run/\$name.pid
log file = $home/log/\$name.log
osd pool default size = 1
osd pool default min size = 1
osd pool default pg num = 8
osd pool default pgp num = 8
mon allow pool size one = true
mon warn on pool no redundancy = false
mon max pg per osd = 1000
# a full disk under /tmp is the tests' affair, not Ceph's
mon data avail warn = 2
mon data avail crit = 1
osd crush chooseleaf type = 0
osd objectstore = memstore
memstore device bytes = 4294967296
# file systems under containers allow shorter extended attributes
osd max object name len = 460
osd max object namespace len = 64
[mon.a]
mon data = $home/mon
[osd.0]
osd data = $home/osd
[client.rgw]
rgw frontends = beast endpoint=127.0.0.1:$port
rgw enable usage log = false
# keys of customers over plain http: nothing here leaves this machine
rgw crypt require ssl = false
rgw run sync thread = false
rgw thread pool size = 64
rgw gc max objs = 16
CONF
}

start_monitor() {
    monmaptool --create --fsid "$(ceph-conf -c "$CEPH_CONF" --lookup fsid)" --addv a "[$monitor]" "$home/monmap"
    ceph-mon --mkfs -i a --monmap "$home/monmap"
    ceph-mon -i a --setuser root --setgroup root
}

start_osd() {
    local uuid
    uuid=$(cat /proc/sys/kernel/random/uuid)
    timeout 60 ceph osd new "$uuid"
    ceph-osd -i 0 --mkfs --osd-uuid "$uuid" --setuser root --setgroup root
    ceph-osd -i 0 --setuser root --setgroup root
}

run_gateway() {
    radosgw --name client.rgw --setuser root --setgroup root
    wait_until_ready
}

start_gateway() {
    run_gateway
    timeout 60 radosgw-admin user create --uid=test --display-name=test --access-key=test --secret-key=testsecret
}

start() {
    if answers; then
        say "already running"
        echo "$endpoint"
        return
    fi
    home=$(mktemp -d "$homes.XXXXXX")
    say "its files are in $home"
    export CEPH_CONF="$home/ceph.conf"
    mkdir "$home/mon" "$home/osd" "$home/run" "$home/log"
    write_configuration
    # Daemons inherit descriptors: with the log as their stdout, `endpoint=$(ceph.sh start)` ends.
    # (As a plain command: in a condition, bash would not stop at the first failure.)
    trap 'say "did not start:"; tail -n 20 "$home/log/start.log" >&2' EXIT
    (start_monitor; start_osd; start_gateway) >"$home/log/start.log" 2>&1 </dev/null
    trap - EXIT
    echo "$endpoint"
}

outage() {
    local file
    for file in "$homes".*/run/client.rgw.pid; do
        home=${file%/run/*}
        export CEPH_CONF="$home/ceph.conf"
        grep -q '^radosgw' "/proc/$(cat "$file")/comm" || continue
        kill -9 "$(cat "$file")"
        echo "the gateway is gone"
        sleep "$1"
        run_gateway >>"$home/log/start.log" 2>&1 </dev/null
        echo "the gateway is back"
    done
}

stop() {
    local file pid home
    for file in "$homes".*/run/*.pid; do
        [ -f "$file" ] || continue
        pid=$(cat "$file")
        # A pid file outlives its process, and the number may be another's by now.
        if grep -qE '^(radosgw|ceph-)' "/proc/$pid/comm" 2>/dev/null; then
            kill -9 "$pid" && say "ended $(basename "$file" .pid)"
        fi
    done
    for home in "$homes".*; do
        [ ! -d "$home" ] || rm -rf "$home"
    done
}

case "${1:-}" in
    start) start ;;
    outage) outage "${2:?seconds}" ;;
    stop) stop ;;
    *)
        say "usage: $0 start | outage SECONDS | stop"
        exit 2
        ;;
esac
