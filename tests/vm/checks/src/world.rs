//! The two worlds in which the list runs. They differ in the settings that name a host's devices to
//! the plugin, and in the counters of a rail's bytes.

use std::net::Ipv4Addr;
use std::path::PathBuf;

use crate::host::{Host, Outcome, Talk};

/// Names of both rails' devices and network interfaces.
pub(crate) const RAILS: [&str; 2] = ["sout", "sup"];

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Kind {
    /// Two machines with the kernel's RDMA stack over network interfaces.
    Kernel,
    /// softverbs devices of this machine, which represent two hosts.
    Softverbs,
}

#[derive(Debug)]
pub(crate) struct World {
    pub(crate) kind: Kind,
    hosts: [Host; 2],
    plugin: PathBuf,
    exe: PathBuf,
    /// Paths of NCCL's library and of its facts from compat-matrix, on each host.
    pub(crate) nccl: Option<(PathBuf, PathBuf)>,
}

/// A process that has loaded the plugin.
#[derive(Debug)]
pub(crate) struct Worker {
    pub(crate) talk: Talk,
    pub(crate) pid: String,
    /// Index of the host, 0 or 1.
    pub(crate) host: usize,
}

impl World {
    pub(crate) fn new(kind: Kind, other: Option<Ipv4Addr>, plugin: PathBuf) -> Outcome<Self> {
        let exe = std::env::current_exe().map_err(|e| format!("our own path: {e}"))?;
        Ok(Self { kind, hosts: [Host::Here, other.map_or(Host::Here, Host::There)], plugin, exe, nccl: None })
    }

    /// Returns the other host's address on the control network.
    pub(crate) fn other(&self) -> Ipv4Addr {
        match self.hosts[1] {
            Host::Here => Ipv4Addr::LOCALHOST,
            Host::There(address) => address,
        }
    }

    /// Runs a shell command on a host. The variables `n` and `o` are the numbers of this host and
    /// of the other one, from 1, and `softverbs_link` is the path of `softverbs-link`.
    pub(crate) fn sh(&self, host: usize, command: &str) -> Outcome {
        let (n, o) = (host + 1, 2 - host);
        let (link, devices) = (self.exe.with_file_name("softverbs-link"), self.devices(host, 4096));
        let set =
            format!("n={n} o={o} softverbs_link='{}'; export SOFTVERBS_DEVICES='{devices}'", link.display());
        self.hosts[host].sh(&format!("{set}; {command}")).map_err(|e| format!("host{}: {e}", host + 1))
    }

    /// Starts this program on a host.
    pub(crate) fn start(&self, host: usize, name: &str, env: &[(&str, &str)], args: &str) -> Outcome<Talk> {
        let command = format!("exec {} '{}' {args}", self.env(host, env), self.exe.display());
        self.hosts[host].start(&format!("{name} of host{}", host + 1), &command)
    }

    /// Runs compat-matrix on a host and returns its output.
    pub(crate) fn compat_matrix(&self, host: usize, env: &[(&str, &str)], args: &str) -> Outcome {
        let program = self.exe.with_file_name("compat-matrix");
        self.sh(host, &format!("{} '{}' {args}", self.env(host, env), program.display()))
    }

    /// Returns the command that sets the variables of every worker and those of `env`.
    fn env(&self, host: usize, env: &[(&str, &str)]) -> String {
        let base = self.base(host);
        let all = base.iter().map(|(name, value)| (*name, value.as_str())).chain(env.iter().copied());
        all.fold(String::from("env"), |command, (name, value)| command + &format!(" '{name}={value}'"))
    }

    /// Starts a worker with the table of version `abi`. `env` overrides the variables of every
    /// worker.
    pub(crate) fn worker(&self, host: usize, abi: u32, env: &[(&str, &str)]) -> Outcome<Worker> {
        let args = format!("worker --plugin '{}' --abi {abi}", self.plugin.display());
        let talk = self.start(host, &format!("the v{abi} worker"), env, &args)?;
        let pid = talk.answer()?;
        Ok(Worker { talk, pid, host })
    }

    fn base(&self, host: usize) -> Vec<(&'static str, String)> {
        let mut env = vec![("MPIB_HCA_SOUT", RAILS[0].into()), ("MPIB_HCA_SUP", RAILS[1].into())];
        match self.kind {
            Kind::Kernel => {
                // Some checks take the rails' interfaces down.
                env.push(("MPIB_OOB_IF", "=ctl".into()));
                // On a busy machine the kernel of an emulated guest sends nothing on a rail for
                // hundreds of milliseconds.
                env.push(("MPIB_STALL_MS", "5000".into()));
            }
            Kind::Softverbs => env.push(("SOFTVERBS_DEVICES", self.devices(host, 4096))),
        }
        env
    }

    /// Returns a host's softverbs devices, like the devices of a guest. `mtu` is that of SUP.
    pub(crate) fn devices(&self, host: usize, mtu: usize) -> String {
        let n = host + 1;
        format!("sout:addr=10.1.0.{n}/24+fd00:2::{n}/64;sup:addr=10.2.0.{n}/24+fd00:3::{n}/64,mtu={mtu}")
    }

    /// Bytes that a host has sent on each rail since some time: bytes of packets if a network
    /// interface counts them, bytes of messages if softverbs does.
    pub(crate) fn sent(&self, worker: &mut Worker) -> Outcome<[u64; 2]> {
        let text = match self.kind {
            Kind::Kernel => return self.interfaces(worker.host),
            Kind::Softverbs => {
                let text = worker.talk.ask("counters")?;
                RAILS
                    .map(|rail| {
                        text.split(' ').find_map(|w| w.strip_prefix(&format!("{rail}="))).unwrap_or("0")
                    })
                    .join(" ")
            }
        };
        two(&text).map_err(|e| format!("counters of host{}: {e}", worker.host + 1))
    }

    /// Bytes that each rail's network interface has sent.
    pub(crate) fn interfaces(&self, host: usize) -> Outcome<[u64; 2]> {
        let files = RAILS.map(|rail| format!("/sys/class/net/{rail}/statistics/tx_bytes"));
        let text = self.sh(host, &format!("cat {}", files.join(" ")))?;
        two(&text).map_err(|e| format!("interfaces of host{}: {e}", host + 1))
    }

    /// One counter of a rail's RDMA device, which only the kernel has.
    pub(crate) fn hw_counter(&self, host: usize, rail: &str, counter: &str) -> Outcome<u64> {
        let text =
            self.sh(host, &format!("cat /sys/class/infiniband/{rail}/ports/1/hw_counters/{counter}"))?;
        text.trim().parse().map_err(|_| format!("{counter} of {rail} is {text:?}"))
    }

    /// Queue pairs of a host's rail that programs have open.
    pub(crate) fn queue_pairs(&self, host: usize, rail: &str) -> Outcome<usize> {
        // The kernel's own has no process id.
        let text = self.sh(host, &format!("rdma resource show qp link {rail} | grep -c ' pid ' || true"))?;
        text.trim().parse().map_err(|_| format!("queue pairs of {rail}: {text:?}"))
    }
}

/// The numbers of both rails.
fn two(text: &str) -> Outcome<[u64; 2]> {
    let mut numbers = text.split_whitespace().map_while(|word| word.parse().ok());
    match (numbers.next(), numbers.next()) {
        (Some(sout), Some(sup)) => Ok([sout, sup]),
        _ => Err(format!("{text:?}")),
    }
}
