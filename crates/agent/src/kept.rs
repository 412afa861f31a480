//! What outlives a restart of the agent: drains and shares that were set while it ran.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Read, Write};
use std::net::Ipv4Addr;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use nccl_net_mpib_agent_iface::agent::paths::{Refusal, Trust, open_file};
use serde::{Deserialize, Serialize};

/// Name of the file in the agent's folder.
pub const NAME: &str = "state.json";
/// The folder in it where the file is if the agent serves as another user than it was started by.
pub const OWN_FOLDER: &str = "state";

/// Returns where the file is in the agent's folder.
pub fn path(folder: &Path) -> PathBuf {
    let own = folder.join(OWN_FOLDER);
    if own.is_dir() { own.join(NAME) } else { folder.join(NAME) }
}

/// The content of the file.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Kept {
    /// Ports that were taken out of use or back into it.
    pub drains: BTreeMap<String, KeptDrain>,
    /// Shares that another program has set.
    pub shares: Vec<KeptShare>,
}

/// What was done to a port.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "WrittenDrain")]
pub struct KeptDrain {
    /// Whether it was taken out of use.
    pub out_of_use: bool,
    /// By whom.
    pub by: String,
    /// Why, in that one's words.
    pub reason: Option<String>,
    /// When, in ms since 1970.
    pub at_ms: u64,
}

/// Agents before 0.3 have written `out_of_use` alone.
#[derive(Deserialize)]
#[serde(untagged)]
enum WrittenDrain {
    OutOfUse(bool),
    Whole { out_of_use: bool, by: String, reason: Option<String>, at_ms: u64 },
}

impl From<WrittenDrain> for KeptDrain {
    fn from(written: WrittenDrain) -> Self {
        match written {
            WrittenDrain::OutOfUse(out_of_use) => Self { out_of_use, ..Self::default() },
            WrittenDrain::Whole { out_of_use, by, reason, at_ms } => Self { out_of_use, by, reason, at_ms },
        }
    }
}

/// The share of the flows between two SOUT addresses.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeptShare {
    /// This host.
    pub source: Ipv4Addr,
    /// The other host.
    pub destination: Ipv4Addr,
    /// Part of SUP, in parts per 1024.
    pub share: u16,
}

impl Kept {
    /// Reads the file of an earlier agent; without one, nothing is kept.
    ///
    /// # Errors
    /// The file cannot be read, is not to be trusted, or is damaged.
    pub fn read(path: &Path) -> io::Result<Self> {
        // Nobody but root can have made that folder for another user.
        let own = path.parent().filter(|folder| folder.ends_with(OWN_FOLDER));
        let owner = own.and_then(|folder| fs::symlink_metadata(folder).ok()).map(|folder| folder.uid());
        let mut file = match open_file(path, &Trust::new(owner)) {
            Ok(file) => file,
            Err(Refusal::Missing) => return Ok(Self::default()),
            Err(refusal) => return Err(io::Error::other(refusal.to_string())),
        };
        let mut text = String::new();
        file.read_to_string(&mut text)?;
        serde_json::from_str(&text).map_err(io::Error::other)
    }

    /// Writes the file in one step: under another name, then renamed.
    ///
    /// # Errors
    /// The system's error.
    pub fn write(&self, path: &Path) -> io::Result<()> {
        let new = path.with_extension("new");
        let _ = fs::remove_file(&new);
        let mut file = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&new)?;
        file.write_all(&serde_json::to_vec_pretty(self)?)?;
        file.sync_all()?;
        fs::rename(&new, path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_written_is_read() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(NAME);
        assert_eq!(Kept::read(&path).unwrap(), Kept::default());
        let share = KeptShare { source: [10, 0, 0, 1].into(), destination: [10, 0, 0, 2].into(), share: 341 };
        let drain =
            KeptDrain { out_of_use: true, by: "root".into(), reason: Some("ticket 17".into()), at_ms: 7 };
        let kept = Kept { drains: BTreeMap::from([("mlx5_0:1".into(), drain)]), shares: vec![share] };
        for _ in 0..2 {
            kept.write(&path).unwrap();
            assert_eq!(Kept::read(&path).unwrap(), kept);
        }
        fs::write(&path, r#"{"drains": {"mlx5_0:1": true}}"#).unwrap();
        let of_0_2 = KeptDrain { out_of_use: true, ..KeptDrain::default() };
        assert_eq!(Kept::read(&path).unwrap().drains["mlx5_0:1"], of_0_2);
        fs::write(&path, "{").unwrap();
        assert!(Kept::read(&path).is_err());
    }
}
