#!/bin/sh
# One of two guests, joined by a cable. Kernel arguments: rxe_node=1 or 2.
. /test/lib.sh
other=$((3 - rxe_node))
card=$(ls -d /sys/class/net/*/device | head -1); card=${card%/device}; card=${card##*/}
ip link set $card mtu 1500; ip addr add 10.9.7.$rxe_node/24 dev $card; ip link set $card up
rdma link add rxe0 type rxe netdev $card || { bad "no rxe device"; finish; }
wait_for_gid rxe0
for k in $(seq 60); do ping -c 1 -W 1 10.9.7.$other >/dev/null && break; done
ping -c 1 -W 2 10.9.7.$other >/dev/null && ok "the other guest answers" \
  || { bad "the other guest does not answer"; finish; }
# An emulated card between the guests is slow: a tenth of the steps.
check "a job of four ranks, two in each guest" $rxe_limit \
  rxe part $((rxe_steps / 10)) $((rxe_node - 1)) 10.9.7.1 rxe0
finish
