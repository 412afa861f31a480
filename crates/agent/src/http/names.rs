//! The names of this host, which requests may be sent to.

use std::ffi::{CStr, CString};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use std::{io, mem, ptr, thread};

use mpib_host_view::hostname;

use crate::Handle;

/// When the resolver is asked for the second time. Each wait is twice the one before.
const FIRST_WAIT: Duration = Duration::from_secs(1);
/// The longest wait: a host may have no full name.
const LONGEST_WAIT: Duration = Duration::from_secs(3600);

/// The host name, its first label, and the full name that the resolver has for it.
#[derive(Debug, Default)]
pub(super) struct OwnNames {
    full: Arc<OnceLock<String>>,
    /// The thread ends with it.
    _end: Option<Sender<()>>,
}

impl OwnNames {
    /// Asks the resolver in a thread: it may take long, and have no answer before the network is up.
    ///
    /// # Errors
    /// There is no thread.
    pub(super) fn look_up(handle: Handle) -> io::Result<Self> {
        let (end, ended) = channel();
        let names = Self { full: Arc::default(), _end: Some(end) };
        let known = names.full.clone();
        let look_up = move || {
            let pause = |wait| ended.recv_timeout(wait) == Err(RecvTimeoutError::Timeout);
            let Some(name) = until_known(full_name, pause) else { return };
            // Only this thread sets it.
            let _ = known.set(name.clone());
            handle.change(|agent| agent.log(format!("serves requests for {name}, this host's full name")));
        };
        thread::Builder::new().name("names".into()).spawn(look_up)?;
        Ok(names)
    }

    /// Returns whether this host has the name.
    pub(super) fn have(&self, name: &str) -> bool {
        let own = hostname();
        let short = own.split('.').next().unwrap_or_default();
        let mut all = [own.as_str(), short].into_iter().chain(self.full.get().map(String::as_str));
        !name.is_empty() && all.any(|known| known.eq_ignore_ascii_case(name))
    }
}

/// Asks until there is an answer, or `pause` returns false.
fn until_known(
    mut ask: impl FnMut() -> Option<String>,
    mut pause: impl FnMut(Duration) -> bool,
) -> Option<String> {
    let mut wait = FIRST_WAIT;
    loop {
        if let Some(name) = ask() {
            return Some(name);
        }
        if !pause(wait) {
            return None;
        }
        wait = (2 * wait).min(LONGEST_WAIT);
    }
}

/// Returns the full name of this host, if it is known.
fn full_name() -> Option<String> {
    let own = hostname();
    if own.contains('.') { Some(own) } else { full(&canonical_name(&own)?, &own) }
}

/// Returns the resolver's name for the host `own`, if it is that name in a domain. A resolver that
/// lies cannot add the name of a web page.
fn full(canonical: &str, own: &str) -> Option<String> {
    let name = canonical.trim_end_matches('.');
    let (first, _) = name.split_once('.')?;
    // The host has another name later.
    (own != "localhost" && first.eq_ignore_ascii_case(own)).then(|| name.to_owned())
}

/// Returns what the resolver calls a host.
fn canonical_name(host: &str) -> Option<String> {
    let host = CString::new(host).ok()?;
    // SAFETY: an addrinfo consists of integers and pointers, which may be zero and null.
    let mut hints: libc::addrinfo = unsafe { mem::zeroed() };
    (hints.ai_flags, hints.ai_socktype) = (libc::AI_CANONNAME, libc::SOCK_STREAM);
    let mut list = ptr::null_mut();
    // SAFETY: the name ends in NUL, no service is given, and hints and list outlive the call.
    if unsafe { libc::getaddrinfo(host.as_ptr(), ptr::null(), &raw const hints, &raw mut list) } != 0 {
        return None;
    }
    // SAFETY: after success the list has a first entry, until it is freed.
    let name = unsafe { (*list).ai_canonname };
    // SAFETY: a name that is there ends in NUL, and belongs to the list.
    let name = (!name.is_null()).then(|| unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned());
    // SAFETY: getaddrinfo has made the list, and nothing of it is used later.
    unsafe { libc::freeaddrinfo(list) };
    name
}

#[cfg(test)]
mod tests {
    use super::*;

    //= agent.md: a resolver adds no name but that of this host
    #[test]
    fn the_full_name_is_the_hosts_own_name_in_a_domain() {
        let known = |canonical: &str| full(canonical, "node1");
        assert_eq!(known("node1.lab.example").as_deref(), Some("node1.lab.example"));
        assert_eq!(known("Node1.lab.example.").as_deref(), Some("Node1.lab.example"));
        for bad in ["node1", "node1.", "evil.example", "node10.lab.example", "x.node1.lab.example", ".", ""] {
            assert_eq!(known(bad), None, "{bad}");
        }
        assert_eq!(full("localhost.localdomain", "localhost"), None);
    }

    #[test]
    fn the_resolver_is_asked_again_until_it_knows_the_name_or_the_server_ends() {
        let (mut answers, mut waits) =
            ([None, None, Some("node1.lab.example".to_owned())].into_iter(), vec![]);
        let name = until_known(
            || answers.next().unwrap(),
            |wait| {
                waits.push(wait.as_secs());
                true
            },
        );
        assert_eq!((name.as_deref(), &*waits), (Some("node1.lab.example"), &[1, 2][..]));
        let mut waits = vec![];
        let name = until_known(
            || None,
            |wait| {
                waits.push(wait.as_secs());
                waits.len() < 20
            },
        );
        assert_eq!((name, waits.last()), (None, Some(&3600)));
    }

    #[test]
    fn the_systems_resolver_answers() {
        assert_eq!(canonical_name("192.0.2.1").as_deref(), Some("192.0.2.1"));
        assert_eq!(canonical_name("a\0b"), None);
        assert_eq!(canonical_name(""), None);
    }
}
