#!/bin/sh
# Sets up everything in .venv: `conf/setup.sh [cpu|gpu] [EXTRA,...]`. Run by `make demo`, `make install`, `make test`,
# `make airflow`. Extras that .venv has already are kept.
# Installs exactly one of the extras cpu and gpu: both packages provide the module faiss.
set -eu
cd "$(dirname "$0")/.."
device=${1:-auto}
venv=.venv

say() { printf 'set-up: %s\n' "$*" >&2; }
stop() { say "$*"; exit 1; }

if [ "$device" = auto ]; then
  if nvidia-smi -L 2>/dev/null | grep -q GPU; then device=gpu; else device=cpu; fi
fi
case $device in cpu) other=gpu ;; gpu) other=cpu ;; *) stop "the device must be cpu or gpu, not '$device'" ;; esac

# --- Java: Spark needs a JRE 17 or newer -------------------------------------------------------
java_major() {
  java=java
  [ -n "${JAVA_HOME:-}" ] && java=$JAVA_HOME/bin/java
  "$java" -version 2>&1 | sed -n 's/.*version "\([0-9]*\).*/\1/p' | head -n 1
}
debian_as_root() { [ -f /etc/debian_version ] && [ "$(id -u)" = 0 ] && [ -z "${DARE_NO_APT:-}" ]; }
install_java() {
  say "installing a JRE 17 with apt-get"
  apt-get update -qq >/dev/null 2>&1 || true
  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq openjdk-17-jre-headless >/dev/null 2>&1 ||
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq openjdk-21-jre-headless >/dev/null 2>&1 || true
}
major=$(java_major || true)
if [ "${major:-0}" -lt 17 ] && debian_as_root; then install_java; major=$(java_major || true); fi
[ "${major:-0}" -ge 17 ] || stop "no Java 17 found: install a JRE 17 (Debian, Ubuntu: apt-get install openjdk-17-jre-headless; macOS: brew install openjdk@17) or set JAVA_HOME"

# --- a browser, for the tests of the report -----------------------------------------------------
case ",${2:-}," in *,test,*) sh conf/browser.sh $venv/browser ;; esac

# --- Python ------------------------------------------------------------------------------------
find_python() {
  for name in ${PYTHON:-python3 python3.12 python3.11 python3.13}; do
    "$name" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 14))' 2>/dev/null &&
      { echo "$name"; return; }
  done
}
# .installed: checksum, device and extras of the last installation, such as 123-456-cpu,airflow,test
stamp=$(cat pyproject.toml conf/constraints.txt conf/setup.sh | cksum | tr ' ' -)-$device
installed=$(cat $venv/.installed 2>/dev/null || true)
extras=
case $installed in *-"$device" | *-"$device",*) extras=${installed#*-"$device"} ;; esac
missing=
for extra in $(echo "${2:-}" | tr ',' ' '); do
  case "$extras," in *",$extra,"*) ;; *) extras=$extras,$extra missing=1 ;; esac
done
case $installed in "$stamp" | "$stamp",*) [ -n "$missing" ] || exit 0 ;; esac
if ! [ -x $venv/bin/python ]; then
  python=$(find_python)
  [ -n "$python" ] || stop "no Python 3.11 to 3.13 found: install one, or name it: make PYTHON=/path/to/python demo"
  "$python" -m venv $venv || stop "$python cannot make a virtual environment (Debian, Ubuntu: apt-get install python3-venv)"
fi
pip="$venv/bin/python -m pip --disable-pip-version-check"

# A CPU needs no CUDA libraries (gigabytes): take PyTorch's CPU build from its own index where it can
# be reached, else what the configured index has.
index=
torch_index=https://download.pytorch.org/whl/cpu
if [ "$device" = cpu ] && [ "$(uname -s)" = Linux ] && $venv/bin/python -c "
import sys, urllib.request
try: urllib.request.urlopen('$torch_index/torch/', timeout=4)
except Exception: sys.exit(1)" 2>/dev/null; then
  index="--extra-index-url $torch_index"
fi

say "installing into $venv for $device (once; a few minutes)"
$pip uninstall -q -y "faiss-$other" 2>/dev/null || true
log=$venv/install.log
# shellcheck disable=SC2086
$pip install -q $index -c conf/constraints.txt -e ".[$device$extras]" >$log 2>&1 ||
  { tail -n 20 $log >&2; stop "pip failed: its messages are above and in $log"; }
$venv/bin/python -c 'import dare_job, faiss, pyspark, torch, transformers' ||
  stop "the installation is not complete: see $log"
echo "$stamp$extras" >$venv/.installed
[ -n "$installed" ] || say "optional parts: make install EXTRAS=encode,gguf"
