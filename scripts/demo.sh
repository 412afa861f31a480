#!/usr/bin/env bash
# Two processes on this machine, two simulated rails of 4 and 2 GB/s, every table of the plugin,
# every byte checked. Then one rail fails and returns while data moves.
set -euo pipefail

cd "$(dirname "$0")/.."
. scripts/own-settings.sh
exec build/mpib demo --factor "${FACTOR:-8}" ${TIME:+--time "$TIME"}
