//! Checks which table a release uses, and what it reads through it.

use super::{Bench, OURS, all_given, all_ours, versions};
use crate::{
    failure::{Failure, Result},
    matrix::Release,
    script::{Account, Step, Told},
    stage::Folder,
};

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
    match account.told.first() {
        Some(Told::Opened { table, .. }) if table == address => Ok(format!("v{version}, called in place")),
        _ => Err(Failure::wrong(format!("found v{version}, but calls another table instead"))),
    }
}

/// Checks the devices as the core reads them.
pub(super) fn devices(bench: &Bench<'_>) -> Result<String> {
    let account = bench.account(&Folder::Whole, &[], vec![Step::Open, Step::Describe(0), Step::Close(0)])?;
    all_ours(&account)?;
    let Some(Told::Described(devices)) = account.told.get(1) else {
        return Err(Failure::tool(format!("the account has no devices: {:?}", account.told)));
    };
    let [device] = &devices[..] else {
        return Err(Failure::wrong(format!(
            "{} devices of {OURS}; expected one of two rails",
            devices.len()
        )));
    };
    let expected = crate::stage::RAILS.join("+");
    if device.name != expected {
        return Err(Failure::wrong(format!("a device {:?}; expected {expected:?}", device.name)));
    }
    if device.ptr_support & nccl_net_abi::NCCL_PTR_HOST == 0 || device.max_recvs < 8 || device.speed <= 0 {
        return Err(Failure::wrong(format!("a device that cannot be used: {device:?}")));
    }
    Ok(format!("{}, {} Mb/s, {} receives in a group", device.name, device.speed, device.max_recvs))
}
