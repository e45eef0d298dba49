#!/usr/bin/env bash
# A stream over the kernel's soft iWARP and soft RoCE beside rdma-core's own benchmarks, and message endpoints over
# soft RoCE beside those of libfabric's verbs, each device in one boot of the virtual machine. Prints the tables of
# docs/performance-rdma.md. Leave the machine alone meanwhile.
#
#   scripts/rdma-ratio.sh [ROUNDS [KIND...]]     (5 rounds, siw and rxe unless given)
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/cargo.sh

rounds=${1:-5}
kinds=("${@:2}")
((${#kinds[@]} > 0)) || kinds=(siw rxe)
cargo build --release >&2
make -s -C ffi-tests >&2
export FI_PROVIDER_PATH=$PWD/target/release FI_PROVIDER=rstream
for kind in "${kinds[@]}"; do
    scripts/vm.sh -d "$kind" -t $((120 + 240 * rounds)) \
        scripts/vm/ratio.sh target/c/cc/verbs_bench "$kind" "$rounds"
done
