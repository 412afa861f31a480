//! What this process holds, by `/proc`.

use std::fs;

/// Entries of a folder.
pub fn entries(folder: &str) -> usize {
    fs::read_dir(folder).unwrap().count()
}

/// Open descriptors, with the one that counts them.
pub fn descriptors() -> usize {
    entries("/proc/self/fd")
}

/// The names of the threads. One that has just ended has none.
pub fn threads() -> Vec<String> {
    let tasks = fs::read_dir("/proc/self/task").unwrap();
    let name = |task: std::io::Result<fs::DirEntry>| fs::read_to_string(task.ok()?.path().join("comm")).ok();
    tasks.filter_map(name).map(|name| name.trim().to_owned()).collect()
}

/// Mappings of memory.
pub fn mappings() -> usize {
    fs::read_to_string("/proc/self/maps").unwrap().lines().count()
}

/// Resident memory in KiB.
pub fn resident() -> usize {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}
