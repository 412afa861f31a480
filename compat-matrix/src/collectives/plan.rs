//! One communicator: its network, its ranks and its tests.

use clap::{Args, ValueEnum};
use softcuda::rank::{Collective, Memory, OneSided, Test};

use super::{args::named, fault::Fault};
use crate::{
    failure::{Failure, Result},
    matrix::{AfterDeath, RMA_TABLE, Release},
    stage::Folder,
};

/// The plugin's name in NCCL's log.
const PLUGIN: &str = "MPIB";
/// Bytes of a rank from which on NCCL uses the protocol Simple.
const FLUSHED: usize = 1 << 20;
/// Table of the first release that registers user buffers by DMA-BUF (2.24). From 2.19 on there is
/// `ncclCommRegister`, which passes addresses only. Without the module nvidia-peermem no adapter can
/// register them: 2.22 and 2.23 log "on 0 net devices", older ones log nothing, and all copy.
const REGISTERS: u32 = 9;

/// The ranks of a communicator, their hosts and GPUs.
#[derive(Debug, Clone, Args)]
pub(super) struct Variant {
    /// Ranks of each communicator
    #[arg(long, default_value_t = 2)]
    pub(super) ranks: u32,
    /// Hosts of the ranks, for instance "a a b b"; without it, each rank has another host
    #[arg(long, value_delimiter = ' ')]
    pub(super) hosts: Vec<String>,
    /// Let this rank die in the middle of the last test
    #[arg(long, value_name = "RANK")]
    pub(super) killed: Option<u32>,
    /// Let rails fail while the tests run. The tests are repeated until the faults are over
    #[arg(long, value_enum, conflicts_with = "killed")]
    pub(super) fault: Option<Fault>,
    /// Faults one after the other, each on another rail
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(super) strikes: u32,
    /// Let NCCL use this number of channels
    #[arg(long, value_name = "N")]
    pub(super) channels: Option<u32>,
    /// Query NCCL's RAS while the ranks run (from 2.24 on)
    #[arg(long, conflicts_with_all = ["killed", "fault"])]
    pub(super) ras: bool,
    /// Let NCCL's profiler count the plugin's events (from 2.26 on)
    #[arg(long, conflicts_with_all = ["killed", "fault"])]
    pub(super) profiler: bool,
    /// The network that NCCL has for one-sided transfers (from 2.30.3 on; plugin from 2.30.7 on). Each
    /// rank registers a window before the tests (ncclCommWindowRegister), which no test uses
    #[arg(long, value_enum, value_name = "NETWORK", requires_all = ["vmm", "gpudirect", "dma_buf"])]
    pub(super) window: Option<Window>,
    /// What the ranks do in each other's memory before the collectives, with commas: put
    /// (ncclPutSignal), signal (ncclSignal), gin (what a kernel with GIN posts)
    #[arg(long, value_delimiter = ',', value_parser = one_sided, requires = "window")]
    pub(super) one_sided: Vec<OneSided>,
    /// Let the first rail of one host reach the second one of the other, as cables do
    #[arg(long)]
    pub(super) crossed: bool,
    /// Register the buffers with NCCL (ncclCommRegister, from 2.24 on)
    #[arg(long)]
    pub(super) register: bool,
    /// Make windows of the buffers (ncclMemAlloc, ncclCommWindowRegister, from 2.27 on); the test
    /// put-signal needs them
    #[arg(long, conflicts_with = "register")]
    pub(super) windows: bool,
    /// Let the second rail be slow: its data arrives later than that of the first
    #[arg(long)]
    pub(super) slow: bool,
    /// Let both rails be slow, without a share that splits messages: each travels whole on one rail
    #[arg(long, conflicts_with = "slow")]
    pub(super) slow_rails: bool,
    /// Let NICs reach GPU memory
    #[arg(long)]
    pub(super) gpudirect: bool,
    /// Let NCCL use virtual memory management (cuMem)
    #[arg(long)]
    pub(super) vmm: bool,
    /// Let GPU memory be exported as a DMA-BUF, and let the adapters register it
    #[arg(long)]
    pub(super) dma_buf: bool,
    /// Compute capability times ten; below 90, NCCL flushes received data
    #[arg(long, default_value_t = 90)]
    pub(super) capability: u32,
    /// The protocol of NCCL's kernels, if NCCL must not choose it.
    #[arg(skip)]
    pub(super) protocol: Option<Protocol>,
}

fn one_sided(name: &str) -> std::result::Result<OneSided, String> {
    named("one-sided test", name).map_err(|failure| failure.message)
}

/// A protocol of NCCL's kernels.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Protocol {
    Simple,
    #[value(name = "ll")]
    LL,
    #[value(name = "ll128")]
    LL128,
}

impl Variant {
    /// Two ranks on two hosts.
    pub(super) const PLAIN: Self = Self {
        ranks: 2,
        hosts: Vec::new(),
        killed: None,
        fault: None,
        strikes: 1,
        channels: None,
        ras: false,
        profiler: false,
        window: None,
        one_sided: Vec::new(),
        crossed: false,
        register: false,
        windows: false,
        slow: false,
        slow_rails: false,
        gpudirect: false,
        vmm: false,
        dma_buf: false,
        capability: 90,
        protocol: None,
    };

    /// Returns whether NCCL flushes what its NICs write to GPUs.
    pub(super) const fn is_flushed(&self) -> bool {
        self.gpudirect && self.capability < 90
    }

    /// Returns the host of each rank.
    pub(super) fn hosts(&self) -> Vec<String> {
        match self.hosts.is_empty() {
            true => (0..self.ranks).map(|rank| format!("host{rank}")).collect(),
            false => self.hosts.clone(),
        }
    }

    /// Returns how many GPUs a host must have.
    pub(super) fn gpus(&self) -> u32 {
        let hosts = self.hosts();
        let of = |host| hosts.iter().filter(|other| *other == host).count() as u32;
        hosts.iter().map(of).max().unwrap_or(0)
    }

    pub(super) const fn memory(&self) -> Memory {
        match (self.register, self.windows) {
            (true, _) => Memory::Registered,
            (false, true) => Memory::Windows,
            (false, false) => Memory::Plain,
        }
    }

    /// Returns whether the ranks must get an asynchronous error.
    pub(super) fn ends_in_error(&self) -> bool {
        self.killed.is_some() || self.fault == Some(Fault::NoRail)
    }

    pub(super) fn check(&self) -> Result<()> {
        let hosts = self.hosts.len();
        if self.ranks == 0 || (hosts > 0 && hosts != self.ranks as usize) {
            return Err(Failure::usage(format!("{} ranks and {hosts} hosts", self.ranks)));
        }
        if let Some(rank) = self.killed.filter(|rank| *rank >= self.ranks) {
            return Err(Failure::usage(format!("there is no rank {rank} to kill")));
        }
        if self.killed.is_some() && self.ranks == 1 {
            return Err(Failure::usage("a killed rank needs another one, which gets the error"));
        }
        Ok(())
    }

    fn describe(&self) -> String {
        let killed = self.killed.map(|rank| format!("rank {rank} killed"));
        let switches = [
            (!self.hosts.is_empty()).then(|| format!("hosts {}", self.hosts.join(" "))),
            self.gpudirect.then(|| "GPUDirect".into()),
            (self.capability < 90).then(|| "flush".into()),
            self.dma_buf.then(|| "DMA-BUF".into()),
            self.vmm.then(|| "VMM".into()),
            self.window.map(|window| window.describe().into()),
            (!self.one_sided.is_empty()).then(|| {
                let names: Vec<_> = self.one_sided.iter().map(|test| test.name()).collect();
                names.join(" ")
            }),
            self.crossed.then(|| "crossed cables".into()),
            self.register.then(|| "registered".into()),
            self.windows.then(|| "windows".into()),
            self.protocol.map(|protocol| format!("{protocol:?}")),
            self.slow.then(|| "slow rail".into()),
            self.slow_rails.then(|| "slow rails".into()),
            self.channels.map(|channels| format!("{channels} channels")),
            self.ras.then(|| "RAS".into()),
            self.profiler.then(|| "profiler".into()),
            killed,
            self.fault.map(|fault| fault.describe().into()),
            (self.strikes > 1).then(|| format!("{} times", self.strikes)),
        ];
        let all = [Some(format!("{} ranks", self.ranks))].into_iter().chain(switches);
        all.flatten().collect::<Vec<_>>().join(", ")
    }
}

/// Which network NCCL has for what a program does in a window.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Window {
    /// This plugin's table for it.
    Plugin,
    /// NCCL's own InfiniBand code, the control. The plugin's table is hidden from NCCL.
    Ib,
    /// None: `NCCL_NUM_RMA_CTX=0`, or before 2.30.7 `NCCL_CROSS_NIC=0`, and
    /// `NCCL_SYM_GIN_KERNELS_ENABLE=0`. Windows work inside a host.
    Host,
    /// None, by `NCCL_IB_DISABLE=1` and without the plugin's table: there are no windows.
    Off,
}

impl Window {
    /// Returns the settings of a release.
    pub(super) fn settings(self, release: &Release) -> &'static [(&'static str, &'static str)] {
        match self {
            // softverbs' GIDs have no types in sysfs.
            Self::Ib => &[("NCCL_IB_DISABLE", "0"), ("NCCL_IB_GID_INDEX", "3")],
            Self::Host if release.is_at_least(RMA_TABLE) => &[
                ("NCCL_IB_DISABLE", "0"),
                ("NCCL_IB_GID_INDEX", "3"),
                ("NCCL_NUM_RMA_CTX", "0"),
                ("NCCL_SYM_GIN_KERNELS_ENABLE", "0"),
            ],
            Self::Host => &[
                ("NCCL_IB_DISABLE", "0"),
                ("NCCL_IB_GID_INDEX", "3"),
                ("NCCL_CROSS_NIC", "0"),
                ("NCCL_SYM_GIN_KERNELS_ENABLE", "0"),
            ],
            Self::Plugin | Self::Off => &[("NCCL_IB_DISABLE", "1")],
        }
    }

    /// Returns the folder in which NCCL finds the plugin.
    pub(super) fn folder(self) -> Folder {
        if self == Self::Plugin { Folder::Whole } else { Folder::WithoutRma }
    }

    /// Returns the name of the network in a release's log.
    pub(super) fn network(self, release: &Release) -> Option<&'static str> {
        match self {
            Self::Plugin => Some(PLUGIN),
            Self::Ib if release.is_at_least(RMA_TABLE) => Some("RMA_IB_PROXY"),
            Self::Ib => Some("GIN_IB_PROXY"),
            Self::Host | Self::Off => None,
        }
    }

    /// Returns whether `ncclCommWindowRegister` returns a handle.
    pub(super) fn has_handle(self) -> bool {
        self != Self::Off
    }

    fn describe(self) -> &'static str {
        match self {
            Self::Plugin => "window by the plugin",
            Self::Ib => "window",
            Self::Host => "window inside a host",
            Self::Off => "no window",
        }
    }
}

/// The network.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub(crate) enum Net {
    /// One device with both rails (`MPIB_HCA_SOUT` and `MPIB_HCA_SUP`).
    Mpib,
    /// No setting of the plugin.
    Default,
    /// The two devices are functions of one card, which NCCL fuses from 2.24 on.
    Fused,
    /// NCCL's own InfiniBand transport, with the adapters of `Fused`. It finds them only below
    /// /sys/class/infiniband (scripts/bench-collectives.sh).
    Ib,
    /// NCCL's own sockets, the control: what fails there too is not the plugin's fault.
    Socket,
}

/// One communicator.
#[derive(Debug, Clone)]
pub(crate) struct Plan {
    pub(super) net: Net,
    pub(super) variant: Variant,
    pub(super) tests: Vec<Test>,
    /// MB/s of each rail if the tests are timed.
    pub(super) rates: Option<[u32; 2]>,
}

impl Plan {
    /// Returns what the communicator is, in words.
    pub(super) fn name(&self) -> String {
        format!("{}, {}", format!("{:?}", self.net).to_lowercase(), self.variant.describe())
    }

    /// Returns whether NCCL uses this plugin.
    pub(super) fn uses_plugin(&self) -> bool {
        self.network() == PLUGIN
    }

    /// Returns whether the plugin must flush received data in every rank: NCCL requests it for what
    /// arrives in GPU memory by the protocol Simple, which it uses for large tests.
    pub(super) fn flushes(&self) -> bool {
        let large = |test: &Test| test.count * test.element.size() >= FLUSHED;
        let variant = &self.variant;
        let receives = variant.is_flushed() && variant.ranks > 1;
        receives && self.uses_plugin() && !variant.ends_in_error() && self.tests.iter().any(large)
    }

    fn puts(&self) -> bool {
        self.tests.iter().any(|test| test.collective == Collective::PutSignal)
    }

    /// Returns the same communicator over NCCL's sockets, or its InfiniBand code for one-sided
    /// transfers: what fails there too is the core's fault. `None` if they cannot run it.
    pub(crate) fn control(&self) -> Option<Self> {
        if self.net == Net::Socket || self.variant.fault.is_some() {
            return None;
        }
        match self.variant.window {
            Some(Window::Plugin) => {
                let variant = Variant { window: Some(Window::Ib), ..self.variant.clone() };
                return Some(Self { variant, ..self.clone() });
            }
            Some(_) => return None,
            None => {}
        }
        // The network sees host memory only.
        let variant = Variant { gpudirect: false, dma_buf: false, ..self.variant.clone() };
        Some(Self { net: Net::Socket, variant, ..self.clone() })
    }

    /// Returns the network that NCCL must report.
    pub(super) fn network(&self) -> &'static str {
        match self.net {
            Net::Socket => "Socket",
            Net::Ib => "IB",
            Net::Mpib | Net::Default | Net::Fused => PLUGIN,
        }
    }

    /// Returns why a release cannot have the communicator's network for one-sided transfers, if so.
    fn unfit_window(&self, release: &Release) -> Option<&'static str> {
        let tests = &self.variant.one_sided;
        let Some(window) = self.variant.window else {
            return (!tests.is_empty()).then_some("one-sided transfers need a network");
        };
        match window {
            Window::Host | Window::Off if !tests.is_empty() => Some("one-sided transfers need a network"),
            _ if release.is_at_least(RMA_TABLE) => None,
            Window::Plugin => Some("the release uses no table of a plugin for one-sided transfers"),
            Window::Ib if !release.is_at_least("2.29.2") => Some("the release has no one-sided transfers"),
            // 2.29.2 makes no window, and 2.29.7 has a kernel that resets signals.
            Window::Ib if !release.is_at_least("2.30.3") => Some("its one-sided transfers are unknown"),
            Window::Ib if tests.contains(&OneSided::Gin) => Some("its descriptors of GIN are unknown"),
            Window::Host | Window::Off if !release.is_at_least("2.30.3") => {
                Some("its windows were not tried")
            }
            Window::Ib | Window::Host | Window::Off => None,
        }
    }

    /// Returns why a release cannot run the communicator, if so.
    pub(crate) fn unfit(&self, release: &Release) -> Option<&'static str> {
        if let Some(why) = self.unfit_window(release) {
            return Some(why);
        }
        match release.after_death {
            _ if self.variant.register && release.table < REGISTERS => {
                Some("the release does not register user buffers by DMA-BUF")
            }
            _ if self.variant.ras && !release.is_at_least("2.24") => Some("the release has no RAS"),
            _ if self.variant.windows && !release.is_at_least("2.27") => Some("the release has no windows"),
            _ if self.puts() && !release.is_at_least("2.29") => Some("the release has no ncclPutSignal"),
            _ if self.puts() && !self.variant.windows => Some("ncclPutSignal needs --windows"),
            _ if !self.variant.ends_in_error() => None,
            AfterDeath::Error => None,
            AfterDeath::NoError => Some("the release drops errors of its network"),
            AfterDeath::NoAbort => Some("ncclCommAbort does not return after an error"),
        }
    }
}

#[cfg(test)]
mod tests {
    use softcuda::{DataType, rank::Operator};

    use super::*;
    use crate::matrix::Matrix;

    #[test]
    fn a_host_needs_a_gpu_for_each_of_its_ranks() {
        let on = |hosts: &str| {
            let hosts: Vec<_> = hosts.split(' ').map(str::to_owned).collect();
            Variant { ranks: hosts.len() as u32, hosts, ..Variant::PLAIN }.gpus()
        };
        assert_eq!(Variant::PLAIN.gpus(), 1);
        assert_eq!(["a b", "a a b", "a b a b"].map(on), [1, 2, 2]);
    }

    #[test]
    fn a_release_without_the_network_for_one_sided_transfers_is_unfit() {
        let unfit = |version: &str, window, one_sided: &[OneSided]| {
            let release = Matrix::read().unwrap().one(Some(&version.to_owned())).unwrap();
            let variant = Variant { window, one_sided: one_sided.to_vec(), ..Variant::PLAIN };
            Plan { net: Net::Mpib, variant, tests: Vec::new(), rates: None }.unfit(&release).is_some()
        };
        let (put, gin) = (&[OneSided::Put][..], &[OneSided::Put, OneSided::Gin][..]);
        for window in [None, Some(Window::Host), Some(Window::Off)] {
            assert!(unfit("2.32.3", window, put) && !unfit("2.32.3", window, &[]), "{window:?}");
        }
        for (version, by_plugin, by_ib, gin_by_ib) in [
            ("2.32.3", false, false, false),
            ("2.30.7", false, false, false),
            ("2.30.4", true, false, true),
            ("2.30.3", true, false, true),
            ("2.29.7", true, true, true),
            ("2.18.3", true, true, true),
        ] {
            assert_eq!(unfit(version, Some(Window::Plugin), gin), by_plugin, "{version}");
            assert_eq!(unfit(version, Some(Window::Ib), put), by_ib, "{version}");
            assert_eq!(unfit(version, Some(Window::Ib), gin), gin_by_ib, "{version}");
        }
        for window in [None, Some(Window::Host), Some(Window::Off)] {
            assert!(!unfit("2.30.4", window, &[]) && !unfit("2.30.3", window, &[]), "{window:?}");
        }
        assert!(unfit("2.29.7", Some(Window::Host), &[]) && unfit("2.29.7", Some(Window::Off), &[]));
    }

    #[test]
    fn each_release_gets_the_settings_that_leave_its_windows_without_a_network() {
        let has = |version: &str, name: &str| {
            let release = Matrix::read().unwrap().one(Some(&version.to_owned())).unwrap();
            Window::Host.settings(&release).contains(&(name, "0"))
        };
        for (version, rma, nic) in [("2.30.4", false, true), ("2.30.7", true, false)] {
            assert_eq!(has(version, "NCCL_NUM_RMA_CTX"), rma, "{version}");
            assert_eq!(has(version, "NCCL_CROSS_NIC"), nic, "{version}");
            assert!(has(version, "NCCL_SYM_GIN_KERNELS_ENABLE"), "{version}");
        }
    }

    #[test]
    fn a_release_without_windows_or_put_signal_is_unfit() {
        let test = |collective| Test {
            collective,
            element: DataType::F32,
            operator: Operator::Sum,
            count: 1,
            times: 1,
        };
        let unfit = |version: &str, windows, collective| {
            let release = Matrix::read().unwrap().one(Some(&version.to_owned())).unwrap();
            let variant = Variant { windows, ..Variant::PLAIN };
            Plan { net: Net::Mpib, variant, tests: vec![test(collective)], rates: None }.unfit(&release)
        };
        assert_eq!(unfit("2.26.5", true, Collective::AllReduce), Some("the release has no windows"));
        assert_eq!(unfit("2.27.3", true, Collective::AllReduce), None);
        assert_eq!(unfit("2.28.9", true, Collective::PutSignal), Some("the release has no ncclPutSignal"));
        assert_eq!(unfit("2.29.2", false, Collective::PutSignal), Some("ncclPutSignal needs --windows"));
        assert_eq!(unfit("2.29.2", true, Collective::PutSignal), None);
    }
}
