#!/usr/bin/env bash
# Two processes on this machine, two simulated rails of 4 and 2 GB/s, every table of the plugin,
# every byte checked. Then one rail fails and returns while data moves.
set -euo pipefail

cd "$(dirname "$0")/.."
. scripts/own-settings.sh
export LD_LIBRARY_PATH=$PWD/build/softverbs${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
export SOFTVERBS_DEVICES='sout:addr=192.168.200.1/24,rate=4GB;sup:addr=192.168.201.1/24,rate=2GB'
export MPIB_HCA_SOUT=sout MPIB_HCA_SUP=sup MPIB_SUP_SHARE=341

cat <<'TEXT'
Two rails made of software: sout carries 4 GB/s, sup 2 GB/s. The plugin makes one device of them and sends 341/1024
(33.3 %) of each large message over sup, so the two are done at the same time. Two processes, each table of the plugin.

TEXT
build/mpib perf --abi all --sizes 8..64M --factor "${FACTOR:-8}" --time "${TIME:-0.3}"

cat <<'TEXT'
Now the link of sup goes down while messages are in flight, and up again later. Every message arrives, and every byte
is still checked. The stall is the longest time in which no message was completed. "sup returns" lasts from the repair
until sup carries data again: the plugin waits half a second before it trusts the link.

TEXT
exec build/mpib perf --sizes 1M --fault sup:link=down --time "${TIME:-0.5}"
