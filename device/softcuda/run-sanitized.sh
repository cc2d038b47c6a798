#!/bin/sh
# Runs a program on the software device with its kernels under a sanitizer:
#   run-sanitized.sh address|thread COMMAND..
#       COMMAND may be `cargo test ..`: then only the test programs run under it
#   run-sanitized.sh self-test
#       the sanitizers must report the mistakes planted in the conformance tests
# address: AddressSanitizer and UndefinedBehaviorSanitizer. thread: ThreadSanitizer; each stream is
# a thread of its own, so a missing event wait is reported, too, as are missing barriers and
# unordered accesses of two blocks. The libraries are built below
# ${CARGO_TARGET_DIR:-target}/softcuda-<sanitizer> when they are missing or older than their
# sources. Exit code: the command's; a report of a sanitizer ends the program, or makes its exit
# code 66.
set -eu
here=$(cd "$(dirname "$0")" && pwd)

if [ "$1" = self-test ]; then
  cd "$here/../.."
  for mistake in address:a_read_past_the_end_of_an_allocation \
    address:a_read_past_the_end_of_shared_memory thread:a_removed_barrier \
    thread:a_removed_wait_between_streams thread:blocks_that_write_one_word; do
    sanitizer=${mistake%%:*} test=${mistake#*:}
    text=$("$0" "$sanitizer" cargo test --release -q -p headlong-device --test conformance -- \
      --ignored --exact "software::$test" 2>&1) &&
      failed=false || failed=true
    if ! $failed || ! echo "$text" | grep -q "Sanitizer: \|runtime error: "; then
      echo "$text" >&2
      echo "run-sanitized.sh: the $sanitizer sanitizer does not report $test" >&2
      exit 1
    fi
    report=$(echo "$text" | grep -o "SUMMARY: .*\|runtime error: .*" | head -1)
    echo "reported, as it must be: $test: $report"
  done
  exit 0
fi

sanitizer=$1
shift
case "$sanitizer" in
  address) library=libasan.so ;;
  thread) library=libtsan.so ;;
  *) echo "usage: run-sanitized.sh address|thread COMMAND.. | self-test" >&2; exit 2 ;;
esac
export SOFTCUDA_SANITIZE="$sanitizer"
if [ -z "${SOFTCUDA_SANITIZED_LIBS:-}" ]; then
  target=${CARGO_TARGET_DIR:-$here/../../target}
  out=$target/softcuda-$sanitizer
  last=$out/libnvrtc.so.13
  if [ ! -f "$last" ] ||
    [ -n "$(find "$here" -newer "$last" -type f -name '*.[chs]*' -print -quit)" ]; then
    mkdir -p "$target"
    "$here/build.sh" "$out" "$sanitizer"
  fi
  SOFTCUDA_SANITIZED_LIBS=$(cd "$out" && pwd)
  export SOFTCUDA_SANITIZED_LIBS
fi
export HEADLONG_CUDA_LIBS="$SOFTCUDA_SANITIZED_LIBS"
if [ "$1" = cargo ]; then
  export CARGO_TARGET_X86_64_UNKNOWN_LINUX_GNU_RUNNER="$here/run-sanitized.sh $sanitizer"
  exec "$@"
fi
# The software device's own locks are hidden from ThreadSanitizer: only what CUDA promises is order.
export ASAN_OPTIONS="detect_leaks=0:${ASAN_OPTIONS:-}"
export UBSAN_OPTIONS="print_stacktrace=1:${UBSAN_OPTIONS:-}"
quiet="ignore_noninstrumented_modules=1:report_mutex_bugs=0:report_thread_leaks=0"
export TSAN_OPTIONS="$quiet:exitcode=66:${TSAN_OPTIONS:-}"
LD_PRELOAD=$(${CXX:-g++} -print-file-name=$library)
# ThreadSanitizer wants the program at the usual addresses.
if [ "$sanitizer" = thread ] && setarch -R true 2>/dev/null; then
  exec setarch -R env LD_PRELOAD="$LD_PRELOAD" "$@"
fi
export LD_PRELOAD
exec "$@"
