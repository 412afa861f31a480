//! The web file: TLS and passwords of the server at an address. The file and those that it names are
//! read again when one of them has changed, and on SIGHUP.

mod file;
mod tls;
mod users;

use std::fs;
use std::io;
use std::net::IpAddr;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use file::{Clients, WebFile};
use parking_lot::Mutex;
pub(super) use tls::authorities;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::rustls::ServerConfig;
pub(super) use users::Verdict;
use users::{Passwords, Users};

use crate::events::coded;

/// A web file, and what it last had.
#[derive(Debug, Clone)]
pub struct Web {
    file: Arc<PathBuf>,
    passwords: Arc<Passwords>,
    state: Arc<Mutex<State>>,
}

#[derive(Debug)]
struct State {
    /// None until a file was good: nobody is served until then.
    rules: Option<Arc<Rules>>,
    /// What was read, and what it looked like before.
    read: Vec<(PathBuf, Option<Stamp>)>,
}

/// What shows that a file is another one: device, number, size, and time of its last change in ns,
/// also of its mode.
type Stamp = (u64, u64, u64, i64);

/// What counts for a connection.
#[derive(Debug, Default)]
pub(super) struct Rules {
    tls: Option<Arc<ServerConfig>>,
    users: Users,
}

/// What a client sends and takes.
pub(super) trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}
impl<S: AsyncRead + AsyncWrite + Unpin + Send> Stream for S {}

impl Web {
    /// Reads a file and those that it names. Returns warnings beside it, or a sentence with the file, the
    /// line, and what is expected there: nobody is served then until the file is good.
    ///
    /// # Errors
    /// The system has no random bytes.
    pub fn read(file: PathBuf) -> io::Result<(Self, Result<Vec<String>, String>)> {
        let passwords = Arc::new(Passwords::new()?);
        let (read, found) = read(&file, &passwords);
        let (rules, warnings) = match found {
            Ok((rules, warnings)) => (Some(Arc::new(rules)), Ok(warnings)),
            Err(why) => (None, Err(why)),
        };
        let state = Arc::new(Mutex::new(State { rules, read }));
        Ok((Self { file: Arc::new(file), passwords, state }, warnings))
    }

    /// Returns what counts for a connection that begins. None if no file was good yet.
    pub(super) fn rules(&self) -> Option<Arc<Rules>> {
        self.state.lock().rules.clone()
    }

    /// Reads the files again if one of them has changed, or in any case. Returns lines for the log.
    pub(super) fn renew(&self, in_any_case: bool) -> Vec<String> {
        let is_same = |(path, stamp): &(PathBuf, Option<Stamp>)| self::stamp(path) == *stamp;
        if !in_any_case && self.state.lock().read.iter().all(is_same) {
            return Vec::new();
        }
        let (read, rules) = read(&self.file, &self.passwords);
        let mut state = self.state.lock();
        state.read = read;
        match rules {
            Ok((rules, mut lines)) => {
                self.passwords.keep(&rules.users);
                state.rules = Some(Arc::new(rules));
                lines.insert(0, format!("web file {} is in use as it is now", self.file.display()));
                lines
            }
            Err(why) if state.rules.is_none() => vec![not_served(&why)],
            Err(why) => vec![format!("{why}; the web file before stays in use")],
        }
    }
}

/// Returns the line of the log for a web file that is bad from the start.
pub fn not_served(why: &str) -> String {
    coded(format!("{why}; no HTTP at the address until the web file is good"))
}

impl Rules {
    /// Returns whether TLS is served, and nothing else.
    pub(super) fn has_tls(&self) -> bool {
        self.tls.is_some()
    }

    /// Returns whether a request needs a user and a password.
    pub(super) fn has_users(&self) -> bool {
        !self.users.is_empty()
    }

    /// Returns what user and password are worth, as the header "Authorization: Basic …" has them.
    pub(super) async fn check(&self, basic: &[u8], from: IpAddr) -> Verdict {
        self.users.check(basic, from).await
    }

    /// Returns the connection as requests go over it, and whether it is as secure as it must be.
    pub(super) async fn stream(&self, stream: TcpStream) -> io::Result<(Box<dyn Stream>, bool)> {
        let Some(config) = &self.tls else { return Ok((Box::new(stream), true)) };
        Ok(match tls::secured(stream, config).await? {
            Ok(stream) => (Box::new(stream), true),
            Err(plain) => (Box::new(plain), false),
        })
    }
}

type Read = (Vec<(PathBuf, Option<Stamp>)>, Result<(Rules, Vec<String>), String>);

/// Reads a file and those that it names. What they looked like is noted before: a change while they
/// are read is seen later.
fn read(file: &Path, passwords: &Arc<Passwords>) -> Read {
    let noted = |path: &Path| (path.to_owned(), stamp(path));
    let mut read = vec![noted(file)];
    let text = fs::read_to_string(file).map_err(|e| e.to_string());
    let folder = file.parent().unwrap_or(Path::new(""));
    let found = match text.and_then(|text| WebFile::parse(&text, folder)) {
        Ok(found) => found,
        Err(why) => return (read, Err(format!("{}: {why}", file.display()))),
    };
    let WebFile { tls, users } = found;
    if let Some(settings) = &tls {
        read.extend([&settings.certificate, &settings.key].map(|path| noted(path)));
        if let Clients::IfGiven(path) | Clients::Known(path) = &settings.clients {
            read.push(noted(path));
        }
    }
    let made = || {
        let mut warnings: Vec<String> =
            tls.iter().filter_map(|settings| tls::warning(&settings.key)).collect();
        if tls.is_none() && !users.is_empty() {
            warnings.push(format!(
                "{}: passwords without tls_server_config go over the network in clear",
                file.display()
            ));
        }
        let tls = tls.as_ref().map(tls::configuration).transpose()?.map(Arc::new);
        Ok((Rules { tls, users: Users::new(users, passwords.clone()) }, warnings))
    };
    let rules = made();
    (read, rules)
}

fn stamp(path: &Path) -> Option<Stamp> {
    let it = fs::metadata(path).ok()?;
    Some((it.dev(), it.ino(), it.len(), it.ctime().wrapping_mul(1_000_000_000).wrapping_add(it.ctime_nsec())))
}
