#!/usr/bin/env python3
"""Runs all checks that need a GPU, in under six minutes. The machine needs NVIDIA's driver, Python 3
and torch with its libnccl; no Rust, no network, and root only beside NCCL's InfiniBand transport.
docs/internals/compat-matrix.md describes the steps.

Writes OUT/gpu-check.md, whose first lines are the verdict, and OUT/gpu-check-logs.tar.gz. Exit code: 0
if no step failed, 1 if one did, 77 without a GPU.
"""

import argparse
import collections
import ctypes
import importlib.util
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time

UNFIT = 77
# Bytes of a step's log in the document; the archive has all of it.
SHOWN = 6000
EVERY = ["--protocols", "simple,ll,ll128", "--counts", "1,1003,300007,2000003", "--times", "1"]
SHORT = ["--counts", "1,300007", "--times", "1"]

# Seconds: the limit. Shows: what a step that passes has shown.
Step = collections.namedtuple("Step", "name seconds shows command")


class Unfit(Exception):
    """The reason why a step cannot run here."""


class Check:
    """The check of one machine."""

    def __init__(self, args):
        self.bundle, self.out, self.softcuda = args.folder, args.out, args.softcuda
        self.only = args.only.split(",") if args.only else []
        self.factor, self.deadline = args.factor, time.monotonic() + args.total * args.factor
        self.total = args.total * args.factor
        self.work = tempfile.mkdtemp(prefix="gpu-check-")
        self.logs = os.path.join(self.work, "gpu-check-logs")
        os.makedirs(self.logs)
        self.results = {}
        # Set once collectives need softverbs' slower way of copying.
        self.copy = []
        # The settings of this shell would change what is shown.
        foreign = ("MPIB_", "NCCL_", "SOFTVERBS_")
        self.environment = {n: v for n, v in os.environ.items() if not n.startswith(foreign)}
        self.find_library(args.library)

    def find_library(self, named):
        """Finds NCCL's library, its release, the table by which it calls plugins, and its CUDA."""
        self.library, self.release, self.missing = named, None, None
        if not named:
            package = importlib.util.find_spec("nvidia.nccl") if importlib.util.find_spec("nvidia") else None
            paths = [os.path.join(p, "lib/libnccl.so.2") for p in package.submodule_search_locations] if package else []
            self.library = next(filter(os.path.isfile, paths), None)
        if not self.library:
            self.missing = "no libnccl.so.2: python3 has no package nvidia.nccl, and --library names none"
            return
        abi = subprocess.run([self.program("mpib"), "abi", "--json", self.library], capture_output=True, text=True)
        if abi.returncode:
            self.missing = abi.stderr.strip()
            return
        facts = json.loads(abi.stdout)["library"]
        self.release, self.table = facts["release"], facts["looks_up"][0]
        with open(self.library, "rb") as file:
            cuda = re.search(rb"NCCL version [0-9.]+\+cuda([0-9]+)", file.read())
        self.cuda = cuda[1].decode() if cuda else "12"

    def program(self, name):
        return os.path.join(self.bundle, name)

    # What the steps run.

    def collectives(self, step, *options, gpu=True):
        if self.missing:
            raise Unfit(self.missing)
        on = ["--gpu"] if gpu and not self.softcuda else []
        command = [self.program("compat-matrix"), "collectives", self.release, "--library", self.library]
        command += ["--cuda", self.cuda, "--build", self.bundle, "--logs", os.path.join(self.logs, step)]
        return [*command, *on, *self.copy, *options]

    def with_adapters(self, step, command):
        """Lets NCCL's InfiniBand transport find simulated adapters, in a mount namespace."""
        tree = os.path.join(self.work, f"tree-{step}")
        os.makedirs(tree, exist_ok=True)
        return [self.program("with-sysfs.sh"), tree, *command, "--tree", tree]

    def bounce(self):
        if self.results.get("plugin", ("",))[0] != "FAILED":
            raise Unfit("not needed: step plugin did not fail")
        self.copy = ["--set", "SOFTVERBS_COPY=bounce"]
        return self.collectives("bounce", "--net", "mpib", *EVERY)

    def windows(self, step, *options):
        host = ["--gpudirect", "--dma-buf", "--vmm"] if self.softcuda else []
        return self.collectives(step, "--net", "mpib", "--windows", *host, *SHORT, *options)

    def peers(self, rails):
        if self.missing:
            raise Unfit(self.missing)
        other = f"{self.library},table=ncclNetIb,abi=v{self.table},merge,name=net_ib {self.release}"
        command = [self.program("mpib-bench"), "compare", "--goals", "--no-instructions", "--only", rails, "--plugin", other]
        return [*command, "--rounds", "3", "--time", "0.1", "--connections", "64"]

    def figures(self):
        command = self.collectives("figures", "--figures", os.path.join(self.logs, "figures.md"), "--rounds", "2", gpu=False)
        probe = subprocess.run(self.with_adapters("probe", ["true"])[:-2], capture_output=True)
        return command if probe.returncode == UNFIT else self.with_adapters("figures", command)

    def train(self):
        cpu = ["--cpu"] if self.softcuda else []
        copy = ["env", self.copy[1]] if self.copy else []
        return [*copy, sys.executable, self.program("gpu-train.py"), self.bundle, os.path.join(self.logs, "train"), *cpu]

    def lanes(self):
        """Returns the steps that use the GPU, and those that measure on the CPU. The lanes run at the
        same time, each on its half of the cores."""
        run = self.collectives
        gpu = [
            Step("plugin", 90, "all collectives over the plugin, with each protocol", lambda: run("plugin", "--net", "mpib", *EVERY)),
            Step("bounce", 60, "the same with softverbs' other way of copying", self.bounce),
            Step("sockets", 60, "the same over NCCL's sockets, the control", lambda: run("sockets", "--net", "socket", *EVERY)),
            Step(
                "net_ib",
                60,
                "the same over NCCL's InfiniBand transport, on the same simulated rails",
                lambda: self.with_adapters("net_ib", run("net_ib", "--net", "ib", *EVERY)),
            ),
            Step("fused", 30, "all collectives over a device that NCCL fuses", lambda: run("fused", "--net", "fused", *SHORT)),
            Step(
                "link_down",
                40,
                "all collectives while rails die and return",
                lambda: run("link_down", "--net", "mpib", "--fault", "link-down", "--strikes", "2", "--counts", "1000003"),
            ),
            Step("train", 120, "DistributedDataParallel: the same bits over sockets, the plugin, and a rail that dies", self.train),
            Step("windows", 25, "all collectives of buffers in windows", lambda: self.windows("windows")),
            Step("put_signal", 25, "ncclPutSignal and ncclWaitSignal", lambda: self.windows("put_signal", "--tests", "put-signal")),
        ]
        cpu = [
            Step("peers_one", 70, "figures beside net_ib, one rail", lambda: self.peers("one")),
            Step("peers_equal", 70, "figures beside net_ib, two equal rails", lambda: self.peers("equal")),
            Step("peers_unequal", 70, "figures beside net_ib, rails of 2 and 1 GB/s", lambda: self.peers("2+1")),
            Step("figures", 240, "figures of collectives on softcuda: plugin, net_ib, sockets", self.figures),
        ]
        return gpu, cpu

    def steps(self):
        return [step for lane in self.lanes() for step in lane]

    # Running them.

    def run(self, step, cores):
        log = os.path.join(self.logs, f"{step.name}.log")
        begun = time.monotonic()
        limit = min(step.seconds * self.factor, self.deadline - begun)
        result, why = "FAILED", None
        with open(log, "w", encoding="utf-8") as output:
            try:
                if self.only and step.name not in self.only:
                    raise Unfit("not in --only")
                command = step.command()
                if limit < 5:
                    raise TimeoutError(f"not run: the {self.total} s of the whole check are over")
                output.write(f"$ {' '.join(command)}\n")
                output.flush()
                code = run(command, output, self.environment, cores, limit)
                result = {0: "passed", UNFIT: "left out"}.get(code, "FAILED")
            except Unfit as e:
                result, why = "left out", str(e)
            except (OSError, TimeoutError, ValueError) as e:
                why = str(e)
            if why:
                output.write(f"{why}\n")
        self.results[step.name] = (result, time.monotonic() - begun, why or last_line(log))
        print(f"{step.name}: {result}: {self.results[step.name][2]}", file=sys.stderr, flush=True)

    def run_all(self):
        lanes = self.lanes()
        cores = sorted(os.sched_getaffinity(0))
        half = len(cores) // 2
        if half < 4:
            for step in [*lanes[0], *lanes[1]]:
                self.run(step, cores)
            self.sharing = f"all steps one after the other on {len(cores)} cores"
            return
        halves = [cores[:half], cores[half:]]
        self.sharing = f"GPU steps on cores {halves[0]}, at the same time figures on cores {halves[1]}"
        threads = [
            threading.Thread(target=lambda lane=lane, own=own: [self.run(step, own) for step in lane])
            for lane, own in zip(lanes, halves)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    # The document.

    def write(self):
        steps = self.steps()
        failed = [step.name for step in steps if self.results[step.name][0] == "FAILED"]
        if failed == ["plugin"] and self.results["bounce"][0] == "passed":
            failed = []
        left_out = [step.name for step in steps if self.results[step.name][0] == "left out"]
        counts = f"{len(steps) - len(failed) - len(left_out)} of {len(steps)} steps passed, {len(failed)} failed"
        with open(self.program("COMMIT"), encoding="utf-8") as file:
            commit = file.read().strip()
        lines = [
            f"# {'FAILED: ' + ', '.join(failed) if failed else 'Passed'}",
            "",
            f"{counts}, {len(left_out)} were left out ({', '.join(left_out) or 'none'}).",
            f"Commit {commit}; {'a dry run on softcuda, without a GPU' if self.softcuda else gpus()}.",
            "",
            "| step | result | seconds | shows | last line, or the reason |",
            "|---|---|---:|---|---|",
        ]
        for step in steps:
            result, seconds, last = self.results[step.name]
            lines.append(f"| {step.name} | {result} | {seconds:.0f} | {step.shows} | {last.replace('|', ' ')} |")
        lines += ["", "## machine", "", "```text", self.machine(), "```"]
        for step in steps:
            text = read(os.path.join(self.logs, f"{step.name}.log"))
            cut = "" if len(text) <= SHOWN else "[…]\n"
            lines += ["", f"## {step.name}", "", "```text", cut + text[-SHOWN:].rstrip(), "```"]
        os.makedirs(self.out, exist_ok=True)
        with open(os.path.join(self.out, "gpu-check.md"), "w", encoding="utf-8") as file:
            file.write("\n".join(lines) + "\n")
        shutil.make_archive(os.path.join(self.out, "gpu-check-logs"), "gztar", self.work, "gpu-check-logs")
        shutil.rmtree(self.work)
        print(f"{lines[0].lstrip('# ')}; {counts}: {self.out}/gpu-check.md", file=sys.stderr)
        return 1 if failed else 0

    def machine(self):
        torch = "import torch; print('torch', torch.__version__, 'of CUDA', torch.version.cuda)"
        commands = [["uname", "-a"], ["ldd", "--version"], ["nvidia-smi"], [sys.executable, "-c", torch]]
        found = [f"NCCL: {self.missing or f'{self.release}, table v{self.table}, CUDA {self.cuda}, {self.library}'}", self.sharing]
        for command in commands:
            try:
                done = subprocess.run(command, capture_output=True, text=True, timeout=30)
                found.append((done.stdout or done.stderr).strip())
            except (OSError, subprocess.TimeoutExpired) as e:
                found.append(f"{command[0]}: {e}")
        return "\n".join(found)

    def check_commands(self):
        """Checks that each step's program knows the step's options, and runs no step."""
        self.library, self.release, self.table, self.cuda, self.missing = "libnccl.so.2", "2.32.3", 12, "13", None
        self.results = {"plugin": ("FAILED",)}
        self.with_adapters = lambda step, command: [*command, "--tree", self.work]
        wrong = 0
        for step in self.steps():
            command = [*step.command(), "--help"]
            done = subprocess.run(command, capture_output=True, text=True)
            if done.returncode:
                print(f"{step.name}: {' '.join(command)}\n{done.stderr}", file=sys.stderr)
                wrong = 1
        shutil.rmtree(self.work)
        return wrong


def run(command, output, environment, cores, limit):
    """Runs a command on these cores. Ends it, with all that it has started, after the limit."""
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        env=environment,
        start_new_session=True,
        preexec_fn=lambda: os.sched_setaffinity(0, cores),
    )
    try:
        return process.wait(limit)
    except subprocess.TimeoutExpired:
        raise TimeoutError(f"stopped: not done after {limit:.0f} s") from None
    finally:
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        process.wait()


def read(path):
    with open(path, encoding="utf-8", errors="replace") as file:
        return file.read()


def last_line(log):
    lines = [line.strip() for line in read(log).splitlines() if line.strip()]
    return " ".join(lines[-1].split())[:300] if lines else "no output"


def gpus():
    done = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True)
    return done.stdout.strip().replace("\n", "; ") or "nvidia-smi lists no GPU"


def no_gpu():
    """Returns why there is no GPU, if so."""
    try:
        driver, count = ctypes.CDLL("libcuda.so.1"), ctypes.c_int()
    except OSError as e:
        return str(e)
    code = driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count))
    return f"the driver has {count.value} devices (error {code})" if code or not count.value else None


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=os.path.abspath, help='that of "make gpu-bundle"')
    parser.add_argument("out", type=os.path.abspath, nargs="?", default="build/gpu-check", help="default: %(default)s")
    parser.add_argument("--library", metavar="FILE", help="instead of the libnccl.so.2 of Python's packages")
    parser.add_argument("--only", metavar="STEP,STEP", help="only these steps of the table")
    parser.add_argument("--softcuda", action="store_true", help="a dry run without a GPU: on softcuda; torch trains on the CPU")
    parser.add_argument("--commands", action="store_true", help="only check that the programs know the options of the steps")
    parser.add_argument("--total", type=int, default=350, metavar="SECONDS", help="limit for everything (default: %(default)s)")
    parser.add_argument("--factor", type=int, default=1, metavar="N", help="this many times the limits, for slow machines")
    args = parser.parse_args()
    if not (args.softcuda or args.commands) and (why := no_gpu()):
        print(f"gpu-check: no GPU: {why}. Nothing was run; --softcuda runs the steps without one.", file=sys.stderr)
        return UNFIT
    check = Check(args)
    if args.commands:
        return check.check_commands()
    names = [step.name for step in check.steps()]
    if unknown := set(check.only) - set(names):
        parser.error(f"--only: no step {', '.join(sorted(unknown))}; expected some of {', '.join(names)}")
    check.run_all()
    return check.write()


if __name__ == "__main__":
    sys.exit(main())
