//! The table of codes. A new code takes the next number of its group; the compiler refuses a number
//! that an entry has or had.

use super::{Code, Group, Of};

/// Numbers of entries that were removed. They are not given again.
pub const RETIRED: &[u16] = &[];

/// Makes the code of a text.
const fn text(number: u16, text: &'static str, why: &'static str, what: &'static str) -> Code {
    Code { number, of: Of::Text(text), is_general: false, why, what }
}

/// Makes the code of a text that names another fault, too, whose code counts more.
const fn general(number: u16, text: &'static str, why: &'static str, what: &'static str) -> Code {
    Code { number, of: Of::Text(text), is_general: true, why, what }
}

const fn check(number: u16, id: &'static str, why: &'static str, what: &'static str) -> Code {
    Code { number, of: Of::Check(id), is_general: true, why, what }
}

const fn alert(number: u16, name: &'static str, why: &'static str, what: &'static str) -> Code {
    Code { number, of: Of::Alert(name), is_general: true, why, what }
}

const fn others(number: u16, _: &'static str, why: &'static str, what: &'static str) -> Code {
    Code { number, of: Of::Others, is_general: true, why, what }
}

/// Makes a group of codes: kind, number and subject of each, why it appears, and what to do.
macro_rules! group {
    ($($kind:ident $number:literal $subject:literal: $why:literal, $what:literal;)*) => {
        &[$($kind($number, $subject, $why, $what)),*]
    };
}

/// What no other code explains.
pub(super) const OTHERS: Code = HOST[0];

/// All codes, by the time at which they are met.
pub const GROUPS: &[Group] = &[
    ("The host", HOST),
    ("Init", INIT),
    ("Connect and accept", CONNECT),
    ("Memory", MEMORY),
    ("While a job runs", RUN),
    ("Between two hosts", PAIR),
    ("Alerts", ALERTS),
];

const HOST: &[Code] = group! {
    others 100 "":
        "the line has the failed call and the reason", "`mpib doctor`; the lines before it; [errors of adapters](errors.md)";
    text 101 "NCCL would not find it":
        "the file is not where NCCL's release looks", "`LD_LIBRARY_PATH` and `NCCL_NET_PLUGIN=mpib` for the job, or `mpib enable FOLDER` for the host ([which file is opened](nccl-releases.md#which-file-is-opened))";
    text 102 "NCCL would open another file":
        "another plugin is first on the dynamic linker's path", "`NCCL_NET_PLUGIN=mpib`, and this plugin's folder first in `LD_LIBRARY_PATH`";
    text 103 "means no plugin to NCCL":
        "`NCCL_NET_PLUGIN` turns plugins off", "`NCCL_NET_PLUGIN=mpib`, or unset it";
    check 104 "plugin":
        "the file cannot be loaded or called, or is another plugin", "the reason is in the line; install plugin and `mpib` of one release ([install.md](install.md))";
    text 105 "knows none of the plugin's tables":
        "this NCCL and this plugin have no table in common", "[NCCL releases](nccl-releases.md)";
    check 106 "nccl":
        "the file of NCCL cannot be read", "name the job's libnccl.so.2 with `--nccl PATH`";
    check 107 "transport":
        "`NCCL_NET` names another transport", "`NCCL_NET=MPIB`, or unset it";
    text 108 "NCCL does without it and logs nothing":
        "a configuration file of NCCL cannot be read", "make it readable, or correct `NCCL_CONF_FILE`";
    check 109 "nccl.conf":
        "NCCL keeps blanks, quotes and the word export of a line", "write `NAME=value`";
    check 110 "environment":
        "blanks or quotes that no shell has removed", "write the value without them";
    text 111 "the kernel has no RDMA adapter":
        "no driver of an adapter is loaded", "`modprobe` the adapter's driver; in a virtual machine or container, pass the adapter";
    text 112 "ib_uverbs is not loaded":
        "programs cannot open the adapters", "`modprobe ib_uverbs`";
    text 113 "but there is no /dev/infiniband/uverbs*":
        "the container has no device files", "`--device /dev/infiniband`; on a host, `modprobe ib_uverbs`";
    check 114 "uverbs":
        "this user may not open some device files", "their permissions, and the container's devices";
    check 115 "provider":
        "libibverbs has no provider for the adapter", "the package of providers (`ibverbs-providers`) of the release of libibverbs";
    check 116 "verbs":
        "libibverbs or softverbs reports a fault at its start", "the line has its words; [softverbs.md](softverbs.md)";
    check 117 "init":
        "init fails, though no other check does", "the reason is in the line";
    text 118 "registrations beyond it fail with ENOMEM":
        "the limit on locked memory is low", "`ulimit -l unlimited`, `LimitMEMLOCK=infinity`, `--ulimit memlock=-1`";
    text 119 "each connection and each registered DMA-BUF needs a descriptor":
        "the hard limit on open files is low", "`ulimit -Hn` of 65,536";
    text 120 "can be reached at loopback addresses only":
        "no other host reaches a listener here", "bring an interface up, or name one with `MPIB_OOB_IF`";
    check 121 "control":
        "control connections have no address", "name an interface of this host with `MPIB_OOB_IF` (`ip addr`)";
    text 122 "has link-local addresses only":
        "a RoCE port without an address that other networks reach", "`ip addr add`: one network on both ends of a link";
    text 123 "limited members of their partition":
        "packets between two limited members are dropped", "full members at the subnet manager, or another `NCCL_IB_PKEY_VALUE`";
    check 124 "pcie":
        "the PCIe link carries less than the port", "slot, riser and firmware (`lspci -vv`: LnkCap, LnkSta)";
    check 125 "acs":
        "PCIe ACS sends packets between adapter and GPU through the root complex", "switch ACS off at the bridges that are named ([memory.md](memory.md))";
    check 126 "twins":
        "one of two PCIe functions of a port is not used", "give its interface an address, and name both in `NCCL_IB_HCA`";
    check 127 "bond":
        "a bond in a mode without RDMA, or with a link that is down", "the bond's mode; cable and switch port";
    check 128 "virtual":
        "virtual functions are used beside their physical one", "name one of them alone";
    check 129 "windows":
        "one-sided traffic would fail", "the remedy in the line; [one-sided.md](one-sided.md)";
    check 130 "agent":
        "with `MPIB_MODE=1` no agent answers", "start `mpib agent`, or `MPIB_AGENT_SOCKET` ([agent.md](agent.md))";
    check 131 "hints":
        "the hint file is none", "the agent makes it; `MPIB_HINTS` has its path";
    check 132 "expect":
        "the host differs from the file of `--expect`", "correct the host, or record the file again on a good one ([fleet.md](fleet.md#a-fleet-of-equal-hosts))";
    check 133 "inline":
        "the room for inline data is not known", "the reason is in the line";
    text 134 "which has no table of a plugin":
        "another library of the plugin's name is first on the dynamic linker's path", "this plugin's folder first in `LD_LIBRARY_PATH`, or remove the other file";
    check 135 "opened":
        "NCCL would not open the plugin", "the reason is in the line; [which file is opened](nccl-releases.md#which-file-is-opened)";
};

const INIT: &[Code] = group! {
    text 201 "no RDMA device found":
        "libibverbs lists no adapter", "`ls /dev/infiniband`, `ibv_devices`; in a container its devices, and the provider of the adapter (`ibverbs-providers`)";
    general 202 "no usable RDMA port":
        "every port is down or has a fault, which the line names", "`ibv_devinfo -v`, cable, address of the interface";
    text 203 "the port is not active":
        "the link is down", "cable, switch port, `ip link`";
    text 204 "its GID table is empty: has the network interface an address?":
        "a RoCE port without an address", "give its interface an address";
    text 205 "no entry of its GID table fits":
        "`NCCL_IB_ADDR_FAMILY`, `NCCL_IB_ADDR_RANGE` or `NCCL_IB_ROCE_VERSION_NUM` exclude all addresses of the port", "the line has each entry and the reason; change the variable";
    text 206 "its P_Key table":
        "the port is not in the partition of `NCCL_IB_PKEY_VALUE` or `NCCL_IB_PKEY`", "choose one that the line lists, or make the port a member at the subnet manager";
    text 207 "which is empty; the port has":
        "`NCCL_IB_GID_INDEX` names an empty entry", "unset it: each connection chooses";
    text 208 "NCCL_IB_HCA names what this host does not have":
        "a misspelt name, or one of another host", "the line has the nearest name, if one is near";
    general 209 "ports that cannot be used":
        "ports with a fault other than being down", "the reason is in the line";
    text 210 "another HCA or port than MPIB_HCA_SOUT":
        "SOUT and SUP are the same port", "name two ports";
    text 211 "set both or neither":
        "only one of SOUT and SUP is set", "set the other, or unset both";
    general 212 "=…: expected ":
        "a value of a setting that cannot be used", "the line has what is expected; `mpib explain SETTING`; [configuration.md](configuration.md)";
    text 213 " has no effect: ":
        "a variable is set and does nothing here", "unset it; [why](configuration.md#variables-without-effect)";
    text 214 " has no effect on this plugin: ":
        "a variable of NCCL's own InfiniBand code is set", "nothing: NCCL may read it for [windows](one-sided.md); [why](configuration.md#variables-without-effect)";
    text 215 "none of the modules that give GPU memory to RDMA adapters is":
        "GPU memory is copied through the host", "`modprobe nvidia-peermem` on the host before the job starts, or [DMA-BUF](memory.md#dma-buf)";
    text 216 "NCCL sees the place of":
        "SOUT and SUP are far from each other on PCIe", "choose ports near each other and near the GPUs";
    text 217 "Data Direct interface":
        "a ConnectX-8 feature that the plugin does not use", "nothing, or `NCCL_IB_DATA_DIRECT=0`";
    text 218 "changed since this process opened its devices":
        "a later init of the process has other settings", "set the variables before the first communicator";
    text 219 "no statistics page can be made":
        "`mpib stats` will not show this process", "limits on memory files; `MPIB_STATS=0` does without";
    text 220 "this process was forked from":
        "a child uses NCCL after a fork", "start workers by spawn";
    text 221 "if this process forks children that do not exec at once":
        "libibverbs is not prepared for forks", "`RDMAV_FORK_SAFE=1`";
    text 222 "internal error, please report it":
        "a bug of the plugin", "report the line and the log before it";
    text 223 "max_inline_data is":
        "the adapter has no room for inline data", "unset `NCCL_IB_USE_INLINE`";
    check 224 "settings":
        "a value of a setting that cannot be used", "[configuration.md](configuration.md); `mpib explain SETTING`";
    check 225 "devices":
        "init finds no device, or the two rails of one are far apart", "the reason is in the line";
    check 226 "ports":
        "a port is lost", "the reason is in the line";
    general 227 "is not a live":
        "a call has a handle that was closed, or one of another kind", "a fault of the caller: report it with NCCL's release";
    general 228 "invalid argument: ":
        "a call has an argument that the interface does not allow", "a fault of the caller: report it with NCCL's release";
    text 229 "libibverbs cannot be used":
        "the library is not there, or another file has its name; the line has the dynamic linker's words", "install `libibverbs1` and `ibverbs-providers` (Debian, Ubuntu) or `libibverbs` (RHEL), in the container as well; `LD_LIBRARY_PATH`";
};

const CONNECT: &[Code] = group! {
    text 301 "Does a firewall let TCP through to every port of that host?":
        "addresses do not answer", "open TCP between the hosts; the port is chosen by the system";
    text 302 "Each refuses connections: has the peer's process ended?":
        "nobody listens any more", "the log of that rank";
    general 303 "cannot connect to the peer's listener":
        "no TCP connection to any address of the peer; the line has the failure of each", "firewall, `MPIB_OOB_IF`; [control connections](reach.md#control-connections)";
    text 304 "not an MPIB handle":
        "another rank uses another transport", "the same `NCCL_NET_PLUGIN` and library path on all hosts; `NCCL_NET=MPIB`";
    text 305 "use one version of the plugin on all hosts":
        "two releases with different protocols", "[upgrade.md](upgrade.md)";
    text 306 "settings that must be equal at both ends differ":
        "the line has each setting and both values", "set them alike on all hosts";
    general 307 "no rail works to":
        "no pair of ports reaches the peer; the line lists all of them", "`mpib doctor HOST`; [addresses](reach.md#choice-of-addresses)";
    text 308 "network interface is in another network namespace":
        "ENODEV of `ibv_modify_qp`: a RoCE adapter in a container without its interface", "`--network host`, or an interface of the adapter in the pod (SR-IOV, macvlan)";
    text 309 "The GID's entry is empty":
        "ENODATA of `ibv_modify_qp`: an address was removed, or the table was renumbered", "unset `NCCL_IB_GID_INDEX`";
    text 310 "A limit on RDMA objects is reached":
        "EAGAIN: the rdma cgroup, whose limits the line shows", "`rdma.max` of the cgroup and of those above it";
    general 311 "no rail reaches":
        "no pair is possible: the reasons are in the line", "networks and families of both hosts";
    text 312 "no common subnet, which MPIB_ROUTE=":
        "the policy refuses routed pairs", "`MPIB_ROUTE=any` if routers join the two";
    text 313 ": not of one family":
        "one end has IPv4, the other IPv6", "give both an address of one family";
    text 314 "a link-local address reaches only link-local ones":
        "one end has no other address", "give both ends addresses of one network";
    text 315 "nothing answers":
        "nothing came through: a wrong network, VLAN or cable", "`ping -I` from port to port; address, VLAN and cable of both";
    text 316 "empty packets arrive, and those of":
        "a smaller MTU on the way", "MTU of switches and interfaces";
    text 317 "the probe did not complete in time":
        "nothing came through: a wrong network, VLAN or cable", "`ping -I` from port to port; address, VLAN and cable of both";
    text 318 "a router needs the FLID of each port":
        "InfiniBand subnets without routing", "FLIDs by the subnet manager ([reach.md](reach.md#infiniband))";
    general 319 "rails without a route to":
        "a rail cannot be joined; the connection goes on with the others", "networks of that rail on both hosts";
    general 320 "rails that do not work to":
        "a rail failed its probe; the connection goes on with the others", "as for `no rail works to`";
    general 321 "Further connections of the two are only counted":
        "another NIC than NCCL requested is used", "the reason is in the line; `MPIB_ROUTE=strict` makes it an error";
    text 322 "which NCCL requested: the two are under different PCI roots":
        "that NIC is far from the GPU", "cable or address the near one";
    text 323 "does not reach itself":
        "the adapter drops packets to itself", "`MPIB_FLUSH=0` from Hopper on, or allow hairpin";
    text 324 "still waiting for":
        "the peer's NCCL has not called accept", "is that rank slow or stopped?";
    text 325 "On RoCE the driver could not resolve the peer's address":
        "no neighbour or no route for the peer's address", "`ip route get`, `ping -I`";
    general 326 "a peer's handshake failed, others may still come":
        "a stranger, or a peer with a fault", "the reason is in the line";
    text 327 "no hint for the connection with":
        "`MPIB_STRICT=1` and no agent", "start the agent ([agent.md](agent.md))";
    text 328 "not used: ":
        "the agent's socket or hint file cannot be trusted", "owner and mode of the path ([agent.md](agent.md#where-the-plugin-looks))";
    text 329 " speaks …, … speaks ":
        "the ports have addresses of different RoCE versions alone", "the same `NCCL_IB_ROCE_VERSION_NUM` on both hosts, or unset it";
    text 330 "no two addresses of one family and one RoCE version":
        "no address of one port fits one of the other", "give both ports addresses of one family, and unset `NCCL_IB_ROCE_VERSION_NUM`";
    general 331 " is Ethernet":
        "the two ports have different links", "name ports of one kind on both hosts (`NCCL_IB_HCA`)";
    text 333 "the probe was not acknowledged":
        "nothing came through: a wrong network, VLAN or cable", "`ping -I` from port to port; address, VLAN and cable of both";
    text 334 "the peer's probe did not arrive in time":
        "packets go out, and none comes back", "the way back: routes, VLAN and firewall of the other host";
    text 335 "no hints for the connection with":
        "hints are for rails with IPv4 addresses", "give both rails IPv4 addresses, or unset `MPIB_MODE`";
    general 336 "the probe failed":
        "the adapter gave up on the pair", "the reason is in the line";
    general 337 "nothing came within … ms while waiting for":
        "the peer is slow, stopped or silent", "load and state of that host; `MPIB_CONNECT_TIMEOUT_MS`";
};

const MEMORY: &[Code] = group! {
    text 401 "IBV_WC_LOC_PROT_ERR":
        "with GPU memory: PCIe ACS or an IOMMU between GPU and adapter; or no `nvidia_peermem` and no DMA-BUF", "the checks `acs`, `iommu` and `gpu` of `mpib doctor`; `NCCL_NET_GDR_LEVEL=LOC` goes through host memory, and works if that is the cause";
    text 402 "The usual cause is the limit on locked memory":
        "the memlock limit, which the line shows", "`ulimit -l unlimited`, `LimitMEMLOCK=infinity`, `--ulimit memlock=-1`";
    text 403 "registers no memory by DMA-BUF":
        "the adapter of the connection lacks DMA-BUF", "`NCCL_DMABUF_ENABLE=0`";
    text 404 "Is nvidia_peermem still loaded, and made for the running driver":
        "the module does not claim the GPU's memory", "reload it with the driver";
    text 405 "This process has too many files open":
        "the limit of descriptors", "`ulimit -Hn` of 65,536, to which init raises the soft limit";
    text 406 "More entries are requested than the adapter has":
        "limits of the adapter", "fewer queue pairs; `ibv_devinfo -v`";
    text 407 "The memory cannot be registered: was it freed?":
        "the buffer is not memory that an adapter can use", "the line has the causes; `df /dev/shm`";
    text 408 "The length does not fit the adapter":
        "a limit of the adapter on one registration", "`max_mr_size` of `ibv_devinfo -v`";
    text 409 "The adapter's firmware does not answer its driver":
        "the adapter hangs", "dmesg; reset the adapter";
    general 410 "ibv_… failed: ":
        "a call of verbs failed", "[errors.md](errors.md), by call and errno";
};

const RUN: &[Code] = group! {
    general 501 "is down since":
        "a port's link is down; how many connections carry on is in the line", "cable, switch; [failover.md](failover.md#what-the-log-shows)";
    general 502 "the route from … to … failed at":
        "packets are lost between two active ports", "the path between both addresses";
    text 503 "a rail completed nothing for":
        "the watchdog gave a rail up", "PFC, the switch; `MPIB_STALL_MS`";
    general 504 "has no rail left; it waits up to":
        "the connection's last rail failed", "it fails after `MPIB_FAILOVER_WAIT`";
    text 505 "a connection has waited …a rail to":
        "no rail works, or one does not finish its failover", "the lines before it; `mpib stats`";
    text 506 "a connection has waited …a receive of":
        "the peer that is named posts no receive: it does not call NCCL, or waits for another rank", "[`mpib why PID`](why.md) on its host; what that process does (`py-spy dump --pid PID`, `gdb -p PID`). [Waits](stats.md#what-a-connection-waits-for)";
    text 507 "a connection has waited …room in a queue":
        "the rails accept nothing more", "`mpib stats`: work requests in flight of each rail";
    general 508 "a connection has waited":
        "a call of NCCL makes no progress", "[`mpib why`](why.md)";
    text 509 "without another rail must wait for it":
        "devices of one port", "a second port, or patience";
    general 510 "is there again and cannot be used yet":
        "an adapter returned and memory cannot be registered on it", "the reason is in the line; it is tried again";
    text 511 "the peer did not acknowledge, however often it was tried":
        "status 12: the path or the peer's port is dead", "port, GIDs, MTU, PFC; [ports in one subnet](roce.md#several-ports-in-one-subnet); [how long adapters try](reach.md#how-long-adapters-try)";
    text 512 "the peer had no receive posted, however often it was tried":
        "status 13: the peer is stopped or has no CPU", "load and state of that host";
    text 513 "the peer's memory is not registered for this access":
        "a buffer was freed too soon, or the peer restarted", "the peer's log";
    text 514 "neither an address of its host nor a rail has … answered for":
        "the peer's process ended while the management network was silent, or its host is dead", "the state of that host; the peer's log";
    general 515 "was lost with … outstanding":
        "the peer's process ended", "the peer's log: its first failure is the cause";
    general 516 "no rail of the connection with … has worked for":
        "no rail came back within `MPIB_FAILOVER_WAIT`", "the line has the state of each port and the last attempt";
    text 517 "the ends had not agreed yet on what … has lost":
        "the peer closed while a rail was being repaired", "the first failure in the line; dmesg of that host";
    general 518 "gave the connection up":
        "the peer failed; its reason follows", "the peer's log";
    text 519 "is lost: a failed adapter acknowledged its data":
        "data was lost with an adapter", "restart from a checkpoint; dmesg of that host";
    general 520 "the connection has failed before":
        "a call after a failure", "the first WARN of that connection";
    text 521 "a frame with a wrong authentication tag":
        "somebody changes control messages", "[forged frames](stats.md#forged-frames)";
    general 522 "no events of … are seen any more":
        "the thread that watches the adapter ended", "restart the job; report it";
    text 523 "accepting control connections fails and is retried":
        "too many descriptors", "`ulimit -n`";
    text 524 "carries data although it is drained":
        "a drained port is the connection's only one", "expected, or drain another one";
    general 525 "connections with their last good hint":
        "the agent or its file has a fault; data goes on", "the agent's log";
    text 526 "NCCL's logger is too slow: lines were dropped here":
        "the log's target blocks", "write the log to a local file";
    text 527 "is silent: no sign of life for":
        "control connection and rails of a peer are silent", "the state of that host; the network between the hosts";
    text 528 "does not destroy queue pairs: it is left alone":
        "an adapter does not answer its driver", "dmesg: reset the adapter, or restart the host";
    text 529 "its queue pairs receive from their own queues":
        "shared receive queues of the adapter do not work", "nothing; the firmware's release notes";
    text 530 "one-sided traffic with rank":
        "windows or GIN of a rank have failed", "the reason is in the line; the log of that rank";
    text 531 "the adapter failed, or was removed":
        "the device of an adapter failed, or is being reset", "dmesg; the adapter's firmware; [failover.md](failover.md)";
    general 532 "IBV_EVENT_":
        "an adapter reports an event", "the line has the port and what it costs; dmesg";
    general 533 "has closed the connection":
        "the peer's process ended, or closed it", "the peer's log: its first failure is the cause";
    general 534 "protocol error: ":
        "the peer breaks the protocol, or a stranger connects", "one version of the plugin on all hosts; what else uses that address";
    text 535 "has passed no statistics page that can be used":
        "a process has passed the agent something else, or the page of another version, process or user", "the line has the process and what was found; agent and plugin of one release";
    text 536 "no HTTP at the address until the web file is good":
        "the agent cannot use its web file, or a file that it names", "the line has the file and why; `mpib agent --check` as the agent's user ([agent.md](agent.md#tls-and-passwords))";
};

const PAIR: &[Code] = group! {
    text 601 "the hosts refuse each other's connections":
        "a setting that must be equal differs", "the same value on both hosts";
    text 602 "a host without a device has no route to another":
        "init fails on one of the hosts", "`mpib doctor` on it";
    text 603 "connections use the smaller one":
        "the MTU of the two ports differs", "one MTU on both hosts and the switch (`ip link set mtu 9000` gives 4096)";
    check 604 "rates":
        "a pair of ports is far slower than others", "error counters, PCIe links and NUMA nodes of the two ports";
    check 605 "fused":
        "a rail works alone, and not beside the others", "the plugin's log of `mpib perf` (`NCCL_DEBUG=INFO`)";
    check 606 "peer":
        "the other host has a finding by itself", "`mpib doctor` on it";
    check 607 "routes":
        "a pair of ports carries no data", "the reason is in the line; -v has all of it";
    check 608 "mtu":
        "the MTU of the two ports differs", "one MTU on both hosts and the switch";
    check 609 "median":
        "a port or a pair of ports carries less than half of the median of its like in a fleet", "error counters, PCIe link and NUMA node of the port; its cable and switch port";
    check 610 "answer":
        "a host of a fleet does not answer", "is the host up, and `mpib doctor --listen --hosts FILE` running there? With `--all-ranks`: has its rank begun?";
    check 611 "partners":
        "a port carries no data with several hosts", "cable, VLAN, MTU and address of that port";
    check 612 "fewer":
        "a host uses fewer ports than most hosts of its fleet", "`mpib doctor` on it; cable, switch port and address of the port";
    check 613 "slower":
        "the link of a port is slower than in most hosts of its fleet", "cable, switch port, and the PCIe link (`lspci -vv`: LnkSta)";
    check 614 "pair":
        "two hosts of a fleet could not be checked", "the reason is in the line";
    check 615 "differs":
        "a setting differs between two hosts, and the difference costs something", "one value on all hosts, in the job's script or in `/etc/nccl.conf`";
    check 616 "speeds":
        "the two ends of a pair of ports have links of different speed", "cable, switch port and speed of the slower one";
    check 617 "number":
        "a setting gives the devices of one host fewer ports than those of the other", "name all ports in the setting, or unset it";
};

const ALERTS: &[Code] = group! {
    alert 701 "MpibRailDown":
        "the link of a port is down", "cable, switch port; [failover.md](failover.md)";
    alert 702 "MpibRailNotHealthy":
        "a port has failed and is not trusted yet", "`mpib stats`: its cause";
    alert 703 "MpibConnectionsDegraded":
        "connections run without a port that they expect", "`mpib stats`: the cause of each";
    alert 704 "MpibRailFlaps":
        "a port fails again and again", "drain it; its cable";
    alert 705 "MpibLongStalls":
        "failovers take longer than a second", "[how soon a fault is noticed](failover.md#how-soon-a-fault-is-noticed)";
    alert 706 "MpibConnectionsFailed":
        "NCCL got an error", "`mpib stats`: the reason";
    alert 707 "MpibConnectionWaits":
        "a job may be stuck", "[`mpib why`](why.md) on the host";
    alert 708 "MpibRailSlow":
        "a port carries less than half of its best", "`mpib why`; counters of the port and its switch";
    alert 709 "MpibAckTimeouts":
        "packets are lost", "the path of the port: PFC, ECN, cable";
    alert 710 "MpibPortDrainedLong":
        "a drained port was forgotten", "undrain it ([agent.md](agent.md))";
    alert 711 "MpibStatisticsNotRead":
        "the agent has no statistics of some processes: `MPIB_STATS=0`, a plugin of an earlier release, or a page that is not used", "the plugin of the agent's release in all jobs; the agent's log";
    alert 712 "MpibAgentDown":
        "the agent does not answer", "`systemctl status mpib-agent`; jobs go on";
    alert 713 "MpibPortDown":
        "a port has lost its link, whether a job uses it or not", "cable, switch port; [which ports count](agent.md#ports-without-a-link)";
};

/// Fails to compile if a number occurs twice, or is one that was removed.
const _: () = {
    let mut seen = [false; 1000];
    let mut i = 0;
    while i < RETIRED.len() {
        seen[RETIRED[i] as usize] = true;
        i += 1;
    }
    let mut group = 0;
    while group < GROUPS.len() {
        let codes = GROUPS[group].1;
        let mut i = 0;
        while i < codes.len() {
            let number = codes[i].number as usize;
            assert!(!seen[number], "this number has another entry");
            seen[number] = true;
            i += 1;
        }
        group += 1;
    }
};
