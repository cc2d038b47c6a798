# Sourced by the guest's scripts.
# busybox prefers its own `ip`, which knows less.
ip() { /bin/ip "$@"; }
passed=0; failed=0
ok()  { passed=$((passed+1)); echo "TEST ok   $*"; }
bad() { failed=$((failed+1)); echo "TEST FAIL $*"; }
# check NAME SECONDS COMMAND...: it must end well in time; what it prints is shown.
check() {
  name=$1; seconds=$2; shift 2
  if timeout "$seconds" "$@"; then ok "$name"; else bad "$name (status $?)"; fi
}
# gid DEVICE: place of its first IPv4 address among the identifiers.
gid() {
  for i in 0 1 2 3 4 5 6 7; do
    case $(cat /sys/class/infiniband/$1/ports/1/gids/$i 2>/dev/null) in
      0000:0000:0000:0000:0000:ffff:*) echo $i; return;;
    esac
  done; echo none
}
# rxe fills its table of identifiers from a work queue.
wait_for_gid() {
  for k in $(seq 100); do [ "$(gid $1)" != none ] && return; sleep 0.1; done
  bad "$1 has no IPv4 identifier"; finish
}
finish() { echo "TESTS passed=$passed failed=$failed"; [ $failed = 0 ]; exit $?; }
# For every bench: an emulated machine answers late.
patient="--set comm.verbs.timeout=19 --deadline-s 60"
