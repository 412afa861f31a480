//! Checks which tables a release looks for in plugins, of networks and of everything else. A release
//! with a new one changes what this plugin should have, or what carries a program's data beside it.

use std::collections::{BTreeMap, BTreeSet};

use super::{Bench, versions};
use crate::{
    elf,
    failure::{Failure, Result},
    matrix::Release,
    stage::Folder,
};

/// Versions by the symbol of their table without the version.
type Tables<'a> = BTreeMap<&'a str, BTreeSet<u32>>;

/// Checks that the release looks for exactly the tables that matrix.toml lists, and that the plugin
/// has the newest one of each kind that it has at all.
pub(super) fn known(bench: &Bench<'_>) -> Result<String> {
    let sought = &bench.library.sought;
    let has = elf::exports(&bench.stage.plugin_in(&Folder::Whole)?)?;
    match wrong(bench.release, sought, &has) {
        Some(what) => Err(Failure::wrong(what)),
        None => {
            let newest_first = |(name, all): (&str, BTreeSet<u32>)| {
                format!("{name} {}", versions(&all.into_iter().rev().collect::<Vec<_>>()))
            };
            Ok(tables(sought).into_iter().map(newest_first).collect::<Vec<_>>().join(", "))
        }
    }
}

/// Returns what is wrong, and what to do about it. `sought`: what the release looks for; `has`: what
/// the plugin's file exports.
fn wrong(release: &Release, sought: &BTreeSet<String>, has: &BTreeSet<String>) -> Option<String> {
    let listed = release.tables();
    let only_in = |these: &BTreeSet<String>, those: &BTreeSet<String>| {
        let names: Vec<_> = these.difference(those).map(String::as_str).collect();
        (!names.is_empty()).then(|| names.join(", "))
    };
    if let Some(names) = only_in(sought, &listed) {
        return Some(format!(
            "NCCL {release} looks for {names}, which matrix.toml does not list: read in NCCL's src/plugin \
             what it is for; a table that the plugin should have needs abi and versions first; then add it \
             to other_tables of the release (a network's to looks_up)"
        ));
    }
    if let Some(names) = only_in(&listed, sought) {
        return Some(format!(
            "NCCL {release} does not look for {names}, which matrix.toml lists: its library has no such \
             string; remove it from the release's entry"
        ));
    }
    let has = tables(has);
    let lacks = tables(sought).into_iter().find_map(|(name, sought)| {
        let (ours, newest) = (has.get(name)?.last()?, sought.last().copied()?);
        (newest > *ours).then(|| format!("{name}_v{newest}, and the plugin's newest is v{ours}"))
    });
    lacks.map(|what| format!("NCCL {release} has {what}: add the table to abi, versions and the plugin"))
}

/// Groups symbols by the part before the version. Other symbols are left out.
fn tables(symbols: &BTreeSet<String>) -> Tables<'_> {
    let mut tables = Tables::new();
    for symbol in symbols {
        let Some((name, version)) = symbol.rsplit_once("_v") else { continue };
        let Ok(version) = version.parse() else { continue };
        tables.entry(name).or_default().insert(version);
    }
    tables
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::matrix::Matrix;

    fn release() -> Release {
        Matrix::read().unwrap().one(Some(&"2.32.3".into())).unwrap()
    }

    fn plugin() -> BTreeSet<String> {
        ["ncclNetPlugin_v11", "ncclNetPlugin_v12", "ncclRmaPlugin_v16", "mpib_other"]
            .map(str::to_owned)
            .into()
    }

    /// Returns what is wrong if a release looks for one more table.
    fn with(name: &str) -> Option<String> {
        let mut sought = release().tables();
        sought.insert(name.into());
        wrong(&release(), &sought, &plugin())
    }

    #[test]
    fn tables_that_are_all_listed_are_right() {
        assert_eq!(wrong(&release(), &release().tables(), &plugin()), None);
    }

    #[test]
    fn a_table_that_is_not_listed_is_named() {
        for name in ["ncclRmaPlugin_v17", "ncclNetPlugin_v13", "ncclRailPlugin_v1", "ncclNetPlugin_v%d"] {
            let said = with(name).unwrap();
            assert!(said.starts_with(&format!("NCCL 2.32.3 looks for {name}, which")), "{said}");
        }
    }

    #[test]
    fn a_table_that_the_release_does_not_look_for_is_named() {
        let mut sought = release().tables();
        sought.remove("ncclEnvPlugin_v2");
        sought.remove("ncclNetPlugin_v6");
        let said = wrong(&release(), &sought, &plugin()).unwrap();
        assert!(
            said.contains("2.32.3 does not look for ncclEnvPlugin_v2, ncclNetPlugin_v6, which"),
            "{said}"
        );
    }

    #[test]
    fn a_listed_table_that_the_plugin_lacks_is_named() {
        let mut plugin = plugin();
        plugin.remove("ncclRmaPlugin_v16");
        plugin.insert("ncclRmaPlugin_v15".into());
        let said = wrong(&release(), &release().tables(), &plugin).unwrap();
        assert!(said.contains("has ncclRmaPlugin_v16, and the plugin's newest is v15"), "{said}");
    }
}
