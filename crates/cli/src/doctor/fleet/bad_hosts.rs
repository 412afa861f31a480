//! The file of bad hosts: a host on each line, and the reasons as a comment, as Slurm's `--exclude`
//! and shells read it.

use std::{fs, path::Path};

use super::judge::BadHost;
use crate::doctor::text::with_code;
use crate::failure::{Context, Failure};
use crate::output::printable;

/// Most bytes of a line. Slurm reads 1024 at a time, and would take the rest for the next host.
const LINE: usize = 900;

/// Writes the file anew; it is empty if no host is bad.
pub(super) fn write(path: &Path, bad: &[BadHost]) -> Result<(), Failure> {
    let text: String = bad.iter().map(line).collect();
    fs::write(path, text).tool(format!("write {}", path.display()))
}

fn line(host: &BadHost) -> String {
    let reasons = host.reasons.iter().map(|check| with_code(printable(&check.text), check));
    let name: String = printable(&host.name).chars().filter(|c| !c.is_whitespace() && *c != '#').collect();
    // A backslash takes the meaning of a comment from the sign after it.
    let line = format!("{name}  # {}", reasons.collect::<Vec<_>>().join("; ").replace('\\', "/"));
    let end = (0..=LINE.min(line.len())).rev().find(|end| line.is_char_boundary(*end)).unwrap_or(0);
    format!("{}\n", &line[..end])
}

#[cfg(test)]
mod tests {
    use nccl_net_mpib_agent_iface::doctor::{Check, Level};

    use super::*;

    //= fleet.md: --bad-hosts writes a file for exclude lists
    #[test]
    fn a_line_is_a_host_and_a_comment() {
        let host = |name: &str, text: &str| BadHost {
            name: name.into(),
            reasons: vec![Check::new("rates", Level::Note, text), Check::new("mtu", Level::Note, "b")],
        };
        assert_eq!(line(&host("node7", "a")), "node7  # a; b\n");
        // What a host says cannot begin another line, or end the comment.
        assert_eq!(line(&host("no\nde#7", "a\nnode8 \\# c")), "node7  # a node8 /# c; b\n");
        let long = line(&host("node7", &"ä".repeat(2000)));
        assert!(long.len() <= LINE + 1 && long.ends_with("ä\n"), "{}", long.len());
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("bad-hosts.txt");
        write(&path, &[host("node7", "a"), host("node8", "c")]).unwrap();
        write(&path, &[host("node9", "a")]).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "node9  # a; b\n");
    }
}
