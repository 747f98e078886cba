#!/bin/sh
# Builds and runs the native tests, in build/native-*: plainly, under sanitizers, and for 64-bit Arm in an emulator.
# Arguments choose some of: plain address thread aarch64, and clang.
set -u
cd "$(dirname "$0")/../.."

# build_and_run NAME RUNNER [CMAKE_OPTION...]
build_and_run() {
    name=$1 runner=$2
    shift 2
    directory=build/native-$name
    echo "== $name"
    mkdir -p "$directory"
    { cmake -S engine/kernels/cpu -B "$directory" -DTANDEM_NATIVE_TESTS=ON "$@" &&
        cmake --build "$directory" --parallel "$(nproc)"; } >"$directory/log" 2>&1 || { cat "$directory/log"; return 1; }
    $runner "$directory/native_tests"
}

aarch64() {
    if ! command -v aarch64-linux-gnu-g++ >/dev/null || ! command -v qemu-aarch64 >/dev/null; then
        echo "== aarch64: needs the Debian packages g++-aarch64-linux-gnu and qemu-user"
        return 1
    fi
    build_and_run aarch64 "qemu-aarch64 -L /usr/aarch64-linux-gnu" -DCMAKE_SYSTEM_NAME=Linux \
        -DCMAKE_SYSTEM_PROCESSOR=aarch64 -DCMAKE_CXX_COMPILER=aarch64-linux-gnu-g++
}

quick=-DCMAKE_CXX_FLAGS_RELEASE=-O1  # of compiling, above all
failed=""
for part in ${*:-plain address thread aarch64}; do
    case $part in
        plain) build_and_run plain "" ;;
        address) build_and_run address "" -DTANDEM_SANITIZE=address,undefined $quick ;;
        thread) build_and_run thread "" -DTANDEM_SANITIZE=thread $quick ;;
        aarch64) aarch64 ;;
        clang) build_and_run clang "" -DCMAKE_CXX_COMPILER=clang++ ;;
        *) echo "there is no part $part"; false ;;
    esac || failed="$failed $part"
done
[ -z "$failed" ] || { echo "FAILED:$failed"; exit 1; }
