#!/bin/sh
# One of two guests, joined by a cable. Kernel arguments: rxe_node=1 or 2.
. /test/lib.sh
other=$((3 - rxe_node))
nic=$(ls -d /sys/class/net/*/device | head -1); nic=${nic%/device}; nic=${nic##*/}
ip link set $nic mtu 1500; ip addr add 10.9.7.$rxe_node/24 dev $nic; ip link set $nic up
rdma link add rxe0 type rxe netdev $nic || { bad "no rxe device"; finish; }
wait_for_gid rxe0
for k in $(seq 60); do ping -c 1 -W 1 10.9.7.$other >/dev/null && break; done
ping -c 1 -W 2 10.9.7.$other >/dev/null && ok "the other guest answers" \
  || { bad "the other guest does not answer"; finish; }
# An emulated NIC between the guests is slow: a tenth of the steps.
check "a job of four ranks, two in each guest" $rxe_limit \
  rxe part $((rxe_steps / 10)) $((rxe_node - 1)) 10.9.7.1 rxe0
finish
