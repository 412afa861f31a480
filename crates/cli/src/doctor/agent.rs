//! Checks the agent of MPIB_MODE=1: whether it listens, and whether its hint file is valid.

use std::{fs, io::Read, os::unix::net::UnixStream};

use nccl_net_mpib_agent_iface::agent::{HEADER_SIZE, HINTS_SIZE, check_header};
use nccl_net_mpib_agent_iface::doctor::{Check, Level, Report};

/// Returns no checks if no connection would use an agent.
pub(super) fn checks(report: &Report) -> Vec<Check> {
    let value = |name: &str| report.settings.iter().find(|s| s.name == name).map_or("", |s| s.value.as_str());
    if value("MPIB_MODE") != "1" || value("MPIB_SUP_SHARE") != "unset" {
        return Vec::new();
    }
    let strict = value("MPIB_STRICT") == "1";
    let (level, cost) = match strict {
        true => (Level::Fail, "connections without a hint fail (MPIB_STRICT=1)"),
        false => (Level::Warn, "without hints all data uses SOUT"),
    };
    let check = |id: &str, path: &str, found: Result<(), String>, remedy: &str| match found {
        Ok(()) => Check::new(id, Level::Ok, format!("{path}: present")),
        Err(why) => Check::new(id, level, format!("{path}: {why}; {cost}")).remedy(remedy),
    };
    let (socket, hints) = (value("MPIB_AGENT_SOCKET"), value("MPIB_HINTS"));
    vec![
        check(
            "agent",
            socket,
            listens(socket),
            "start the agent, or set MPIB_AGENT_SOCKET; in a container, mount the folder",
        ),
        check(
            "hints",
            hints,
            hint_file(hints),
            "the agent creates this file; MPIB_HINTS has its path; in a container, mount the folder",
        ),
    ]
}

fn listens(path: &str) -> Result<(), String> {
    UnixStream::connect(path).map(drop).map_err(|e| format!("nothing listens there: {e}"))
}

fn hint_file(path: &str) -> Result<(), String> {
    let meta = fs::metadata(path).map_err(|e| e.to_string())?;
    if !meta.is_file() {
        return Err("not a regular file".into());
    }
    if meta.len() != HINTS_SIZE as u64 {
        return Err(format!("{} bytes, expected {HINTS_SIZE}", meta.len()));
    }
    let mut head = [0; HEADER_SIZE];
    fs::File::open(path).and_then(|mut file| file.read_exact(&mut head)).map_err(|e| e.to_string())?;
    check_header(&head).map_err(|bad| format!("not a hint file: {bad}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use nccl_net_mpib_agent_iface::agent::{HintsWriter, header};

    #[test]
    fn a_hint_file_is_one_by_its_size_and_its_head() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("hints");
        let text = path.to_str().unwrap();
        assert!(hint_file(text).unwrap_err().contains("No such file"));
        fs::write(&path, header()).unwrap();
        assert_eq!(hint_file(text).unwrap_err(), "16 bytes, expected 4112");
        fs::write(&path, [0; HINTS_SIZE]).unwrap();
        assert!(hint_file(text).unwrap_err().starts_with("not a hint file: magic"));
        fs::remove_file(&path).unwrap();
        let _writer = HintsWriter::create(&path).unwrap();
        assert_eq!(hint_file(text), Ok(()));
        assert_eq!(hint_file(dir.path().to_str().unwrap()).unwrap_err(), "not a regular file");
    }
}
