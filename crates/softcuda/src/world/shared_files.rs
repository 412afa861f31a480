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

/// Removes this user's files that NCCL has made since a time and that no process has mapped. NCCL
/// maps a file as soon as it has made it, so a file of a rank that runs stays.
pub(super) fn remove_unused(folder: &Path, since: SystemTime) -> io::Result<()> {
    let made = made(folder, since)?;
    if made.is_empty() {
        return Ok(());
    }
    let mapped = mapped(&made)?;
    for path in made.difference(&mapped) {
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

/// Returns those of the files that a process has mapped. Processes of other users cannot be read.
fn mapped(files: &BTreeSet<PathBuf>) -> io::Result<BTreeSet<PathBuf>> {
    let mut mapped = BTreeSet::new();
    for process in fs::read_dir("/proc")? {
        let maps = fs::read_to_string(process?.path().join("maps")).unwrap_or_default();
        let paths = maps.lines().filter_map(|line| line.find('/').map(|at| Path::new(&line[at..])));
        mapped.extend(paths.filter_map(|path| files.get(path).cloned()));
    }
    Ok(mapped)
}

#[cfg(test)]
mod tests {
    use std::{fs::File, time::Duration};

    use super::*;

    #[test]
    fn only_new_files_of_nccl_that_nobody_has_mapped_are_removed() {
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
        let used = make("nccl-used");
        // SAFETY: nobody changes the file.
        let _map = unsafe { memmap2::Mmap::map(&used) }.unwrap();
        drop(used);
        remove_unused(&folder, since).unwrap();
        let mut left: Vec<_> =
            fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        left.sort();
        assert_eq!(left, ["nccl-old", "nccl-used", "other"]);
    }
}
