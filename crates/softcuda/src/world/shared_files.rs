//! NCCL's files in shared memory. Each has a name until its users have attached, and the name
//! outlives a rank that dies before.

use std::{
    collections::BTreeSet,
    fs, io,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    time::SystemTime,
};

/// Where NCCL keeps its files.
pub(super) const FOLDER: &str = "/dev/shm";
/// The first letters of their names.
const PREFIX: &str = "nccl-";

/// Removes this user's files that NCCL has made since a time and that no process has open or mapped.
/// NCCL opens a file, gives it memory, maps it and closes it, so a file of a rank that runs stays.
pub(super) fn remove_unused(folder: &Path, since: SystemTime) -> io::Result<()> {
    let made = made(folder, since)?;
    if made.is_empty() {
        return Ok(());
    }
    let used = used(&made)?;
    for path in made.difference(&used) {
        match fs::remove_file(path) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
            _ => {}
        }
    }
    Ok(())
}

/// Returns the files since a time.
fn made(folder: &Path, since: SystemTime) -> io::Result<BTreeSet<PathBuf>> {
    // SAFETY: geteuid has no preconditions.
    let user = unsafe { libc::geteuid() };
    let mut all = BTreeSet::new();
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        // A file may be removed meanwhile.
        let Ok(facts) = entry.metadata() else { continue };
        let ours = entry.file_name().as_encoded_bytes().starts_with(PREFIX.as_bytes())
            && facts.is_file()
            && facts.uid() == user;
        if ours && facts.modified()? >= since {
            all.insert(entry.path());
        }
    }
    Ok(all)
}

/// Returns those of the files that a process has open or mapped. Processes of other users cannot be
/// read.
fn used(files: &BTreeSet<PathBuf>) -> io::Result<BTreeSet<PathBuf>> {
    let mut used = BTreeSet::new();
    for process in fs::read_dir("/proc")? {
        let process = process?.path();
        // Before the maps: a file that is closed meanwhile is mapped.
        let open = fs::read_dir(process.join("fd")).into_iter().flatten().flatten();
        used.extend(open.filter_map(|fd| files.get(&fs::read_link(fd.path()).ok()?).cloned()));
        let maps = fs::read_to_string(process.join("maps")).unwrap_or_default();
        let paths = maps.lines().filter_map(|line| line.find('/').map(|at| Path::new(&line[at..])));
        used.extend(paths.filter_map(|path| files.get(path).cloned()));
    }
    Ok(used)
}

#[cfg(test)]
mod tests {
    use std::{fs::File, time::Duration};

    use super::*;

    #[test]
    fn only_new_files_of_nccl_that_nobody_uses_are_removed() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path().canonicalize().unwrap();
        let make = |name: &str| {
            let file = File::create_new(folder.join(name)).unwrap();
            file.set_len(4096).unwrap();
            file
        };
        let since = SystemTime::now() - Duration::from_secs(60);
        make("nccl-unused");
        make("nccl-old").set_modified(since - Duration::from_secs(1)).unwrap();
        make("other");
        let mapped = make("nccl-mapped");
        // SAFETY: nobody changes the file.
        let _map = unsafe { memmap2::Mmap::map(&mapped) }.unwrap();
        drop(mapped);
        let _open = make("nccl-open");
        remove_unused(&folder, since).unwrap();
        let mut left: Vec<_> =
            fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        left.sort();
        assert_eq!(left, ["nccl-mapped", "nccl-old", "nccl-open", "other"]);
    }
}
