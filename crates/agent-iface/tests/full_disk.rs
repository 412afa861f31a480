//! No room for a hint file.

use std::process::Command;
use std::{env, fs};

use nccl_net_mpib_agent_iface::agent::{HINTS_SIZE, HintsWriter};
use nix::sys::resource::{Resource, getrlimit, setrlimit};

/// Set in the process that has the limit.
const LIMITED: &str = "TEST_LIMITED";

/// Stands in for a full disk: a write beyond the limit fails in the same place.
//= faults.md: 45: there is no room for a new hint file: the agent gets an error, the old file stays
#[test]
fn a_file_without_room_replaces_nothing() {
    if env::var_os(LIMITED).is_none() {
        let mut again = Command::new(env::current_exe().unwrap());
        again.args(["full_disk::a_file_without_room_replaces_nothing", "--exact", "--nocapture"]);
        let output = again.env(LIMITED, "1").output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        let failed = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && text.contains("1 passed"), "{text}{failed}");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("hints");
    let mut first = HintsWriter::create(&path).unwrap();
    first.set(3, 700);
    let before = fs::read(&path).unwrap();
    // SAFETY: the default action of the signal would end this process; no handler is involved.
    unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
    let (_, hard) = getrlimit(Resource::RLIMIT_FSIZE).unwrap();
    for room in [0, 1, HINTS_SIZE as u64 - 1] {
        setrlimit(Resource::RLIMIT_FSIZE, room, hard).unwrap();
        let error = HintsWriter::create(&path).map(drop).unwrap_err().to_string();
        setrlimit(Resource::RLIMIT_FSIZE, hard, hard).unwrap();
        assert!(error.starts_with(&format!("hint file {}: ", path.display())), "{error}");
        assert_eq!(fs::read(&path).unwrap(), before);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "nothing else is left");
    }
    first.set(3, 800);
    assert_ne!(fs::read(&path).unwrap(), before, "the old file works on");
    HintsWriter::create(&path).unwrap();
}
