//! Runs `mpib doctor` on simulated hosts.

use std::{
    io::{BufRead, BufReader, Read},
    process::{Child, ChildStderr, Command, Output, Stdio},
    sync::atomic::{AtomicU32, Ordering::Relaxed},
};

use crate::built::{self, artifact, softverbs};
use serde_json::Value;

/// Returns a new fabric for each test.
pub(crate) fn fabric() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    format!("doctor-test-{}-{}", std::process::id(), NEXT.fetch_add(1, Relaxed))
}

/// Two ports in two networks.
pub(crate) const TWO: &str = "sout:addr=10.9.0.1/24;sup:addr=10.9.1.1/24";

/// Prepares `mpib` with these devices and no other settings, the plugin where NCCL would find it,
/// and NCCL_NET set to it.
pub(crate) fn mpib(fabric: &str, devices: &str) -> Command {
    let mut command = built::mpib(fabric, devices);
    let (verbs, plugin) = (softverbs(), artifact("libnccl-net-mpib.so"));
    let folders = [&verbs, plugin.parent().unwrap()].map(|folder| folder.to_str().unwrap());
    command.env("LD_LIBRARY_PATH", folders.join(":")).env("NCCL_NET_PLUGIN", "mpib").env("NCCL_NET", "MPIB");
    command
}

/// Runs `mpib doctor --json` with these variables on top.
pub(crate) fn doctor(devices: &str, env: &[(&str, &str)]) -> Doctor {
    let mut command = mpib(&fabric(), devices);
    command.args(["doctor", "--json", "--plugin"]).arg(artifact("libnccl-net-mpib.so"));
    Doctor::of(command.envs(env.iter().copied()))
}

/// The checks of the limits of this machine's processes.
const LIMITS: [&str; 2] = ["memlock", "files"];

/// The result.
#[derive(Debug)]
pub(crate) struct Doctor {
    pub(crate) code: i32,
    pub(crate) document: Value,
}

impl Doctor {
    pub(crate) fn of(command: &mut Command) -> Self {
        Self::from(&command.output().unwrap())
    }

    pub(crate) fn from(output: &Output) -> Self {
        let (out, said) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        let document = serde_json::from_str(&out).unwrap_or_else(|e| panic!("{e}: {out}\n{said}"));
        let doctor = Self { code: output.status.code().expect("it ends by itself"), document };
        assert_eq!(doctor.document["exit_code"], doctor.code, "{doctor:#?}");
        for check in doctor.document["checks"].as_array().unwrap() {
            let is_wrong = check["level"] == "warn" || check["level"] == "fail";
            assert_eq!(check["code"].is_string(), is_wrong, "{check:#}");
        }
        doctor
    }

    /// Returns text and remedy of the checks with this name and level.
    pub(crate) fn checks(&self, id: &str, level: &str) -> Vec<(String, String)> {
        let all = self.document["checks"].as_array().unwrap();
        let text = |v: &Value| v.as_str().unwrap_or_default().to_owned();
        let found = all.iter().filter(|c| c["id"] == id && c["level"] == level);
        found.map(|c| (text(&c["text"]), text(&c["remedy"]))).collect()
    }

    /// Returns the names of the checks of this level, without those of [`LIMITS`].
    pub(crate) fn of_level(&self, level: &str) -> Vec<&str> {
        let all = self.document["checks"].as_array().unwrap().iter();
        let names = all.filter(|c| c["level"] == level).map(|c| c["id"].as_str().unwrap());
        names.filter(|id| !LIMITS.contains(id)).collect()
    }

    /// Asserts that one check has this name, level and words; returns its text.
    #[track_caller]
    pub(crate) fn says(&self, id: &str, level: &str, words: &[&str]) -> String {
        let found = self.checks(id, level);
        let fits = |(text, remedy): &&(String, String)| {
            words.iter().all(|word| text.contains(word) || remedy.contains(word))
        };
        let found: Vec<_> = found.iter().filter(fits).collect();
        assert_eq!(found.len(), 1, "{id} {level} {words:?}: {self:#?}");
        found[0].0.clone()
    }

    /// Asserts that the verdict is unusable.
    #[track_caller]
    pub(crate) fn unusable(&self) {
        assert_eq!((self.code, &self.document["verdict"]), (2, &Value::from("unusable")), "{self:#?}");
    }

    /// Asserts that NCCL would not open the plugin.
    #[track_caller]
    pub(crate) fn not_used(&self) {
        assert_eq!((self.code, &self.document["verdict"]), (2, &Value::from("not used")), "{self:#?}");
    }

    /// Asserts the verdict without failures and with these warnings.
    #[track_caller]
    pub(crate) fn usable_with(&self, warnings: &[&str]) {
        assert_eq!(self.of_level("fail"), [""; 0], "{self:#?}");
        assert_eq!(self.of_level("warn"), warnings, "{self:#?}");
        let limited = LIMITS.iter().any(|id| !self.checks(id, "warn").is_empty());
        let expected =
            if warnings.is_empty() && !limited { (0, "usable") } else { (1, "usable with losses") };
        assert_eq!((self.code, self.document["verdict"].as_str().unwrap()), expected);
    }
}

/// The listening end. It ends with the test.
pub(crate) struct Listener {
    child: Child,
    said: BufReader<ChildStderr>,
    pub(crate) address: String,
}

impl Listener {
    pub(crate) fn of(command: &mut Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut said = BufReader::new(child.stderr.take().unwrap());
        let mut line = String::new();
        said.read_line(&mut line).unwrap();
        let address = line.strip_prefix("listening on ").and_then(|rest| rest.split(';').next());
        let address = address.unwrap_or_else(|| panic!("{line}")).to_owned();
        Self { child, said, address }
    }

    /// Returns the next line on stderr with these words.
    pub(crate) fn says(&mut self, words: &str) -> String {
        loop {
            let mut line = String::new();
            assert_ne!(self.said.read_line(&mut line).unwrap(), 0, "it ended without {words:?}");
            if line.contains(words) {
                return line;
            }
        }
    }

    /// Ends the process; returns its output.
    pub(crate) fn end(mut self) -> String {
        self.child.kill().unwrap();
        let mut text = String::new();
        self.child.stdout.take().unwrap().read_to_string(&mut text).unwrap();
        text
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        // The process may have ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
