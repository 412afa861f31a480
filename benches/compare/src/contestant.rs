//! A plugin in the comparison, as the command line names it.

use std::{path::PathBuf, str::FromStr};

use serde::Serialize;

use mpib::failure::Failure;
use nccl_net_host::Family;

use crate::scenario::Scenario;

/// A file, and one of its tables.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct Contestant {
    pub(super) name: String,
    pub(super) plugin: PathBuf,
    /// Symbol of a table that is not exported.
    pub(super) table: Option<String>,
    /// The table's version; `None` chooses the newest exported one.
    pub(super) abi: Option<u32>,
    /// Whether makeVDevice merges several rails into one device.
    pub(super) merge: bool,
    /// Variables of its processes, in addition to those of the scenario.
    pub(super) env: Vec<(String, String)>,
}

impl Contestant {
    /// Returns the plugin of this project.
    pub(super) fn ours(plugin: PathBuf) -> Self {
        Self { name: "mpib".into(), plugin, table: None, abi: None, merge: false, env: Vec::new() }
    }

    /// Returns whether its rails in a scenario are merged by makeVDevice.
    pub(super) fn merges(&self, scenario: &Scenario) -> bool {
        scenario.rates.len() > 1 && (self.merge || !scenario.settings)
    }

    /// Checks that the file has a network table; returns its version.
    pub(super) fn check(&self) -> Result<u32, Failure> {
        self.check_table(Family::NET)
    }

    /// Checks that the file has the table of a family; returns its version.
    pub(super) fn check_table(&self, family: &Family) -> Result<u32, Failure> {
        match (&self.table, self.abi) {
            (Some(table), Some(version)) => {
                family.check_hidden(&self.plugin, table, version)?;
                Ok(version)
            }
            _ => {
                let exported = family.exported(&self.plugin)?;
                let chosen = self
                    .abi
                    .map_or_else(|| exported.first().copied(), |v| exported.contains(&v).then_some(v));
                chosen.ok_or_else(|| {
                    let text =
                        format!("{} exports no table v{}", self.plugin.display(), self.abi.unwrap_or(0));
                    Failure::new(mpib::failure::Kind::Load, text)
                })
            }
        }
    }
}

impl FromStr for Contestant {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut words = text.split(',');
        let file = PathBuf::from(words.next().unwrap_or_default());
        let name = file.file_name().ok_or_else(|| format!("{text:?} begins with no file"))?;
        let name = name.to_string_lossy().into_owned();
        let mut one = Self { name, plugin: file, table: None, abi: None, merge: false, env: Vec::new() };
        let mut named = false;
        for word in words {
            match word.split_once('=') {
                Some(("table", symbol)) if !symbol.is_empty() => one.table = Some(symbol.into()),
                Some(("abi", version)) => one.abi = Some(mpib::one_abi(version)?),
                Some(("name", name)) if !name.is_empty() => (one.name, named) = (name.into(), true),
                Some(("env", pair)) if pair.contains('=') => {
                    one.env.extend(pair.split_once('=').map(|(name, value)| (name.into(), value.into())));
                }
                None if word == "merge" => one.merge = true,
                _ => {
                    let expected = "table=SYMBOL, abi=vN, name=TEXT, env=NAME=VALUE or merge";
                    return Err(format!("{word:?}: expected {expected}"));
                }
            }
        }
        if let Some(table) = &one.table {
            if one.abi.is_none() {
                return Err(format!("table={table} needs abi=vN: the symbol has no version"));
            }
            if !named {
                one.name.clone_from(table);
            }
        }
        Ok(one)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_with_what_is_said_of_it() {
        let parse = |text: &str| text.parse::<Contestant>();
        let plain = parse("/a/libnccl-net-x.so").unwrap();
        assert_eq!((plain.name.as_str(), plain.abi, plain.merge), ("libnccl-net-x.so", None, false));
        let hidden = parse("/a/libnccl.so.2,table=ncclNetIb,abi=v12,merge").unwrap();
        assert_eq!((hidden.name.as_str(), hidden.abi, hidden.merge), ("ncclNetIb", Some(12), true));
        assert_eq!(hidden.table.as_deref(), Some("ncclNetIb"));
        assert_eq!(parse("/a/b.so,name=net_ib,abi=8").unwrap().name, "net_ib");
        let set = parse("/a/b.so,env=A=1,env=B=x=y").unwrap().env;
        assert_eq!(set, [("A".into(), "1".into()), ("B".into(), "x=y".into())]);
    }

    #[test]
    fn what_makes_no_sense_is_named() {
        let wrong = |text: &str| text.parse::<Contestant>().unwrap_err();
        assert!(wrong("").contains("no file"));
        assert!(wrong("a.so,table=x").contains("needs abi=vN"));
        assert!(wrong("a.so,abi=v5").contains("expected v6 to v12"));
        for word in ["fast", "merge=1", "name=", "table=", "env=A"] {
            assert!(wrong(&format!("a.so,{word}")).contains("expected table=SYMBOL"), "{word}");
        }
    }
}
