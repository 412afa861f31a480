//! The file that node_exporter's textfile collector reads.

use std::fs::Permissions;
use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// Name of the file in the collector's folder.
const NAME: &str = "mpib.prom";

/// Writes metrics to `mpib.prom` in `dir`: a reader sees the old file or the new one, never a part.
/// Returns the path.
///
/// # Errors
/// The file cannot be written.
pub fn write_textfile(dir: &Path, metrics: &str) -> io::Result<PathBuf> {
    // The collector ignores names that do not end in ".prom".
    let mut file = tempfile::Builder::new().prefix(".mpib.").suffix(".tmp").tempfile_in(dir)?;
    file.write_all(metrics.as_bytes())?;
    // The collector may run as another user.
    file.as_file().set_permissions(Permissions::from_mode(0o644))?;
    let path = dir.join(NAME);
    file.persist(&path).map_err(|e| e.error)?;
    Ok(path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    //= stats.md: a collector never reads a part of the metrics
    #[test]
    fn the_file_is_replaced_in_one_step() {
        let dir = tempfile::tempdir().unwrap();
        let path = write_textfile(dir.path(), "a 1\n").unwrap();
        let old = fs::File::open(&path).unwrap();
        assert_eq!(write_textfile(dir.path(), "a 2\n").unwrap(), dir.path().join("mpib.prom"));
        assert_eq!(io::read_to_string(old).unwrap(), "a 1\n");
        assert_eq!(fs::read_to_string(&path).unwrap(), "a 2\n");
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o644);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
        assert!(write_textfile(&dir.path().join("none"), "").is_err());
    }
}
