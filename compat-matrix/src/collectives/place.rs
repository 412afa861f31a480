//! Where the ranks of a communicator run: hosts, adapters, GPUs, environment, logs.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

use softcuda::Settings;

use super::{
    CollectivesArgs,
    args::{Net, Plan},
};
use crate::{
    failure::{Context, Failure, Result},
    matrix::Release,
    stage::{Folder, RAILS, Stage},
};

/// Settings of [`Stage::environment`] that a profile replaces.
const REPLACED: [&str; 4] = ["MPIB_HCA_SOUT", "MPIB_HCA_SUP", "MPIB_SUP_SHARE", "NCCL_DEBUG_FILE"];
/// Channels of a communicator. One rank alone has up to 64 otherwise, whose setup takes seconds.
const CHANNELS: u32 = 2;

/// The place of one communicator.
pub(super) struct Place {
    environment: BTreeMap<String, String>,
    /// The host of each rank.
    hosts: Vec<String>,
    settings: Settings,
    logs: PathBuf,
}

impl Place {
    pub(super) fn new(
        args: &CollectivesArgs,
        plan: &Plan,
        release: &Release,
        stage: &Stage,
        scratch: &Path,
    ) -> Result<Self> {
        let mut environment = stage.environment(&Folder::Whole)?;
        let kept: Vec<_> = REPLACED.iter().filter_map(|name| environment.remove(*name)).collect();
        debug_assert_eq!(kept.len(), REPLACED.len());
        let mut set = |name: &str, value: &str| environment.insert(name.to_owned(), value.to_owned());
        set("NCCL_NET", if plan.net == Net::Socket { "Socket" } else { "MPIB" });
        set("NCCL_SOCKET_IFNAME", "lo");
        set("MPIB_OOB_IF", "lo");
        // Its service listens on a fixed port of the loopback.
        set("NCCL_RAS_ENABLE", "0");
        set("NCCL_MAX_NCHANNELS", &CHANNELS.to_string());
        match plan.net {
            Net::Mpib => {
                set("MPIB_HCA_SOUT", RAILS[0]);
                set("MPIB_HCA_SUP", RAILS[1]);
            }
            Net::Fused => {
                set("NCCL_NET_FORCE_MERGE", &RAILS.join(","));
            }
            Net::Default | Net::Socket => {}
        }
        if args.gpudirect {
            // The simulated adapters have no place in the tree of PCI devices.
            set("NCCL_NET_GDR_LEVEL", "SYS");
            set("NCCL_NET_GDR_READ", "1");
        }
        for (name, value) in &args.set {
            set(name, value);
        }
        let hosts = match args.hosts.is_empty() {
            true => (0..args.ranks).map(|rank| format!("host{rank}")).collect(),
            false => args.hosts.clone(),
        };
        let settings = Settings {
            compute_capability: (args.capability / 10, args.capability % 10),
            gpudirect: args.gpudirect,
            vmm: args.vmm,
            dma_buf: args.dma_buf,
            driver_version: if release.version.contains("cu13") { 13040 } else { 12090 },
            ..Settings::default()
        };
        Ok(Self { environment, hosts, settings, logs: scratch.to_owned() })
    }

    /// Returns the number of a rank's host.
    fn host_number(&self, rank: u32) -> usize {
        let host = &self.hosts[rank as usize];
        self.hosts.iter().position(|other| other == host).unwrap_or_default()
    }

    /// Returns the rank's GPU: its number among the ranks of the same host.
    pub(super) fn device(&self, rank: u32) -> u32 {
        let host = &self.hosts[rank as usize];
        self.hosts[..rank as usize].iter().filter(|other| *other == host).count() as u32
    }

    pub(super) fn settings(&self, rank: u32) -> Settings {
        Settings { host: self.hosts[rank as usize].clone(), ..self.settings.clone() }
    }

    fn log(&self, rank: u32) -> PathBuf {
        self.logs.join(format!("nccl-{rank}.log"))
    }

    /// Returns the complete environment of a rank.
    pub(super) fn environment(&self, rank: u32) -> BTreeMap<String, String> {
        let mut environment = self.environment.clone();
        let [sout, sup] = RAILS;
        let n = self.host_number(rank) + 1;
        let extra = if self.settings.dma_buf { ",dmabuf=on" } else { "" };
        let devices = format!("{sout}:addr=10.9.0.{n}/24{extra};{sup}:addr=10.9.1.{n}/24{extra}");
        environment.insert("SOFTVERBS_DEVICES".into(), devices);
        environment.insert("NCCL_HOSTID".into(), self.hosts[rank as usize].clone());
        environment.insert("NCCL_DEBUG_FILE".into(), self.log(rank).display().to_string());
        environment
    }

    fn logs(&self) -> impl Iterator<Item = (u32, String)> {
        let read = |rank| (rank, fs::read_to_string(self.log(rank)).unwrap_or_default());
        (0..self.hosts.len() as u32).map(read)
    }

    /// Checks that every rank that wrote a log used this network. Returns the ways by which data
    /// went.
    pub(super) fn networks(&self, expected: &str) -> Result<String> {
        let mut ways = BTreeMap::<String, usize>::new();
        for (rank, log) in self.logs() {
            let line = log.lines().find(|line| line.contains("Using network") || line.contains("[send]"));
            let used = log.lines().find_map(|line| line.split("Using network ").nth(1)).map(str::trim);
            if used.is_none_or(|used| used.split_whitespace().next() != Some(expected)) {
                return Err(Failure::wrong(format!(
                    "rank {rank} used network {used:?} ({line:?}); expected {expected}"
                )));
            }
            for way in log.lines().filter_map(|line| line.split(" via ").nth(1)) {
                *ways.entry(way.trim().to_owned()).or_default() += 1;
            }
        }
        let ways: Vec<_> = ways.into_iter().map(|(way, times)| format!("{times} x {way}")).collect();
        Ok(if ways.is_empty() { "no connections".into() } else { ways.join(", ") })
    }

    /// Copies the logs to a folder.
    pub(super) fn keep_logs(&self, to: &Path) -> Result<()> {
        fs::create_dir_all(to).cannot(format!("make {}", to.display()))?;
        for (rank, log) in self.logs() {
            let path = to.join(format!("nccl-{rank}.log"));
            fs::write(&path, log).cannot(format!("write {}", path.display()))?;
        }
        Ok(())
    }
}
