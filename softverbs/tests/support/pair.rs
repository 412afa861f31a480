//! Runs a client and a server of an unchanged program on the stand-in library.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use crate::stand_in;

/// Far above what any of these runs takes: only a hang reaches it.
const HANG: Duration = Duration::from_secs(90);
/// Between looks at a condition that has no event to wait for.
const LOOK: Duration = Duration::from_millis(3);

/// A fabric name that no other test and no earlier run has.
pub(crate) fn fabric() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    format!("test-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed))
}

/// A program on the stand-in library, or a failure that says what to install.
pub(crate) fn program(name: &str) -> Command {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&path).map(|dir| dir.join(name)).find(|file| file.is_file());
    let package = if name.starts_with("ibv_") { "ibverbs-utils" } else { "perftest" };
    let Some(found) = found else { panic!("{name} is not installed: install {package} (make setup)") };
    on_stand_in(Command::new(found))
}

/// Sets the environment of a program that shall use the stand-in library and nothing of the caller's.
pub(crate) fn on_stand_in(mut command: Command) -> Command {
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("SOFTVERBS_") {
            command.env_remove(name);
        }
    }
    command.env("LD_LIBRARY_PATH", stand_in::folder()).stdin(Stdio::null());
    command
}

/// A started program; killed if it is dropped before its end.
pub(crate) struct Running {
    child: Child,
    output: File,
    what: String,
}

/// A program that ended.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) status: ExitStatus,
    /// stdout and stderr as they came.
    pub(crate) text: String,
}

impl Ended {
    /// Panics with the whole output unless the program succeeded.
    pub(crate) fn success(self) -> String {
        assert!(self.status.success(), "{}:\n{}", self.status, self.text);
        self.text
    }
}

impl Running {
    pub(crate) fn start(mut command: Command) -> Self {
        let output = tempfile::tempfile().expect("a temporary file can be made");
        let copy = || Stdio::from(output.try_clone().expect("a file can be opened twice"));
        let child = command.stdout(copy()).stderr(copy()).spawn();
        let what = format!("{command:?}");
        Self { child: child.unwrap_or_else(|e| panic!("{what}: {e}")), output, what }
    }

    /// What it has written so far.
    pub(crate) fn text(&self) -> String {
        let mut bytes = Vec::new();
        // The descriptor shares its position with the child's, which appends: read through a new one.
        let path = PathBuf::from(format!("/proc/self/fd/{}", self.output.as_raw_fd()));
        let mut file = File::open(path).expect("our own descriptor can be reopened");
        file.seek(SeekFrom::Start(0)).and_then(|_| file.read_to_end(&mut bytes)).expect("a file can be read");
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// Its end, and what it wrote.
    pub(crate) fn end(mut self) -> Ended {
        let start = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().expect("our own child can be waited for") {
                return Ended { status, text: self.text() };
            }
            assert!(start.elapsed() < HANG, "{} hangs:\n{}", self.what, self.text());
            std::thread::sleep(LOOK);
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Fails only if it has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
