#!/bin/sh
# Everything between two devices of one kernel.
. /test/lib.sh
. /test/cable.sh
before=$(sent va)
check "raw verbs between two devices" 120 comm-rxe raw rxa rxb
check "jobs of four ranks over both" $rxe_limit comm-rxe job $rxe_steps rxa rxb
. /test/train.sh
training && ok "the preset tiny trains over verbs to the weights of local, bit for bit" || bad "training over verbs"
[ $(sent va) -gt $((before + 50)) ] && ok "packets crossed the cable: $(sent va) and $(sent vb)" || bad "no packets on the cable"
finish
