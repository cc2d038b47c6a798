#!/bin/sh
# The guest's first process: mounts, loads modules, runs /test/$rxe_run, says how it ended.
/bin/busybox --install -s /bin
export PATH=/bin:/sbin:/test
mount -t proc proc /proc; mount -t sysfs sys /sys; mount -t devtmpfs dev /dev
mkdir -p /dev/shm /dev/pts; mount -t tmpfs shm /dev/shm; mount -t tmpfs tmp /tmp
echo "GUEST-SHELL kernel=$(uname -r)"
ulimit -l unlimited
hostname guest
/bin/ip link set lo up
for word in $(cat /proc/cmdline); do case $word in rxe_*=*) export "$word";; esac; done
for module in crc32_generic crc32-pclmul ib_uverbs dummy veth virtio_pci virtio_net rdma_rxe; do
  modprobe $module || echo "modprobe $module: failed"
done
mkdir -p /dev/infiniband
/test/$rxe_run; status=$?
dmesg | grep -iE 'rxe|oops|BUG:|WARNING' | tail -5
echo "GUEST-DONE rc=$status"
sync; poweroff -f
