"""The files of nccl-net-mpib: the plugin, the tool mpib, and softverbs."""

import os
import sys

_FOLDER = os.path.dirname(os.path.abspath(__file__))


def path():
    """Returns the plugin's file, for NCCL_NET_PLUGIN."""
    return os.path.join(_FOLDER, "lib", "libnccl-net-mpib.so")


def main():
    """Becomes mpib, with the arguments of this process."""
    tool = os.path.join(_FOLDER, "bin", "mpib")
    os.execv(tool, ["mpib", *sys.argv[1:]])
