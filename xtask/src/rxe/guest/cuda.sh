#!/bin/sh
# Training with a software CUDA device for each rank.
. /test/lib.sh
. /test/cable.sh
. /test/train.sh
what="training with a device for each rank, whose captured step drives the NICs"
training_on_devices && ok "$what, changes no bit" \
  || bad "training on devices over verbs"
finish
