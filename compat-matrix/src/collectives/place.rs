//! Where the ranks of a communicator run: hosts, adapters, GPUs, environment, logs.

use std::{
    collections::BTreeMap,
    env, fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
};

use softcuda::{Settings, profiler::REPORT};

use super::{
    args::Common,
    evidence,
    fault::Fault,
    plan::{Net, Plan, Window},
    watch,
};
use crate::{
    cpu::{EPYC, NO_NODE},
    failure::{Context, Failure, Result},
    matrix::Release,
    pci::Tree,
    stage::{Folder, RAILS, Stage},
};

/// Settings of [`Stage::environment`] that a profile replaces.
const REPLACED: [&str; 4] = ["MPIB_HCA_SOUT", "MPIB_HCA_SUP", "MPIB_SUP_SHARE", "NCCL_DEBUG_FILE"];
/// Channels of a communicator. One rank alone has up to 64 otherwise, whose setup takes seconds.
const CHANNELS: u32 = 2;
/// Properties of a slow rail. The rate decides when the data of large messages arrives, the latency
/// when a message is complete.
const SLOW: &str = ",rate=200MB,latency=1ms";

/// Properties of a rail whose data NCCL flushes: without a flush, it is read before it has landed.
const POSTED: &str = ",dmabuf=on,posted=3ms";
/// The name of the profiler in `NCCL_PROFILER_PLUGIN`.
const PROFILER: &str = "softcuda";
/// Where rank 0 writes NCCL's topology.
const TOPOLOGY: &str = "nccl-topology.xml";
/// Settings that together fix the channels of collectives, and of sends and receives.
const CHANNEL_SETTINGS: [&str; 5] = [
    "NCCL_MIN_NCHANNELS",
    "NCCL_MAX_NCHANNELS",
    "NCCL_MIN_P2P_NCHANNELS",
    "NCCL_MAX_P2P_NCHANNELS",
    "NCCL_NCHANNELS_PER_NET_PEER",
];

/// The place of one communicator.
pub(super) struct Place {
    environment: BTreeMap<String, String>,
    /// The host of each rank.
    hosts: Vec<String>,
    settings: Settings,
    /// Whether every other host has its rails in each other's subnets.
    crossed: bool,
    /// What follows the address of each rail in `SOFTVERBS_DEVICES`.
    devices: [String; 2],
    /// Whether the user has changed settings that decide NCCL's topology.
    changed: bool,
    logs: PathBuf,
}

impl Place {
    pub(super) fn new(
        common: &Common,
        plan: &Plan,
        release: &Release,
        stage: &Stage,
        scratch: &Path,
    ) -> Result<Self> {
        let folder = plan.variant.window.map_or(Folder::Whole, Window::folder);
        let mut environment = stage.environment(&folder)?;
        let kept: Vec<_> = REPLACED.iter().filter_map(|name| environment.remove(*name)).collect();
        debug_assert_eq!(kept.len(), REPLACED.len());
        let mut set = |name: &str, value: &str| environment.insert(name.to_owned(), value.to_owned());
        set("NCCL_NET", plan.network());
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
            Net::Ib => {
                set("NCCL_NET_PLUGIN", "none");
                set("NCCL_IB_DISABLE", "0");
                // softverbs' GIDs have no types in sysfs.
                set("NCCL_IB_GID_INDEX", "3");
                // 2.28.9 calls a null table if it looks for adapters whose doorbells a GPU can ring,
                // and finds none.
                set("NCCL_GIN_TYPE", "2");
            }
            Net::Fused | Net::Default | Net::Socket => {}
        }
        let variant = &plan.variant;
        if variant.gpudirect {
            // The simulated adapters have no place in the tree of PCI devices.
            set("NCCL_NET_GDR_LEVEL", "SYS");
            set("NCCL_NET_GDR_READ", "1");
        }
        if variant.register {
            // The last one is that of registrations; the others are the default.
            set("NCCL_DEBUG_SUBSYS", "INIT,BOOTSTRAP,ENV,REG");
        }
        for (name, value) in variant.window.map_or(&[][..], |window| window.settings(release)) {
            set(name, value);
        }
        if variant.vmm {
            // Up to 2.23 it is off otherwise.
            set("NCCL_CUMEM_ENABLE", "1");
        }
        if common.gpu {
            of_this_machine(&mut set);
        } else {
            // Of all devices, only adapters of a tree are in sysfs.
            let nodes = common.tree.as_ref().map_or_else(Vec::new, |_| Tree::card(RAILS).numa_nodes());
            let (name, value) = EPYC.setting(nodes.into_iter().chain([NO_NODE]), scratch)?;
            set(name, &value);
        }
        set("NCCL_TOPO_DUMP_FILE", &scratch.join(TOPOLOGY).display().to_string());
        if let (Net::Mpib, Some([sout, sup])) = (plan.net, plan.rates) {
            set("MPIB_SUP_SHARE", &(1024 * sup / (sout + sup)).to_string());
        }
        if let Some(protocol) = variant.protocol {
            set("NCCL_PROTO", &format!("{protocol:?}"));
        }
        if let Some(channels) = variant.channels {
            for name in CHANNEL_SETTINGS {
                set(name, &channels.to_string());
            }
        }
        if plan.net == Net::Mpib && (variant.fault.is_some() || variant.slow || variant.gpudirect) {
            // Otherwise one rail carries all data of two hosts of an island.
            set("MPIB_SUP_SHARE", if variant.slow { "512" } else { "341" });
        }
        if variant.fault == Some(Fault::NoRail) {
            // Seconds until a connection without a rail fails.
            set("MPIB_FAILOVER_WAIT", "2");
        }
        let decides = |name: &str| name.starts_with("MPIB_") || name.starts_with("NCCL_TOPO_");
        let changed = common.set.iter().any(|(name, _)| decides(name));
        for (name, value) in &common.set {
            set(name, value);
        }
        let settings = Settings {
            compute_capability: (variant.capability / 10, variant.capability % 10),
            gpudirect: variant.gpudirect,
            vmm: variant.vmm,
            dma_buf: variant.dma_buf,
            log: common.launches,
            driver_version: if common.cuda == 13 { 13040 } else { 12090 },
            ..Settings::default()
        };
        let (hosts, devices) = (variant.hosts(), devices(plan, common.tree.as_deref().unwrap_or(scratch))?);
        let crossed = variant.crossed;
        Ok(Self { environment, hosts, settings, crossed, devices, changed, logs: scratch.to_owned() })
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

    /// Returns the addresses of the rails of a rank's host.
    fn addresses(&self, rank: u32) -> [String; 2] {
        let n = self.host_number(rank) + 1;
        let swap = self.crossed && n.is_multiple_of(2);
        [0, 1].map(|rail| format!("10.9.{}.{n}", if swap { 1 - rail } else { rail }))
    }

    /// Returns the names by which softverbs distinguishes the hosts' rails, for each rank.
    pub(super) fn labels(&self) -> Vec<[String; 2]> {
        let of = |rank| {
            let addresses = self.addresses(rank);
            [0, 1].map(|rail| format!("{}@{}", RAILS[rail], addresses[rail]))
        };
        (0..self.hosts.len() as u32).map(of).collect()
    }

    pub(super) fn fabric(&self) -> &str {
        self.environment.get("SOFTVERBS_FABRIC").map_or("default", String::as_str)
    }

    pub(super) fn settings(&self, rank: u32) -> Settings {
        Settings { host: self.hosts[rank as usize].clone(), ..self.settings.clone() }
    }

    /// Lets NCCL of each rank load the profiler in this library.
    pub(super) fn load_profiler(&mut self, library: &Path) -> Result<()> {
        // NCCL 2.27.3 takes no path.
        let link = self.logs.join(format!("libnccl-profiler-{PROFILER}.so"));
        symlink(library, &link).cannot(format!("make {}", link.display()))?;
        self.environment.insert("NCCL_PROFILER_PLUGIN".into(), PROFILER.into());
        let folders = self.environment.entry("LD_LIBRARY_PATH".into()).or_default();
        *folders += &format!(":{}", self.logs.display());
        Ok(())
    }

    /// Lets RAS of a rank listen at this address.
    pub(super) fn open_ras(&mut self, address: &str) {
        self.environment.insert("NCCL_RAS_ENABLE".into(), "1".into());
        self.environment.insert("NCCL_RAS_ADDR".into(), address.into());
    }

    fn log(&self, rank: u32) -> PathBuf {
        self.logs.join(format!("nccl-{rank}.log"))
    }

    fn profile(&self, rank: u32) -> PathBuf {
        self.logs.join(format!("profile-{rank}"))
    }

    fn report(&self, rank: u32) -> PathBuf {
        self.logs.join(format!("softverbs-{rank}"))
    }

    /// Returns the complete environment of a rank.
    pub(super) fn environment(&self, rank: u32) -> BTreeMap<String, String> {
        let mut environment = self.environment.clone();
        let [sout, sup] = RAILS;
        let [sout_address, sup_address] = self.addresses(rank);
        let [first, second] = &self.devices;
        let devices = format!("{sout}:addr={sout_address}/24{first};{sup}:addr={sup_address}/24{second}");
        environment.insert("SOFTVERBS_DEVICES".into(), devices);
        environment.insert("NCCL_HOSTID".into(), self.hosts[rank as usize].clone());
        environment.insert("NCCL_DEBUG_FILE".into(), self.log(rank).display().to_string());
        environment.insert("SOFTVERBS_REPORT".into(), self.report(rank).display().to_string());
        environment.insert(REPORT.into(), self.profile(rank).display().to_string());
        environment
    }

    fn logs(&self) -> impl Iterator<Item = (u32, String)> {
        let read = |rank| (rank, fs::read_to_string(self.log(rank)).unwrap_or_default());
        (0..self.hosts.len() as u32).map(read)
    }

    /// Checks that the plan's options had their effect in every rank. Returns the ways by which data
    /// went.
    pub(super) fn ways(&self, plan: &Plan, release: &Release) -> Result<String> {
        let mut ways = BTreeMap::<String, usize>::new();
        for (rank, log) in self.logs() {
            let wrong = |why| Failure::wrong(format!("rank {rank}: {why}"));
            evidence::check_log(plan, release, &log).map_err(wrong)?;
            if plan.flushes() && log.contains("[receive] via NET/") {
                let report = fs::read_to_string(self.report(rank)).unwrap_or_default();
                evidence::check_flushes(&report).map_err(wrong)?;
            }
            if watch::profiles(plan, release) {
                let profile = fs::read_to_string(self.profile(rank)).unwrap_or_default();
                watch::check_profile(&profile).map_err(wrong)?;
            }
            if let Some(channels) = plan.variant.channels {
                watch::check_channels(&log, channels).map_err(wrong)?;
            }
            for way in log.lines().filter_map(|line| line.split(" via ").nth(1)) {
                *ways.entry(way.trim().to_owned()).or_default() += 1;
            }
        }
        if plan.uses_plugin() && plan.rates.is_none() && !self.changed {
            let topology = fs::read_to_string(self.logs.join(TOPOLOGY)).unwrap_or_default();
            let share = self.environment.contains_key("MPIB_SUP_SHARE");
            evidence::check_speeds(&topology, &speeds(plan, share)).map_err(Failure::wrong)?;
        }
        let seen: Vec<_> = ways.iter().map(|(way, times)| format!("{times} x {way}")).collect();
        let seen = if seen.is_empty() { "no connections".into() } else { seen.join(", ") };
        let missing = |mark| !ways.keys().any(|way| way.contains(mark));
        if plan.variant.gpudirect && missing("GDRDMA") {
            return Err(Failure::wrong(format!("no connection uses GPUDirect: {seen}")));
        }
        let share_host = (0..self.hosts.len()).any(|rank| self.device(rank as u32) > 0);
        if plan.variant.vmm && share_host && missing("CUMEM") {
            return Err(Failure::wrong(format!("no connection uses cuMem handles: {seen}")));
        }
        Ok(seen)
    }

    /// Returns what NCCL's logs have of one-sided transfers that failed without a word to the ranks.
    pub(super) fn hidden_errors(&self) -> String {
        let of = |(rank, log): (u32, String)| {
            let code = evidence::hidden_error(&log)?;
            Some(format!("; rank {rank}: NCCL's thread for one-sided transfers has ended by error {code}"))
        };
        self.logs().filter_map(of).collect()
    }

    /// Copies NCCL's logs and what the ranks have written to a folder.
    pub(super) fn keep_logs(&self, to: &Path) -> Result<()> {
        fs::create_dir_all(to).cannot(format!("make {}", to.display()))?;
        let entries = fs::read_dir(&self.logs).cannot(format!("list {}", self.logs.display()))?;
        for from in entries.flatten().map(|entry| entry.path()) {
            let name = from.file_name().unwrap_or_default();
            if ["nccl-", "stderr-", "softverbs-", "profile-"]
                .iter()
                .any(|kind| name.as_encoded_bytes().starts_with(kind.as_bytes()))
            {
                fs::copy(&from, to.join(name)).cannot(format!("copy {}", from.display()))?;
            }
        }
        Ok(())
    }
}

/// Sets what ranks on GPUs need of this machine.
fn of_this_machine(set: &mut impl FnMut(&str, &str) -> Option<String>) {
    // The rails are simulated: they access host memory only.
    set("NCCL_NET_GDR_LEVEL", "LOC");
    if let Ok(devices) = env::var("CUDA_VISIBLE_DEVICES") {
        set("CUDA_VISIBLE_DEVICES", &devices);
    }
    // The driver's library may be on the user's path only.
    if let Ok(path) = env::var("LD_LIBRARY_PATH") {
        let ours = set("LD_LIBRARY_PATH", "").unwrap_or_default();
        set("LD_LIBRARY_PATH", &format!("{ours}:{path}"));
    }
}

/// Returns the speed in Mb/s of each of the plugin's devices. `share`: large messages are split over
/// the rails of the profile MPIB; otherwise a connection uses one of them.
fn speeds(plan: &Plan, share: bool) -> Vec<u32> {
    // What softverbs shows of a port without a rate, and of a slow one.
    let [first, second] = [0, 1].map(|rail| if is_slow(plan, rail) { 2_500 } else { 100_000 });
    match plan.net {
        Net::Mpib if share => vec![first + second],
        Net::Mpib => vec![first.max(second)],
        _ => vec![first, second],
    }
}

fn is_slow(plan: &Plan, rail: usize) -> bool {
    plan.variant.slow_rails || plan.variant.slow && rail == 1
}

/// Returns the properties of the rails' adapters.
fn devices(plan: &Plan, tree: &Path) -> Result<[String; 2]> {
    let dma_buf = match (plan.variant.dma_buf, plan.variant.is_flushed()) {
        (true, true) => POSTED,
        (true, false) => ",dmabuf=on",
        (false, _) => "",
    };
    let rate = |rail: usize| plan.rates.map_or(String::new(), |rates| format!(",rate={}MB", rates[rail]));
    let slow = |rail: usize| if is_slow(plan, rail) { SLOW } else { "" };
    let keys = [0, 1].map(|rail| format!("{dma_buf}{}{}", rate(rail), slow(rail)));
    if !matches!(plan.net, Net::Fused | Net::Ib) {
        return Ok(keys);
    }
    let card = Tree::card(RAILS);
    card.write(tree).cannot("make a tree of PCI devices")?;
    let folders: Vec<_> = card.adapters().into_iter().map(|adapter| adapter.folder(tree)).collect();
    Ok([0, 1].map(|rail| format!("{},sysfs={}", keys[rail], folders[rail].display())))
}
