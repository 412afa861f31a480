//! The folder of the agent's socket and hint file.

use std::ffi::OsStr;
use std::fs::DirBuilder;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use nccl_net_mpib_agent_iface::agent::paths::{Refusal, SHARED_FOLDER, SYSTEM_FOLDER, Trust, check_folder};

/// Chooses the folder: `/run/mpib` for root; for another user `$XDG_RUNTIME_DIR/mpib`, and
/// `/tmp/mpib` without that variable, whose value is `runtime`.
pub fn default(root: bool, runtime: Option<&OsStr>) -> PathBuf {
    match (root, runtime) {
        (true, _) => SYSTEM_FOLDER.into(),
        (false, Some(runtime)) => Path::new(runtime).join("mpib"),
        (false, None) => SHARED_FOLDER.into(),
    }
}

/// Makes the folder if there is none, and refuses one that another user could change.
///
/// # Errors
/// A sentence that names the component of the path that is at fault.
pub fn prepare(path: &Path) -> io::Result<()> {
    let at = |e: io::Error| io::Error::new(e.kind(), format!("folder {}: {e}", path.display()));
    match DirBuilder::new().mode(0o755).create(path) {
        Err(e) if e.kind() != io::ErrorKind::AlreadyExists => return Err(at(e)),
        _ => {}
    }
    check_folder(path, &Trust::new(None)).map_err(|refusal| match refusal {
        Refusal::Io(_, e) => at(e),
        refusal => at(io::Error::other(refusal.to_string())),
    })
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    #[test]
    fn each_user_has_a_folder() {
        let user = Some(OsStr::new("/run/user/7"));
        assert_eq!(default(true, user), Path::new("/run/mpib"));
        assert_eq!(default(false, user), Path::new("/run/user/7/mpib"));
        assert_eq!(default(false, None), Path::new("/tmp/mpib"));
    }

    //= agent.md: the agent does not use a folder that another user could change
    #[test]
    fn a_folder_is_made_or_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("mpib");
        prepare(&path).unwrap();
        prepare(&path).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o777)).unwrap();
        let refused = prepare(&path).unwrap_err().to_string();
        assert!(refused.contains("has mode 777: other users may write to it"), "{refused}");
        let link = dir.path().join("link");
        symlink("mpib", &link).unwrap();
        assert!(prepare(&link).unwrap_err().to_string().contains("symbolic link"));
        assert!(prepare(&dir.path().join("no/mpib")).unwrap_err().to_string().contains("No such file"));
    }
}
