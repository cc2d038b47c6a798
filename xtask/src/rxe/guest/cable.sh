# Sourced: two rxe devices in one kernel that really exchange packets. rxe has its socket in the
# first network namespace only, so both ends of the cable stay there, and rules of routing lead the
# packets over it: else the kernel sees an address of its own.
ip link add va type veth peer name vb
for i in va vb; do ip link set $i mtu 4200; ip link set $i up; done
ip addr add 10.9.1.1/32 dev va; ip addr add 10.9.2.1/32 dev vb
for i in all default va vb; do
  echo 1 >/proc/sys/net/ipv4/conf/$i/accept_local; echo 0 >/proc/sys/net/ipv4/conf/$i/rp_filter
done
ip rule add pref 100 iif va lookup local; ip rule add pref 101 iif vb lookup local
ip rule add pref 110 to 10.9.2.1 lookup 10; ip route add 10.9.2.1/32 dev va src 10.9.1.1 table 10
ip rule add pref 111 to 10.9.1.1 lookup 11; ip route add 10.9.1.1/32 dev vb src 10.9.2.1 table 11
ip rule add pref 200 lookup local; ip rule del pref 0
rdma link add rxa type rxe netdev va && rdma link add rxb type rxe netdev vb \
  || { bad "no rxe devices"; finish; }
wait_for_gid rxa; wait_for_gid rxb
sent() { cat /sys/class/net/$1/statistics/tx_packets; }
