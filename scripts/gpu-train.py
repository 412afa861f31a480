#!/usr/bin/env python3
"""Trains a small model on two ranks of one GPU with torch's DistributedDataParallel: over NCCL's
sockets, over the plugin on softverbs, and over the plugin while a rail dies and returns. The losses
of every step and the parameters at the end must have the same bits in all three.

usage: gpu-train.py FOLDER LOGS [--cpu]
FOLDER is that of "make gpu-bundle". LOGS gets NCCL's logs and the ranks' output. --cpu shows that this
script works where there is no GPU: gloo on the CPU, without the plugin and without a fault.
Exit code 77: torch or the GPU is missing.
"""

import argparse
import hashlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time

STEPS = 60
# The fault strikes in the first of these steps. The rail is repaired in the second.
FAULT, REPAIR = 20, 30
# Work requests of the rail after which the fault strikes: in the middle of a step.
STRIKE = 3
# Seconds that a repaired rail may take until it carries data.
RETURN = 20
SECONDS = 60
ADDRESSES = [["10.9.0.1", "10.9.1.1"], ["10.9.0.2", "10.9.1.2"]]
UNFIT = 77


def environment(folder, case, rank, fabric, logs):
    """Returns the variables of a rank; the two ranks are two hosts for NCCL."""
    own = {name: value for name, value in os.environ.items() if not name.startswith(("NCCL_", "MPIB_"))}
    path = [folder, f"{folder}/softverbs", own.get("LD_LIBRARY_PATH", "")]
    sout, sup = ADDRESSES[rank]
    own.update(
        NCCL_HOSTID=f"host{rank}",
        NCCL_NET="Socket" if case == "sockets" else "MPIB",
        NCCL_NET_PLUGIN="none" if case == "sockets" else "mpib",
        NCCL_IB_DISABLE="1",
        NCCL_SOCKET_IFNAME="lo",
        # The rails are simulated: they access host memory only.
        NCCL_NET_GDR_LEVEL="LOC",
        NCCL_MAX_NCHANNELS="2",
        NCCL_RAS_ENABLE="0",
        NCCL_DEBUG="INFO",
        NCCL_DEBUG_FILE=f"{logs}/train-{case}-{rank}.nccl.log",
        MPIB_OOB_IF="lo",
        MPIB_HCA_SOUT="sout",
        MPIB_HCA_SUP="sup",
        MPIB_SUP_SHARE="341",
        SOFTVERBS_FABRIC=fabric,
        SOFTVERBS_DEVICES=f"sout:addr={sout}/24;sup:addr={sup}/24",
        LD_LIBRARY_PATH=":".join(filter(None, path)),
        CUBLAS_WORKSPACE_CONFIG=":4096:8",
        GLOO_SOCKET_IFNAME="lo",
        OMP_NUM_THREADS="1",
    )
    return own


class Rail:
    """The second rail of rank 0, by the tools of softverbs and of the plugin."""

    def __init__(self, folder):
        self.folder = folder
        self.device = f"sup@{ADDRESSES[0][1]}"

    def run(self, *command):
        done = subprocess.run(command, capture_output=True, text=True, timeout=20)
        if done.returncode:
            raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip()}")
        return done.stdout

    def control(self, *arguments):
        fabric = os.environ["SOFTVERBS_FABRIC"]
        return self.run(f"{self.folder}/softverbs/softverbs-ctl", "--fabric", fabric, *arguments)

    def arm(self):
        self.control("fault", self.device, "link=down", f"at={STRIKE}", "--pid", str(os.getpid()))

    def heal(self):
        self.control("heal", self.device)

    def traffic(self):
        """Returns what the plugin counts in this process."""
        host = json.loads(self.run(f"{self.folder}/mpib", "stats", str(os.getpid()), "--json"))
        ports = {port["device"]: port for port in host["ports"]}
        return {
            "sent": {name: port["bytes_sent"] for name, port in ports.items()},
            "state": ports["sup"]["state"],
            **{name: host["failover"][name] for name in ("episodes", "returns")},
        }


def train(folder, case, rank, store, result, cpu):
    """Trains as one rank, and writes losses and what the rails did."""
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    device = torch.device("cpu" if cpu else "cuda:0")
    torch.use_deterministic_algorithms(True)
    torch.manual_seed(1)
    group = {} if cpu else {"device_id": device}
    dist.init_process_group("gloo" if cpu else "nccl", init_method=f"file://{store}", rank=rank, world_size=2, **group)
    # 17 MB of gradients, in several messages of each kind of size.
    layers = [torch.nn.Linear(512, 2048), torch.nn.GELU(), torch.nn.Linear(2048, 1536), torch.nn.GELU()]
    model = torch.nn.Sequential(*layers, torch.nn.Linear(1536, 16)).to(device)
    model = DistributedDataParallel(model, device_ids=None if cpu else [0])
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    random = torch.Generator().manual_seed(100 + rank)
    rail, before = Rail(folder), None
    losses, fault, repaired, digest = [], {}, None, None
    step, more = 0, True
    while more:
        if case == "fault" and rank == 0:
            if step == FAULT:
                before = rail.traffic()
                rail.arm()
            if step == REPAIR:
                fault["down"] = rail.traffic()
                rail.heal()
                repaired = time.monotonic()
        inputs = torch.randn(64, 512, generator=random).to(device)
        targets = torch.randint(16, (64,), generator=random).to(device)
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(inputs), targets)
        loss.backward()
        optimizer.step()
        step += 1
        if step <= STEPS:
            losses.append(loss.item().hex())
        if step == STEPS:
            values = b"".join(p.detach().cpu().numpy().tobytes() for p in model.parameters())
            digest = hashlib.sha256(values).hexdigest()
        # Further steps only bring the rail back.
        wait = False
        if step >= STEPS and repaired:
            now = rail.traffic()
            fault.update(after=now)
            if "back" not in fault and now["returns"] > before["returns"]:
                fault["back"] = now
            carries = "back" in fault and now["sent"]["sup"] > fault["back"]["sent"]["sup"]
            wait = not carries and time.monotonic() < repaired + RETURN
        if step >= STEPS:
            flag = torch.tensor([1 if wait else 0], device=device)
            dist.broadcast(flag, 0)
            more = bool(flag.item())
    outcome = {"losses": losses, "digest": digest, "steps": step}
    if before:
        outcome["fault"] = {"before": before, **fault}
    if case != "sockets" and not cpu:
        outcome["traffic"] = rail.traffic()
    if not cpu:
        outcome["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))
    dist.barrier(**({} if cpu else {"device_ids": [0]}))
    dist.destroy_process_group()
    with open(result, "w", encoding="utf-8") as file:
        json.dump(outcome, file)


def run(folder, case, logs, cpu):
    """Runs both ranks of a case. Returns their results."""
    fabric = f"gpu-train-{os.getpid()}-{case}"
    with tempfile.TemporaryDirectory() as scratch:
        ranks = []
        for rank in range(2):
            command = [sys.executable, __file__, folder, logs, "--rank", str(rank), "--case", case]
            command += ["--store", f"{scratch}/store", "--result", f"{scratch}/result-{rank}"]
            with open(f"{logs}/train-{case}-{rank}.log", "w", encoding="utf-8") as output:
                ranks.append(
                    subprocess.Popen(
                        command + (["--cpu"] if cpu else []),
                        env=environment(folder, case, rank, fabric, logs),
                        stdout=output,
                        stderr=subprocess.STDOUT,
                        start_new_session=True,
                    )
                )
        try:
            deadline = time.monotonic() + SECONDS * (10 if cpu else 1)
            while any(rank.poll() is None for rank in ranks):
                failed = [number for number, rank in enumerate(ranks) if rank.poll()]
                if failed or time.monotonic() > deadline:
                    break
                time.sleep(0.1)
            codes = [rank.poll() for rank in ranks]
        finally:
            for rank in ranks:
                if rank.poll() is None:
                    os.killpg(rank.pid, signal.SIGKILL)
                    rank.wait()
        if codes != [0, 0]:
            ends = " and ".join("still running" if code is None else f"exit code {code}" for code in codes)
            raise RuntimeError(f"{case}: {ends} ({logs}/train-{case}-*.log)")
        return [json.load(open(f"{scratch}/result-{rank}", encoding="utf-8")) for rank in range(2)]


def wrong(case, results, control):
    """Returns what is wrong with a case, beside the one over sockets."""
    for rank, (ours, theirs) in enumerate(zip(results, control)):
        for step, (a, b) in enumerate(zip(ours["losses"], theirs["losses"])):
            if a != b:
                yield f"rank {rank}: the loss of step {step} is {float.fromhex(a)!r}, over sockets {float.fromhex(b)!r}"
                break
        if len(ours["losses"]) != STEPS or ours["digest"] != theirs["digest"]:
            yield f"rank {rank}: other parameters after {STEPS} steps than over sockets"
    if "traffic" in results[0]:
        yield from (f"rail {rail} carried nothing" for rail, sent in results[0]["traffic"]["sent"].items() if not sent)
    if case != "fault":
        return
    fault = results[0].get("fault", {})
    if not fault.get("down", {}).get("episodes", 0) > fault.get("before", {}).get("episodes", 0):
        yield f"the rail did not die: {fault}"
    elif "back" not in fault or not fault["after"]["sent"]["sup"] > fault["back"]["sent"]["sup"]:
        yield f"the rail did not return and carry data within {RETURN} s: {fault}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=os.path.abspath)
    parser.add_argument("logs", type=os.path.abspath)
    parser.add_argument("--cpu", action="store_true")
    for name in ("--case", "--store", "--result"):
        parser.add_argument(name, help=argparse.SUPPRESS)
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.rank is not None:
        train(args.folder, args.case, args.rank, args.store, args.result, args.cpu)
        return 0
    try:
        import torch
    except ImportError as e:
        print(f"no torch: {e}")
        return UNFIT
    if not args.cpu and not torch.cuda.is_available():
        print("no GPU: torch.cuda.is_available() is false")
        return UNFIT
    os.makedirs(args.logs, exist_ok=True)
    cases = ["sockets", "plugin"] if args.cpu else ["sockets", "plugin", "fault"]
    control, failed = None, 0
    for case in cases:
        begun = time.monotonic()
        try:
            results = run(args.folder, case, args.logs, args.cpu)
            control = control or results
            problems = list(wrong(case, results, control))
        except RuntimeError as e:
            results, problems = None, [str(e)]
        if control is None:
            problems.append("nothing to compare with")
        failed += bool(problems)
        print(f"{case}: {'; '.join(problems) or 'right'}, {time.monotonic() - begun:.1f} s")
        if results and not problems:
            first, last = (float.fromhex(results[0]["losses"][at]) for at in (0, -1))
            print(f"  {len(results[0]['losses'])} losses of each rank, {first:.6f} to {last:.6f}; parameters {results[0]['digest'][:16]}")
            print(f"  {json.dumps({k: v for k, v in results[0].items() if k not in ('losses', 'digest')})}")
        if control is None:
            failed = len(cases)
            break
    print(f"{len(cases) - failed} of {len(cases)} cases right: {', '.join(cases)}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
