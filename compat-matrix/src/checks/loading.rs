//! Checks which table a release uses, and what it reads through it.

use std::{fs, path::Path};

use nccl_net_abi::{NCCL_PTR_CUDA, NCCL_PTR_HOST};
use nccl_net_versions::MAX_RECVS;

use super::{Bench, OURS, all_given, all_ours, versions};
use crate::{
    failure::{Context, Failure, Result},
    matrix::Release,
    script::{Account, Described, Step, StepResult},
    stage::{Folder, RAILS},
};

/// The first table with `regIsGlobal`.
const HAS_GLOBAL: u32 = 8;
/// What softverbs shows of a port without a rate, for both rails.
const SPEED: i32 = 200_000;
/// `max_qp` of a softverbs device.
const QUEUE_PAIRS: i32 = 32_768;
/// The largest message that releases before `maxP2pBytes` send. A softverbs port has a larger limit,
/// which the tables cut.
const MESSAGE: usize = 1 << 30;
/// How the plugin refuses device -1.
const REFUSED: &str = "NET/MPIB : getProperties: dev is -1, expected 0 or more";
/// One of these files exists while a kernel module gives GPU memory to adapters. The plugin looks
/// for the same ones.
const PEER_MEMORY: [&str; 6] = [
    "/sys/module/nvidia_peermem/version",
    "/sys/kernel/mm/memory_peers/nv_mem/version",
    "/sys/kernel/mm/memory_peers/nv_mem_nc/version",
    "/sys/kernel/mm/memory_peers/amdkfd/version",
    "/sys/kernel/memory_peers/amdkfd/version",
    "/sys/memory_peers/amdkfd/version",
];

/// Checks which tables are looked up, and in which order, with a plugin that has none.
pub(super) fn lookup(bench: &Bench<'_>) -> Result<String> {
    let account = bench.account(&Folder::Only(Vec::new()), &[], vec![Step::Open])?;
    let number: Vec<u32> = bench.release.version.split('.').filter_map(|part| part.parse().ok()).collect();
    if let [major, minor, patch] = number[..]
        && account.version != (major * 10_000 + minor * 100 + patch).cast_signed()
    {
        return Err(Failure::wrong(format!("the library reports release {}", account.version)));
    }
    let mut order: Vec<u32> = account.tables().into_iter().map(|(version, _)| version).collect();
    order.dedup();
    if order != bench.release.looks_up {
        return Err(Failure::wrong(format!(
            "looks for {}; matrix.toml expects {}",
            versions(&order),
            versions(&bench.release.looks_up)
        )));
    }
    Ok(versions(&order))
}

/// Checks which table of the complete plugin is used, and whether the core calls it without a
/// wrapper.
pub(super) fn table(bench: &Bench<'_>) -> Result<String> {
    let account = bench.account(&Folder::Whole, &[], vec![Step::Open, Step::Close(0)])?;
    in_place(bench.release, &account)
}

/// Checks that the core uses the newest table that it knows, and calls it without a wrapper.
pub(crate) fn in_place(release: &Release, account: &Account) -> Result<String> {
    in_place_of(release, account, OURS)
}

/// Like [`in_place`], for a plugin of any name.
pub(crate) fn in_place_of(release: &Release, account: &Account, name: &str) -> Result<String> {
    all_given(account, name)?;
    let tables = account.tables();
    let Some((version, address)) = tables.iter().find(|(_, address)| *address != 0) else {
        return Err(Failure::wrong("found no table of the plugin"));
    };
    if *version != release.table {
        return Err(Failure::wrong(format!("used v{version}; matrix.toml expects v{}", release.table)));
    }
    match account.results.first() {
        Some(StepResult::Opened { table, .. }) if table == address => {
            Ok(format!("v{version}, called in place"))
        }
        _ => Err(Failure::wrong(format!("found v{version}, but calls another table instead"))),
    }
}

/// Checks the devices as the core reads them, and that its log has the reason why another number is
/// refused.
pub(super) fn devices(bench: &Bench<'_>) -> Result<String> {
    let log = bench.stage.home.file("warnings");
    let (level, file) = (("NCCL_DEBUG", Some("WARN")), ("NCCL_DEBUG_FILE", log.to_str()));
    let steps = vec![Step::Open, Step::Describe(0), Step::Misuse(0), Step::Close(0)];
    let account = bench.account(&Folder::Whole, &[level, file], steps)?;
    all_ours(&account)?;
    let warnings = fs::read_to_string(&log).cannot(format!("read {}", log.display()))?;
    if !warnings.contains(REFUSED) {
        return Err(Failure::wrong(format!("NCCL_DEBUG=WARN does not show {REFUSED:?}: {warnings:?}")));
    }
    let Some(StepResult::Described(devices)) = account.results.get(1) else {
        return Err(Failure::tool(format!("the account has no devices: {:?}", account.results)));
    };
    let [described] = &devices[..] else {
        return Err(Failure::wrong(format!(
            "{} devices of {OURS}; expected one of two rails",
            devices.len()
        )));
    };
    let direct = PEER_MEMORY.iter().any(|file| Path::new(file).exists());
    let wrong = differences(described, bench.release.table, direct);
    if !wrong.is_empty() {
        return Err(Failure::wrong(format!("the device has {}", wrong.join(", "))));
    }
    let device = &described.device;
    Ok(format!("{}, {} Mb/s, {} receives in a group", device.name, device.speed, device.max_recvs))
}

/// Returns each property that differs from what the plugin documents for the rails of
/// [`Stage::environment`](crate::stage::Stage::environment). `direct`: the machine gives GPU memory
/// to adapters.
fn differences(described: &Described, table: u32, direct: bool) -> Vec<String> {
    let Described { device, max_comms, reg_is_global } = described;
    let cuda = if direct { NCCL_PTR_CUDA } else { 0 };
    // SUP has the most queue pairs of both rails: four, and one for flushes.
    let connections = if direct { QUEUE_PAIRS / 5 } else { QUEUE_PAIRS / 4 };
    let global = (table >= HAS_GLOBAL).then_some(true);
    let compared = [
        ("name", format!("{:?}", device.name), format!("{:?}", RAILS.join("+"))),
        ("speed", device.speed.to_string(), SPEED.to_string()),
        ("ptrSupport", device.ptr_support.to_string(), (NCCL_PTR_HOST | cuda).to_string()),
        ("maxRecvs", device.max_recvs.to_string(), MAX_RECVS.to_string()),
        ("maxComms", max_comms.to_string(), connections.to_string()),
        ("maxP2pBytes", device.max_bytes.to_string(), MESSAGE.to_string()),
        ("regIsGlobal", format!("{reg_is_global:?}"), format!("{global:?}")),
    ];
    let wrong = compared.into_iter().filter(|(_, is, expected)| is != expected);
    wrong.map(|(name, is, expected)| format!("{name} {is}, expected {expected}")).collect()
}

#[cfg(test)]
mod tests {
    use mpib::device::Device;

    use super::*;

    type Change = fn(&mut Described);

    fn right() -> Described {
        let name = RAILS.join("+");
        let (max_recvs, ptr_support) = (MAX_RECVS as i32, NCCL_PTR_HOST);
        let device = Device { name, speed: SPEED, max_recvs, ptr_support, max_bytes: MESSAGE };
        Described { device, max_comms: QUEUE_PAIRS / 4, reg_is_global: Some(true) }
    }

    #[test]
    fn every_property_is_compared() {
        assert_eq!(differences(&right(), 12, false), [""; 0]);
        let changes: [(Change, &str); 7] = [
            (|d| d.device.name = "sout".into(), "name \"sout\", expected \"sout+sup\""),
            (|d| d.device.speed = 100_000, "speed 100000, expected 200000"),
            (|d| d.device.ptr_support = 3, "ptrSupport 3, expected 1"),
            (|d| d.device.max_recvs = 1, "maxRecvs 1, expected 8"),
            (|d| d.max_comms = 1, "maxComms 1, expected 8192"),
            (|d| d.device.max_bytes = 1 << 16, "maxP2pBytes 65536, expected 1073741824"),
            (|d| d.reg_is_global = Some(false), "regIsGlobal Some(false), expected Some(true)"),
        ];
        for (change, expected) in changes {
            let mut wrong = right();
            change(&mut wrong);
            assert_eq!(differences(&wrong, 12, false), [expected]);
        }
    }

    #[test]
    fn a_module_for_gpu_memory_changes_what_is_expected() {
        let mut direct = right();
        assert_eq!(differences(&direct, 12, true).len(), 2);
        (direct.device.ptr_support, direct.max_comms) = (NCCL_PTR_HOST | NCCL_PTR_CUDA, QUEUE_PAIRS / 5);
        assert_eq!(differences(&direct, 12, true), [""; 0]);
    }

    #[test]
    fn older_tables_lack_a_property() {
        let mut old = right();
        old.reg_is_global = None;
        assert_eq!(differences(&old, 7, false), [""; 0]);
        assert_eq!(differences(&old, 8, false), ["regIsGlobal None, expected Some(true)"]);
    }
}
