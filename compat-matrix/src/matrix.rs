//! `matrix.toml`: the releases and the facts about each. The file's first lines explain every key.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
};

use serde::{Deserialize, Serialize};

use crate::{
    failure::{Failure, Result},
    report::Version,
};

const TEXT: &str = include_str!("../matrix.toml");

/// The symbol of the network's tables, without the version.
const NETWORK: &str = "ncclNetPlugin";

/// The whole file.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Matrix {
    /// The package whose wheels hold the library.
    pub(crate) package: String,
    /// Oldest first.
    #[serde(rename = "release")]
    pub(crate) releases: Vec<Release>,
}

/// The first release that uses a plugin's table for one-sided transfers, and takes
/// `NCCL_NUM_RMA_CTX=0` against it.
pub(crate) const RMA_TABLE: &str = "2.30.7";

/// One release.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Release {
    pub(crate) version: String,
    pub(crate) wheel_mb: u64,
    pub(crate) library_mb: u64,
    #[serde(default)]
    pub(crate) short: bool,
    pub(crate) table: u32,
    pub(crate) looks_up: Vec<u32>,
    pub(crate) opens: Vec<String>,
    pub(crate) closes: Vec<String>,
    pub(crate) names: NameRule,
    pub(crate) unloads: Unloads,
    #[serde(default)]
    pub(crate) after_death: AfterDeath,
    #[serde(default)]
    pub(crate) quirks: Vec<Quirk>,
    pub(crate) other_tables: BTreeMap<String, Vec<u32>>,
}

/// The rule for `NCCL_NET_PLUGIN=X`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum NameRule {
    Suffix,
    Either,
    FileNames,
    List,
}

/// When the plugin's file is closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Unloads {
    Never,
    One,
    Last,
}

/// What a rank sees after another one has died.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum AfterDeath {
    #[default]
    Error,
    NoError,
    NoAbort,
}

/// A deviation of a release that the plugin must handle.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Quirk {
    NoInitAfterReload,
    ForgetsName,
    DiesOfFailedInit,
}

impl Matrix {
    /// The file that this program was built with.
    pub(crate) fn read() -> Result<Self> {
        Self::parse(TEXT)
    }

    fn parse(text: &str) -> Result<Self> {
        let matrix: Self =
            toml::from_str(text).map_err(|e| Failure::tool(format!("compat-matrix/matrix.toml: {e}")))?;
        for release in &matrix.releases {
            release.sound().map_err(|what| {
                Failure::tool(format!("compat-matrix/matrix.toml: release {release}: {what}"))
            })?;
        }
        Ok(matrix)
    }

    /// Returns the releases of these versions in the file's order; all if none is named.
    pub(crate) fn choose(&self, versions: &[String]) -> Result<Vec<Release>> {
        if let Some(strange) = versions.iter().find(|v| !self.releases.iter().any(|r| r.version == **v)) {
            let known: Vec<_> = self.releases.iter().map(|r| r.version.as_str()).collect();
            return Err(Failure::usage(format!(
                "release {strange:?} is not in compat-matrix/matrix.toml, which has {}",
                known.join(", ")
            )));
        }
        let wanted = |r: &&Release| versions.is_empty() || versions.contains(&r.version);
        Ok(self.releases.iter().filter(wanted).cloned().collect())
    }

    /// Returns the release of this version; the newest if none is named.
    pub(crate) fn one(&self, version: Option<&String>) -> Result<Release> {
        let release = match version {
            Some(version) => self.choose(std::slice::from_ref(version))?.pop(),
            None => self.releases.last().cloned(),
        };
        release.ok_or_else(|| Failure::tool("matrix.toml has no release"))
    }
}

impl Release {
    /// Checks what serde cannot.
    fn sound(&self) -> std::result::Result<(), String> {
        if self.looks_up.first() != Some(&self.table) {
            return Err(format!(
                "looks_up begins with {:?}, but table is {}",
                self.looks_up.first(),
                self.table
            ));
        }
        if !self.looks_up.is_sorted_by(|a, b| a > b) {
            return Err(format!("looks_up is {:?}; expected newest first", self.looks_up));
        }
        if let Some((name, all)) = self.other_tables.iter().find(|(_, all)| !all.is_sorted_by(|a, b| a > b)) {
            return Err(format!("{name} is {all:?}; expected newest first"));
        }
        if self.opens.is_empty() {
            return Err("opens is empty; expected at least the function that initialises a network".into());
        }
        Ok(())
    }
}

impl Release {
    /// Returns whether the release is this version or newer.
    pub(crate) fn is_at_least(&self, version: &str) -> bool {
        Version::parse(&self.version) >= Version::parse(version)
    }

    /// Returns the symbols of all tables that the release looks for in plugins.
    pub(crate) fn tables(&self) -> BTreeSet<String> {
        let network = self.looks_up.iter().map(|version| format!("{NETWORK}_v{version}"));
        let others = self.other_tables.iter();
        network
            .chain(others.flat_map(|(name, all)| all.iter().map(move |v| format!("{name}_v{v}"))))
            .collect()
    }

    pub(crate) fn has(&self, quirk: Quirk) -> bool {
        self.quirks.contains(&quirk)
    }
}

impl fmt::Display for Release {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.version)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_can_be_read_and_its_short_part_has_each_table_once() {
        let matrix = Matrix::read().unwrap();
        let mut tables: Vec<_> = matrix.releases.iter().filter(|r| r.short).map(|r| r.table).collect();
        tables.sort_unstable();
        assert_eq!(tables, (6..=12).collect::<Vec<_>>());
    }

    #[test]
    fn a_release_that_contradicts_itself_is_named() {
        let text = TEXT.replacen("table = 6", "table = 7", 1);
        let said = Matrix::parse(&text).unwrap_err().to_string();
        assert!(said.contains("release 2.18.1: looks_up begins with Some(6), but table is 7"), "{said}");
    }

    #[test]
    fn tables_that_are_out_of_order_are_named() {
        let text = TEXT.replacen("ncclCollNetPlugin = [6, 5, 4]", "ncclCollNetPlugin = [4, 5, 6]", 1);
        let said = Matrix::parse(&text).unwrap_err().to_string();
        assert!(said.contains("release 2.18.1: ncclCollNetPlugin is [4, 5, 6]; expected newest"), "{said}");
    }

    #[test]
    fn an_unknown_release_is_refused() {
        let said = Matrix::read().unwrap().choose(&["2.17.1".into()]).unwrap_err().to_string();
        assert!(said.contains("\"2.17.1\" is not in") && said.contains("2.18.3, 2.19.3"), "{said}");
    }
}
