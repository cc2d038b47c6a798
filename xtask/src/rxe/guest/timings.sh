#!/bin/sh
# Every backend that the guest has, in turn: what verbs over Soft-RoCE take of the time of TCP on
# the same emulated machine. Nothing else is said by these times.
. /test/lib.sh
. /test/cable.sh
sizes="-b 1K -e 4M -f 8 -n 30 -w 5 -c every --ranks 2"
for round in 1 2 3; do
  check "round $round: local, shm, tcp" 240 \
    headlong bench all_reduce --backend local,shm,tcp $sizes $patient
  check "round $round: verbs" 240 \
    headlong bench all_reduce --backend verbs --ranks-per-node 1 $sizes $patient
done
finish
