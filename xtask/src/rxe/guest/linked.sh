#!/bin/sh
# Our layer on one device, the crate `ibverbs` on the other. Its program does not start without
# libibverbs, which is there.
. /test/lib.sh
. /test/cable.sh
check "ours and the crate ibverbs" 300 rxe linked rxa rxb
finish
