//! Which links `mpib enable` has made outside of the plugin's folder. `mpib disable --all` and the
//! removal of a package find them there.

use std::env;
use std::ffi::OsStr;
use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use crate::failure::{Context, Failure, Kind};

/// The file of root. The folder of the plugin may be read-only, or shared by several hosts.
const SYSTEM: &str = "/var/lib/mpib/links";

/// A file with the path of a link in each line.
#[derive(Debug)]
pub(super) struct Record {
    file: PathBuf,
}

impl Record {
    /// Takes the file that the user has named, or that of this user.
    pub(super) fn at(named: Option<&Path>) -> Result<Self, Failure> {
        let file = match named {
            Some(file) => Some(file.to_owned()),
            None if nix::unistd::geteuid().is_root() => Some(SYSTEM.into()),
            None => state_folder().map(|folder| folder.join("mpib/links")),
        };
        file.map(|file| Self { file }).ok_or_else(|| {
            Failure::new(Kind::Usage, "neither XDG_STATE_HOME nor HOME is set: name a file with --record")
        })
    }

    pub(super) fn links(&self) -> Result<Vec<PathBuf>, Failure> {
        let text = match fs::read(&self.file) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            other => other.tool(format!("read {}; --record names another file", self.file.display()))?,
        };
        let lines = text.split(|&byte| byte == b'\n').map(|line| Path::new(OsStr::from_bytes(line)));
        Ok(lines.filter(|path| path.is_absolute()).map(Path::to_owned).collect())
    }

    /// Adds a link before it is made: a line too many does no harm.
    pub(super) fn add(&self, link: &Path) -> Result<(), Failure> {
        if self.links()?.iter().any(|known| known == link) {
            return Ok(());
        }
        let line = line(link);
        if line.iter().filter(|&&byte| byte == b'\n').count() > 1 {
            let text = format!("{link:?} has a line break and cannot be remembered; name another folder");
            return Err(Failure::new(Kind::Usage, text));
        }
        // One write at the end of the file: another process may do the same.
        self.create()
            .and_then(|()| OpenOptions::new().append(true).create(true).open(&self.file)?.write_all(&line))
            .tool(format!("remember the link in {}; --record names another file", self.file.display()))
    }

    /// Keeps these links alone, in place of `old`. Without any, nothing stays.
    pub(super) fn keep(&self, old: &[PathBuf], links: &[&PathBuf]) -> Result<(), Failure> {
        if links.len() == old.len() {
            return Ok(());
        }
        let done = if links.is_empty() { self.remove() } else { self.write(links) };
        done.tool(format!("write {}", self.file.display()))
    }

    fn create(&self) -> io::Result<()> {
        self.file.parent().map_or(Ok(()), fs::create_dir_all)
    }

    fn write(&self, links: &[&PathBuf]) -> io::Result<()> {
        let new = self.file.with_extension(format!("{}", std::process::id()));
        fs::write(&new, links.iter().flat_map(|link| line(link)).collect::<Vec<_>>())?;
        fs::rename(&new, &self.file).inspect_err(|_| drop(fs::remove_file(&new)))
    }

    fn remove(&self) -> io::Result<()> {
        fs::remove_file(&self.file)?;
        // What else is there stays.
        let _ = self.file.parent().map(fs::remove_dir);
        Ok(())
    }
}

fn line(link: &Path) -> Vec<u8> {
    [link.as_os_str().as_bytes(), b"\n"].concat()
}

fn state_folder() -> Option<PathBuf> {
    let named = env::var_os("XDG_STATE_HOME").map(PathBuf::from).filter(|path| path.is_absolute());
    named.or_else(|| Some(Path::new(&env::var_os("HOME")?).join(".local/state")))
}
