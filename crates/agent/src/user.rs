//! The user as whom the agent serves.
//!
//! An agent that root starts needs root for its folder, its sockets and its hint file, since plugins
//! trust root's. It serves as another user, who has no rights on the host but one folder for what
//! outlives a restart.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::{DirBuilderExt, lchown};
use std::path::Path;

use nccl_net_mpib_agent_iface::agent::paths::Trust;
use nix::unistd::{Gid, Uid, User, getegid, geteuid, setgroups, setresgid, setresuid};

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
            Ok(Some(user)) if !Trust::new(Some(user.uid.as_raw())).trusts(user.uid.as_raw()) => Err(format!(
                "user {name} stands for all users that a user namespace does not have, so nothing that it owns \
                 is trusted; name another one"
            )),
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
        let give = |path: &Path, uid: Uid, gid: Gid| lchown(path, Some(uid.as_raw()), Some(gid.as_raw()));
        let old = folder.join(kept::NAME);
        if old.exists() {
            // While the place is root's, root needs no capability to write there, and the user cannot put
            // a link in the way.
            give(&place, geteuid(), getegid()).map_err(at)?;
            give(&old, self.uid, self.gid).map_err(at)?;
            fs::rename(&old, place.join(kept::NAME)).map_err(at)?;
        }
        give(&place, self.uid, self.gid).map_err(at)
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
