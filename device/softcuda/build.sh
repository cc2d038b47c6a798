#!/bin/sh
# Builds the software CUDA device: build.sh OUT [address|thread] OUT then holds libcuda.so.1,
# libnvrtc.so.13, libcublasLt.so.13 and libnccl.so.2 (each also as lib*.so), for
# HEADLONG_CUDA_LIBS=OUT. With a sanitizer, the kernels that libnvrtc compiles are built with it,
# too; run programs through run-sanitized.sh.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
out=${1:?usage: build.sh OUT [address|thread]}
sanitizer=${2:-${SOFTCUDA_SANITIZE:-}}
mkdir -p "$out"
out=$(cd "$out" && pwd)
cxx=${CXX:-g++}
flags="-std=c++20 -g1 -fPIC -fvisibility=hidden -fno-strict-aliasing -I$here"
flags="$flags -Wall -Wextra -Wno-psabi"
# The driver and the emulator only tell the sanitizers about fibers and ranges; what computes is
# instrumented.
case "$sanitizer" in
  "") tool="" instrument="" ;;
  address) tool="-DSOFTCUDA_ASAN -fno-omit-frame-pointer" instrument="-fsanitize=address" ;;
  thread) tool="-DSOFTCUDA_TSAN -fno-omit-frame-pointer" instrument="-fsanitize=thread" ;;
  *) echo "build.sh: no such sanitizer: $sanitizer" >&2; exit 2 ;;
esac
temporary=$(mktemp -d)
trap 'rm -rf "$temporary"' EXIT

# library SONAME-FILE LINK SOURCES.. : one object per source, all at once, then the library.
library() {
  file=$1 link=$2 extra=$3
  shift 3
  objects="" jobs=""
  for source in "$@"; do
    object="$temporary/$(basename "$source").o"
    objects="$objects $object"
    level=-O1
    case "$source" in */emulator.cpp | */meter.cpp | */cublaslt.cpp) level=-O2 ;; esac
    $cxx $flags $level $tool $extra -c "$source" -o "$object" &
    jobs="$jobs $!"
  done
  for job in $jobs; do wait "$job"; done
  undefined=""
  [ -n "$sanitizer" ] || undefined="-Wl,-z,defs"
  $cxx $extra -shared -Wl,-soname,"$file" $undefined -o "$temporary/$file" $objects $libraries \
    -lpthread -ldl
  mv "$temporary/$file" "$out/$file"
  ln -sf "$file" "$out/$link"
}

build="$sanitizer-$($cxx -dumpfullversion)"
libraries=""
library libcuda.so.1 libcuda.so "" "$here"/emulator.cpp "$here"/driver_*.cpp \
  "$here"/meter*.cpp
library libnvrtc.so.13 libnvrtc.so "-DSOFTCUDA_SOURCE=\"$here\" -DSOFTCUDA_BUILD=\"$build\"" \
  "$here"/nvrtc.cpp
libraries="-Wl,-rpath,\$ORIGIN -L$out -l:libcuda.so.1"
[ ! -f "$here"/cublaslt.cpp ] ||
  library libcublasLt.so.13 libcublasLt.so "$instrument" "$here"/cublaslt.cpp
[ ! -f "$here"/nccl.cpp ] || library libnccl.so.2 libnccl.so "" "$here"/nccl*.cpp
