//! A Unix socket's file.

use std::fs;
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use nix::sys::socket::{Backlog, listen};

/// Most connections that are not accepted yet. Each waits for those before it.
const BACKLOG: i32 = 128;

/// The file of a socket that listens. It is removed when this is dropped, unless it is another agent's by
/// then, or the agent serves as a user who may not. Where none is, plugins do without an agent; one without an owner makes each of them try.
#[derive(Debug)]
pub(crate) struct SocketFile {
    path: PathBuf,
    /// Device and inode.
    id: (u64, u64),
}

impl SocketFile {
    /// Listens at `path`, in place of the socket of an agent that was killed. The file has this mode.
    ///
    /// # Errors
    /// The system's error with the path.
    pub(crate) fn listen(path: &Path, mode: u32) -> io::Result<(UnixListener, Self)> {
        let at = |e: io::Error| io::Error::new(e.kind(), format!("{}: {e}", path.display()));
        match fs::remove_file(path) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(at(e)),
            _ => {}
        }
        let listener = UnixListener::bind(path).map_err(at)?;
        listen(&listener, Backlog::new(BACKLOG)?)?;
        let file = Self { path: path.to_owned(), id: Self::id(path).map_err(at)? };
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).map_err(at)?;
        listener.set_nonblocking(true)?;
        Ok((listener, file))
    }

    fn id(path: &Path) -> io::Result<(u64, u64)> {
        fs::symlink_metadata(path).map(|file| (file.dev(), file.ino()))
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if Self::id(&self.path).is_ok_and(|id| id == self.id) {
            // Somebody may have removed it since.
            let _ = fs::remove_file(&self.path);
        }
    }
}
