"""Prints the plugin's file, for NCCL_NET_PLUGIN."""

from . import path

print(path())
