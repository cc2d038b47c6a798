# Sourced: two machines, node-a and node-b, and the cable between them. A machine is a process that
# holds namespaces of its own, with its own name, addresses, /run and number of this boot. Whatever
# there is ends with the process namespace in which all of this runs.
# A short path: one of a Unix socket has room for 107 bytes.
state=/run
mount -t tmpfs run /run
mkdir -m 755 /run/munge

# on NODE COMMAND...: runs it on that machine.
cat >"$state/on" <<'EOS'
#!/bin/sh
node=$1; shift
exec nsenter --target "$(cat "${0%/*}/$node.pid")" --net --uts --mount --wdns="$PWD" -- "$@"
EOS
# As ssh does: a shell reads the words.
cat >"$state/remote" <<'EOS'
#!/bin/sh
node=$1; shift
exec "${0%/*}/on" "$node" sh -c "$*"
EOS
chmod +x "$state/on" "$state/remote"
on() { "$state/on" "$@"; }

# wait_for WHAT SECONDS COMMAND...: until it succeeds.
wait_for() {
    local what=$1 tries=$(($2 * 10)); shift 2
    until "$@" >/dev/null 2>&1; do
        tries=$((tries - 1))
        [ "$tries" -gt 0 ] || { echo "$what: not in time"; return 1; }
        sleep 0.1
    done
}

# hold NODE: what the first process of a machine does, in its new namespaces.
hold() {
    hostname "$1"
    ip link set lo up
    mount --bind "$state/hosts" /etc/hosts
    mount --bind "$state/$1.boot" /proc/sys/kernel/random/boot_id
    mount -t tmpfs munge /run/munge
    mount -t tmpfs shm /dev/shm
    echo $$ >"$state/$1.pid"
    exec sleep infinity
}

# lose NODE: as if its power were cut. Its processes are gone, and what it had in memory; what runs
# there from now on runs after another boot.
lose() {
    local holder network process
    holder=$(cat "$state/$1.pid")
    network=$(readlink "/proc/$holder/ns/net")
    for process in /proc/[0-9]*; do
        [ "$(readlink "$process/ns/net")" = "$network" ] || continue
        [ "${process#/proc/}" = "$holder" ] || kill -KILL "${process#/proc/}" || true
    done
    on "$1" find /dev/shm -mindepth 1 -delete
    cat /proc/sys/kernel/random/uuid >"$state/$1.boot"
}

machines() {
    printf '127.0.0.1 localhost\n10.77.0.1 node-a node1\n10.77.0.2 node-b node2\n' >"$state/hosts"
    export state
    export -f hold
    local node
    for node in node-a node-b; do
        cat /proc/sys/kernel/random/uuid >"$state/$node.boot"
        unshare --net --uts --mount bash -c "hold $node" &
        wait_for "$node" 60 test -s "$state/$node.pid"
    done
}

# cable DELAY_MS LOSS_PERCENT
cable() {
    /usr/bin/python3 "$scripts/relay.py" "$(cat "$state/node-a.pid")" "$(cat "$state/node-b.pid")" \
        "$1" "$2" >"$out/cable.log" 2>&1 &
    relay=$!
    wait_for "the cable" 60 grep -q ready "$out/cable.log"
    on node-a ip addr add 10.77.0.1/24 dev cable
    on node-b ip addr add 10.77.0.2/24 dev cable
    on node-a ip link set cable mtu 9000 up
    on node-b ip link set cable mtu 9000 up
}

# The cable's own count: a cable that lost nothing has tried nothing.
unplug() {
    kill -TERM "$relay"
    wait "$relay" || true
    local count
    count=$(tail -n 1 "$out/cable.log")
    case $count in
        carried*', lost 0') bad "the cable $count" ;;
        carried*) echo "cable: $count" ;;
        *) bad "the cable ended early: $count" ;;
    esac
}
