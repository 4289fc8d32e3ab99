#!/bin/sh
# Tells Spark which GPUs this host has: spark.worker.resource.gpu.discoveryScript (standalone) or
# spark.executor.resource.gpu.discoveryScript (YARN, Kubernetes). Prints {"name": "gpu", "addresses": [UUIDs]}:
# a UUID identifies the same GPU in every process; an index depends on the container and on CUDA's order.
# If CUDA_VISIBLE_DEVICES is set, only those GPUs are listed, so that several workers can share a host.
set -eu

stop() { printf 'gpu_discovery.sh on %s: %s\n' "$(hostname)" "$*" >&2; exit 1; }

command -v nvidia-smi >/dev/null 2>&1 ||
  stop "nvidia-smi was not found: install the NVIDIA driver, or start this container with its GPUs"
if [ -n "${CUDA_VISIBLE_DEVICES:-}" ]; then set -- "--id=$CUDA_VISIBLE_DEVICES"; else set --; fi
found=$(nvidia-smi --query-gpu=uuid --format=csv,noheader "$@" 2>&1) || stop "nvidia-smi failed: $found"
addresses=
for uuid in $found; do
  case $uuid in
    GPU-*) addresses="$addresses${addresses:+, }\"$uuid\"" ;;
    *) stop "nvidia-smi named no GPU but said: $found" ;;
  esac
done
[ -n "$addresses" ] || stop "nvidia-smi lists no GPU"
printf '{"name": "gpu", "addresses": [%s]}\n' "$addresses"
