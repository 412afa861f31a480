//! Programs in place of those that a check starts.

use std::{fs, os::unix::fs::PermissionsExt, path::Path};

use super::Pair;

/// Prints the row of messages of 64 KiB as the real one does, with a rate that no port has.
pub(super) const FAST: &str =
    "ib_write_bw \"$@\" | sed -E 's/^ *(65536 +[0-9]+ +[0-9.]+) +[0-9.]+/\\1 9999.00/'";

/// A shell command in place of nccl-tests: `over NET RATE RESULTS` prints the end of their table if
/// that is the transport.
const TABLE: &str = r#"
over() {
    [ "$NCCL_NET" = "$1" ] || return 0
    printf '#       size  count  type  redop  root  time  algbw  busbw #wrong  time  algbw  busbw #wrong\n'
    printf '  67108864  16777216  float  sum  -1  1490.5  %s  %s  0  1483.5  %s  %s  N/A\n' $2 $2 $2 $2
    printf '# Out of bounds values : %s\n' "$3"
    [ "$3" = '0 OK' ] || exit 1
}
"#;

impl Pair {
    /// Puts a shell script before a program of the same name in an end's PATH. It finds that program in
    /// its own.
    pub(super) fn replace(&mut self, end: usize, name: &str, script: &str) {
        let folder = tempfile::tempdir().unwrap();
        let path = std::env::var("PATH").unwrap();
        write(folder.path(), name, &format!("PATH='{path}'\n{script}"));
        self.env[end].retain(|(name, _)| name != "PATH");
        self.env[end].push(("PATH".into(), format!("{}:{path}", folder.path().display())));
        self.folders.push(folder);
    }

    /// Gives both ends a GPU, and this one nccl-tests that print by this script and an mpirun, which
    /// passes on no variable, as to another host. Returns options.
    pub(super) fn has_nccl_tests(&mut self, script: &str) -> String {
        self.has_gpus();
        self.replace(0, "mpirun", "shift 4\nexec env -i PATH=\"$PATH\" \"$@\"");
        let folder = tempfile::tempdir().unwrap();
        for name in ["all_reduce_perf", "alltoall_perf", "sendrecv_perf"] {
            write(folder.path(), name, &format!("{TABLE}{script}"));
        }
        let options = format!("--nccl-tests {}", folder.path().display());
        self.folders.push(folder);
        options
    }
}

fn write(folder: &Path, name: &str, script: &str) {
    let file = folder.join(name);
    fs::write(&file, format!("#!/bin/sh\n{script}\n")).unwrap();
    fs::set_permissions(file, fs::Permissions::from_mode(0o755)).unwrap();
}
