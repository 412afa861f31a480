//! Sets MPIB_COMMIT, the commit for `mpib --version`: from the environment, else from git. A build
//! of the same commit in another folder sets the same value.

use std::process::Command;

fn git(args: &[&str]) -> Option<String> {
    let out = Command::new("git").args(args).output().ok().filter(|out| out.status.success())?;
    String::from_utf8(out.stdout).ok().map(|text| text.trim().to_owned())
}

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-env-changed=MPIB_COMMIT");
    let given = std::env::var("MPIB_COMMIT").ok().filter(|commit| !commit.is_empty());
    let commit = given.or_else(|| {
        // Changes with each commit and checkout.
        let log = git(&["rev-parse", "--git-path", "logs/HEAD"])?;
        println!("cargo::rerun-if-changed={log}");
        git(&["rev-parse", "--short=12", "HEAD"])
    });
    println!("cargo::rustc-env=MPIB_COMMIT={}", commit.as_deref().unwrap_or("unknown"));
}
