//! What NCCL's log and softverbs' report must show of a rank: that the options of its communicator
//! had their effect.

use std::collections::BTreeMap;

use super::plan::{Net, Plan, Window};
use crate::{matrix::Release, softverbs_report};

/// The first table of releases that fuse devices (2.24).
const FUSES: u32 = 9;

/// Checks the log of a rank. Returns what is wrong.
pub(super) fn check_log(plan: &Plan, release: &Release, log: &str) -> Result<(), String> {
    let network = after(log, "Using network ").map(word).next();
    if network != Some(plan.network()) {
        return Err(format!("used network {network:?}, expected {}", plan.network()));
    }
    if plan.uses_plugin() {
        check_table(release, log)?;
        check_warnings(plan, log)?;
    }
    if let Some(window) = plan.variant.window {
        check_one_sided(window, release, log)?;
    }
    if plan.net == Net::Fused && release.table >= FUSES {
        // The device that NCCL has made of both adapters, which are 0 and 1.
        check_ways(log, "NET/MPIB/", "NET/MPIB/2")?;
    }
    if plan.variant.vmm {
        // Between GPUs of one host.
        check_ways(log, "P2P/", "P2P/CUMEM")?;
    }
    if plan.variant.register && plan.variant.gpudirect && !log.contains("NET register userbuff") {
        return Err("NCCL has registered no user buffer with its network".into());
    }
    Ok(())
}

/// Checks that the plugin has warned of nothing while no rail and no rank fails, and each rail reaches
/// the one of its name.
fn check_warnings(plan: &Plan, log: &str) -> Result<(), String> {
    let variant = &plan.variant;
    let may_warn = variant.fault.is_some() || variant.killed.is_some() || variant.crossed;
    // True on a machine with a GPU's driver whose memory no module gives to adapters.
    let of_machine = |warning: &&str| !variant.gpudirect && warning.starts_with("GPUDirect RDMA is off");
    match after(log, "NCCL WARN NET/MPIB : ").find(|warning| !of_machine(warning)) {
        Some(warning) if !may_warn => Err(format!("the plugin warns: {warning}")),
        _ => Ok(()),
    }
}

/// Checks the table by which NCCL calls the plugin. The plugin logs it in its init; from 2.21 on,
/// NCCL logs which one it has found.
fn check_table(release: &Release, log: &str) -> Result<(), String> {
    let expected = format!("v{}", release.table);
    let called = after(log, "NET/MPIB : version ").filter_map(|line| line.split("table ").nth(1));
    let called: Vec<_> = called.map(|text| word(text).trim_end_matches(',')).collect();
    let found = after(log, "Loaded net plugin MPIB (").map(|text| text.split(')').next().unwrap_or(text));
    match called.first() {
        None => Err("the plugin has logged no table".into()),
        Some(_) => match called.iter().copied().chain(found).find(|table| *table != expected) {
            Some(other) => Err(format!("used table {other}, expected {expected}")),
            None => Ok(()),
        },
    }
}

/// Checks which network NCCL has chosen for one-sided transfers. Without windows between hosts it
/// chooses one, too, and does not use it.
fn check_one_sided(window: Window, release: &Release, log: &str) -> Result<(), String> {
    let Some(expected) = window.network(release) else { return Ok(()) };
    // The second text is that of 2.30.3 and 2.30.4.
    let texts = ["RMA/Plugin: Assigned plugin ", "Assigned RMA plugin "];
    match texts.iter().flat_map(|text| after(log, text)).map(word).collect::<Vec<_>>()[..] {
        [] => Err("NCCL has chosen no network for one-sided transfers".into()),
        [found] if found == expected => Ok(()),
        [found, ..] => Err(format!("NCCL has chosen {found} for one-sided transfers, expected {expected}")),
    }
}

/// Returns the error by which NCCL's thread for `ncclPutSignal` has ended in a rank, if it did. NCCL
/// reports it in its log alone: the streams wait for ever.
pub(super) fn hidden_error(log: &str) -> Option<&str> {
    after(log, "(ncclRmaProxyProgressThread) -> ").map(word).next()
}

/// Checks that all connections of a kind go the expected way.
fn check_ways(log: &str, kind: &str, expected: &str) -> Result<(), String> {
    let mut ways = after(log, " via ").filter(|way| way.starts_with(kind));
    let other = ways.find(|way| !way.starts_with(expected));
    other.map_or(Ok(()), |way| Err(format!("a connection uses {way}, expected {expected}")))
}

/// Checks the speeds of the plugin's devices in NCCL's topology. Up to 2.31 it has devices for one-sided
/// transfers alone among them.
pub(super) fn check_speeds(topology: &str, expected: &[u32]) -> Result<(), String> {
    let is_net = |line: &&str| line.starts_with("<net ") && !line.contains(" net=\"0\"");
    let nets = topology.lines().map(str::trim).filter(is_net);
    let speed = |line: &str| line.split_once(" speed=\"")?.1.split('"').next()?.parse::<u32>().ok();
    let seen: Vec<_> = nets.filter_map(speed).collect();
    match seen == expected {
        true => Ok(()),
        false => Err(format!("NCCL's topology has devices of {seen:?} Mb/s, expected {expected:?}")),
    }
}

/// Yields what follows a text in each line that has it.
fn after<'a>(log: &'a str, text: &'a str) -> impl Iterator<Item = &'a str> {
    log.lines().filter_map(move |line| line.split_once(text).map(|(_, rest)| rest.trim()))
}

fn word(text: &str) -> &str {
    text.split_whitespace().next().unwrap_or_default()
}

/// Checks softverbs' report of a rank: each device has done READs for flushes. The plugin does one
/// more on each queue pair for flushes, when it connects the queue pair.
pub(super) fn check_flushes(report: &str) -> Result<(), String> {
    let rows = softverbs_report::column(report, "read")?;
    if rows.is_empty() {
        return Err("softverbs has reported no work requests".into());
    }
    // By device: all READs, and the queue pairs that have done some.
    let mut devices = BTreeMap::<&str, (u64, u64)>::new();
    for row in rows {
        let (all, queue_pairs) = devices.entry(row.device).or_default();
        match row.queue_pair {
            "all" => *all = row.value,
            _ => *queue_pairs += u64::from(row.value > 0),
        }
    }
    match devices.iter().find(|(_, (all, queue_pairs))| all <= queue_pairs) {
        Some((device, (all, queue_pairs))) => Err(format!(
            "no flush on {device}: {all} READs on {queue_pairs} queue pairs, which are those of connecting"
        )),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::{super::plan::Variant, *};
    use crate::matrix::Matrix;

    const REPORT: &str = "\
softverbs: process 7 (collective-rank) posted, in all:
device    qp  write  write_imm  read  bytes
  sout   all      1          2     3      4
  sout  0x11      1          2     0      4
  sout  0x12      1          2     3      4
   sup   all      1          2     4      4
   sup  0x13      1          2     3      4
   sup  0x14      1          2     1      4
";

    const LOG: &str = "\
h:1:1 [0] NCCL INFO NET/Plugin: Loaded net plugin MPIB (v12)
h:1:1 [0] NCCL INFO NET/MPIB : version 0.2.0, table v12, 2 devices: sout:1
h:1:1 [0] NCCL INFO Using network MPIB
h:1:1 [0] NCCL INFO RMA/Plugin: Assigned plugin RMA_IB_PROXY to comm
h:1:1 [0] NCCL INFO Channel 00/0 : 1[0] -> 0[0] [receive] via NET/MPIB/2/GDRDMA
h:1:1 [0] NCCL INFO Channel 00/0 : 2[0] -> 0[0] [receive] via P2P/CUMEM
h:1:2 [0] NCCL INFO rank 0 - NET register userbuff 0x1 (handle 0x2), buffSize 3
";

    /// Checks a log of the newest release in which a text is replaced.
    fn check(net: Net, change: impl Fn(&mut Variant), from: &str, to: &str) -> Result<(), String> {
        let release = Matrix::read().unwrap().one(None).unwrap();
        let mut variant = Variant::PLAIN;
        change(&mut variant);
        let plan = Plan { net, variant, tests: Vec::new(), rates: None };
        assert!(LOG.contains(from), "{from}");
        check_log(&plan, &release, &LOG.replace(from, to))
    }

    #[test]
    fn each_option_must_show_in_the_log() {
        let all = |variant: &mut Variant| {
            (variant.vmm, variant.register, variant.gpudirect) = (true, true, true);
            variant.window = Some(Window::Ib);
        };
        assert_eq!(check(Net::Fused, all, "h:", "host:"), Ok(()));
        for (from, to, expected) in [
            ("network MPIB", "network Socket", "used network Some(\"Socket\"), expected MPIB"),
            ("(v12)", "(v11)", "used table v11, expected v12"),
            ("table v12", "table v10", "used table v10, expected v12"),
            ("NET/MPIB : version", "version", "the plugin has logged no table"),
            ("MPIB/2", "MPIB/1", "a connection uses NET/MPIB/1/GDRDMA, expected NET/MPIB/2"),
            ("CUMEM", "IPC", "a connection uses P2P/IPC, expected P2P/CUMEM"),
            (
                "NCCL INFO NET/MPIB : version",
                "NCCL WARN NET/MPIB : x\nNET/MPIB : version",
                "the plugin warns: x",
            ),
            ("RMA_IB_PROXY", "MPIB", "NCCL has chosen MPIB for one-sided transfers, expected RMA_IB_PROXY"),
            ("RMA/Plugin", "RMA", "NCCL has chosen no network for one-sided transfers"),
            ("NET register", "register", "NCCL has registered no user buffer with its network"),
        ] {
            assert_eq!(check(Net::Fused, all, from, to).unwrap_err(), expected);
        }
    }

    #[test]
    fn an_error_that_only_the_log_has_is_found() {
        let line = "h:1:4 [0] NCCL INFO rma/rma_proxy.cc:367 (ncclRmaProxyProgressThread) -> 6 [RMA Proxy]";
        assert_eq!(hidden_error(LOG), None);
        assert_eq!(hidden_error(&format!("{LOG}{line}\n")), Some("6"));
    }

    #[test]
    fn only_options_of_the_communicator_are_checked() {
        for (from, to) in
            [("MPIB/2", "MPIB/0"), ("RMA_IB", "x"), ("CUMEM", "IPC"), ("NET register", "register")]
        {
            assert_eq!(check(Net::Mpib, |_| {}, from, to), Ok(()), "{to}");
        }
    }

    #[test]
    fn a_machine_may_lack_the_module_for_gpu_memory() {
        let (from, warned) = (
            "NCCL INFO NET/MPIB : version",
            "NCCL WARN NET/MPIB : GPUDirect RDMA is off\nNET/MPIB : version",
        );
        assert_eq!(check(Net::Mpib, |_| {}, from, warned), Ok(()));
        let direct = |variant: &mut Variant| variant.gpudirect = true;
        assert_eq!(
            check(Net::Mpib, direct, from, warned).unwrap_err(),
            "the plugin warns: GPUDirect RDMA is off"
        );
    }

    #[test]
    fn the_devices_must_have_their_speeds() {
        let topology = "<nic>\n  <net name=\"a\" dev=\"0\" speed=\"100000\" port=\"1\"/>\n\
                        <net name=\"b\" speed=\"2500\"/>\n\
                        <net name=\"c\" speed=\"400000\" net=\"0\" rma=\"1\"/>\n</nic>";
        assert_eq!(check_speeds(topology, &[100_000, 2_500]), Ok(()));
        let wrong = check_speeds(topology, &[102_500]).unwrap_err();
        assert!(wrong.ends_with("devices of [100000, 2500] Mb/s, expected [102500]"), "{wrong}");
        assert!(check_speeds("", &[100_000]).is_err());
    }

    #[test]
    fn each_device_must_have_flushed() {
        assert_eq!(check_flushes(REPORT), Ok(()));
        let none = REPORT.replace("2     4", "2     2");
        assert!(check_flushes(&none).unwrap_err().starts_with("no flush on sup: 2 READs on 2 queue pairs"));
        let nothing = "softverbs: process 7 (x) posted, in all:\nnothing\n";
        assert!(check_flushes(nothing).unwrap_err().contains("no work requests"));
    }
}
