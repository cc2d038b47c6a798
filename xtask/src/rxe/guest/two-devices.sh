#!/bin/sh
# Everything between two devices of one kernel.
. /test/lib.sh
. /test/cable.sh
before=$(sent va)
check "raw verbs between two devices" 120 rxe raw rxa rxb
[ -z "$rxe_linked" ] || check "ours and the crate ibverbs" 300 rxe linked rxa rxb
check "jobs of four ranks over both" $rxe_limit rxe job $rxe_steps rxa rxb
. /test/bench.sh
benches "write_imm read"
# Where the host could build the software device. The variables are for this check alone.
if [ -d /test/softcuda ]; then
  check "rails between devices" 180 \
    env HEADLONG_CUDA_LIBS=/test/softcuda SOFTCUDA_DEVICES=4 XDG_CACHE_HOME=/test/cache \
    rxe rails rxa rxb
else echo "no rails between devices: no software device"; fi
. /test/train.sh
training && ok "the preset tiny trains over verbs to the weights of local, bit for bit" \
  || bad "training over verbs"
[ $(sent va) -gt $((before + 50)) ] && ok "packets crossed the cable: $(sent va) and $(sent vb)" \
  || bad "no packets on the cable"
finish
