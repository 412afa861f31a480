//! The user as whom the agent serves.
//!
//! An agent that root starts needs root for its folder, its sockets and its hint file, since plugins
//! trust root's. It serves as another user, who has no rights on the host but one folder for what
//! outlives a restart.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::{DirBuilderExt, chown};
use std::path::Path;

use nix::unistd::{Gid, Uid, User, setgroups, setresgid, setresuid};

use crate::kept;

/// A user who is not root.
#[derive(Debug, Clone, Copy)]
pub struct Account {
    uid: Uid,
    gid: Gid,
}

impl Account {
    /// Looks a user up.
    ///
    /// # Errors
    /// A sentence that says what is wrong and what to do.
    pub fn named(name: &str) -> Result<Self, String> {
        match User::from_name(name) {
            Ok(Some(user)) if user.uid.is_root() => {
                Err(format!("user {name} is root; name another one, or leave the option out"))
            }
            Ok(Some(user)) => Ok(Self { uid: user.uid, gid: user.gid }),
            Ok(None) => Err(format!(
                "there is no user {name}: make one by \"useradd --system {name}\" or systemd-sysusers"
            )),
            Err(e) => Err(format!("user {name}: {e}")),
        }
    }

    /// Makes this user's place in the agent's folder, and moves there what an agent has kept that
    /// served as root.
    ///
    /// # Errors
    /// The system's error with the path.
    pub fn prepare(self, folder: &Path) -> io::Result<()> {
        let place = folder.join(kept::OWN_FOLDER);
        let at = |e: io::Error| io::Error::new(e.kind(), format!("{}: {e}", place.display()));
        match DirBuilder::new().mode(0o700).create(&place) {
            Err(e) if e.kind() != io::ErrorKind::AlreadyExists => return Err(at(e)),
            _ => {}
        }
        let own = |path: &Path| chown(path, Some(self.uid.as_raw()), Some(self.gid.as_raw()));
        own(&place).map_err(at)?;
        let (old, new) = (folder.join(kept::NAME), place.join(kept::NAME));
        // Before it lies in a folder of that user, who could put a link in its place.
        match own(&old) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
            owned => owned.and_then(|()| fs::rename(&old, &new)).map_err(at),
        }
    }

    /// Becomes this user for good, with all threads of the process.
    ///
    /// # Errors
    /// The process may not.
    pub fn assume(self) -> io::Result<()> {
        setgroups(&[])?;
        setresgid(self.gid, self.gid, self.gid)?;
        setresuid(self.uid, self.uid, self.uid)?;
        Ok(())
    }
}
