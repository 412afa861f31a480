//! The HTTP server: metrics, the API and the page.
//!
//! It listens on an address, and on a Unix socket for the agent's user and root, who need no token
//! there. It has two threads. One serves all clients and never waits for anything else; the
//! other reads statistics. A third one asks for the host's full name and ends. With a web file, others
//! read that file and check passwords. They share the agent's state with the agent's loop, and hold its
//! lock only for copies in memory.

mod access;
mod answer;
mod client;
mod client_limit;
mod config;
mod document;
mod guard;
mod history;
mod names;
mod page;
mod rails;
mod readings;
mod web;

use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

pub use access::Access;
pub use client::{Failed, drain, host, waits};
use client_limit::{Admission, ClientLimit};
pub use config::{DEFAULT, HttpConfig, Listen};
pub use document::{Document, Drain, Drained, Failure, STREAM_CONNECTIONS, Share, SharesSet, schema};
pub use guard::check_token_file;
pub use history::History;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use mpib_host_view::Source;
use names::OwnNames;
use nix::sys::socket::{self, AddressFamily, Backlog, SockFlag, SockType, SockaddrStorage};
use nix::unistd::{Uid, User, geteuid};
use parking_lot::Mutex;
pub(crate) use readings::Nudge;
use readings::Readings;
use tokio::sync::{oneshot, watch};
use tokio::time::Instant;
use web::{Rules, Stream};
pub use web::{Web, not_served};

use crate::Handle;
use crate::peer::PeerProcess;
use crate::socket_file::SocketFile;

/// The most clients at a time. One more gets the place of a client that is idle.
const CLIENTS: usize = 64;
/// The most clients at the Unix socket that are refused at a time.
const STRANGERS: usize = 8;
/// The most clients that follow the stream.
const FOLLOWERS: usize = 32;
/// How long a client may take to send the head of a request.
const HEAD_PATIENCE: Duration = Duration::from_secs(2);
/// How long it may take to send the rest and to take the answer, and to take each event.
const PATIENCE: Duration = Duration::from_secs(5);
/// How often the files of a web file are looked at.
const RENEW: Duration = Duration::from_secs(5);
/// How long to wait where no client can be accepted: no descriptors are left, or it has closed already.
const NO_CLIENT: Duration = Duration::from_millis(100);
/// Name of the Unix socket in the agent's folder.
pub const SOCKET: &str = "api.sock";
/// Most bytes of a request's head.
const HEAD_MAX: usize = 16 << 10;
/// Most header fields of a request.
const FIELDS_MAX: usize = 64;

/// The server. It ends when it is dropped.
#[derive(Debug)]
pub struct Http {
    address: Option<SocketAddr>,
    _socket: SocketFile,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Http {
    /// Serves whom `listener` brings, and listens on a Unix socket in `folder`. Statistics come from
    /// `source`.
    ///
    /// # Errors
    /// The socket cannot be made, or there is no thread.
    pub fn start(
        listener: Option<Listener>,
        folder: &Path,
        source: Source,
        handle: Handle,
    ) -> io::Result<Self> {
        let (local, socket) = SocketFile::listen(&folder.join(SOCKET), 0o600)?;
        let address = listener.as_ref().map(|listener| listener.socket.local_addr()).transpose()?;
        let rules = listener.as_ref().and_then(Listener::rules);
        let readings = Readings::start(source, handle.clone())?;
        let names = match address {
            Some(_) => OwnNames::look_up(handle.clone())?,
            // Nobody sends a name to the Unix socket.
            None => OwnNames::default(),
        };
        let shared = Arc::new(Shared { handle: handle.clone(), readings, names });
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let (stop, stopped) = oneshot::channel();
        let reloads = handle.reloads();
        let serve = move || {
            runtime.block_on(async {
                tokio::select! {
                    () = accept(listener, shared.clone(), reloads), if listener.is_some() => {}
                    () = accept_local(local, shared) => {}
                    _ = stopped => {}
                }
            });
            // Nobody waits for the check of a password.
            runtime.shutdown_background();
        };
        let thread = thread::Builder::new().name("http".into()).spawn(serve)?;
        if let Some((address, rules)) = address.zip(rules) {
            announce(&handle, address, &rules);
        }
        Ok(Self { address, _socket: socket, stop: Some(stop), thread: Some(thread) })
    }

    /// Returns the address on which it listens; `None` without one.
    pub fn address(&self) -> Option<SocketAddr> {
        self.address
    }
}

impl Drop for Http {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // It has panicked, or has ended.
            let _ = thread.join();
        }
    }
}

/// Says in the log what is served.
fn announce(handle: &Handle, address: SocketAddr, rules: &Rules) {
    let scheme = if rules.has_tls() { "https" } else { "http" };
    handle.change(|agent| {
        agent.log(format!("serves {scheme}://{address}/"));
        if let Err(why) = check_token_file(&agent.config().http) {
            agent.log(format!("nobody can drain a port or set a share by HTTP: {why}"));
        }
    });
}

/// An address of the agent. Connections are refused until its web file has been good.
#[derive(Debug)]
pub struct Listener {
    socket: TcpListener,
    web: Option<Web>,
}

/// Listens on an address, and serves as a web file has it.
///
/// # Errors
/// The system's error with the address.
pub fn listen(address: SocketAddr, web: Option<Web>) -> io::Result<Listener> {
    let bound = || {
        let family = if address.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 };
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        let socket = socket::socket(family, SockType::Stream, flags, None)?;
        socket::setsockopt(&socket, socket::sockopt::ReuseAddr, &true)?;
        socket::bind(socket.as_raw_fd(), &SockaddrStorage::from(address))?;
        let listener = Listener { socket: socket.into(), web };
        if listener.rules().is_some() {
            listener.open()?;
        }
        Ok(listener)
    };
    bound().map_err(|e: io::Error| io::Error::new(e.kind(), format!("http://{address}: {e}")))
}

/// Returns what counts for a connection that begins. None if the web file was never good.
fn rules(web: Option<&Web>) -> Option<Arc<Rules>> {
    web.map_or_else(|| Some(Arc::default()), Web::rules)
}

impl Listener {
    fn rules(&self) -> Option<Arc<Rules>> {
        rules(self.web.as_ref())
    }

    fn open(&self) -> io::Result<()> {
        Ok(socket::listen(&self.socket, Backlog::MAXCONN)?)
    }
}

/// Who sends a request.
#[derive(Debug, Clone)]
enum Client {
    /// Somebody behind an address, who needs a token to change something.
    Remote(Arc<Rules>, IpAddr),
    /// Somebody who speaks plain HTTP where TLS is served.
    Plain,
    /// This user, who may run the agent.
    Local(String),
    /// Somebody else at the Unix socket. The folder is mounted into containers, for the plugins there,
    /// and their root is no operator of the host.
    Stranger,
}

/// What all requests need.
struct Shared {
    handle: Handle,
    readings: Readings,
    names: OwnNames,
}

async fn accept(listener: Option<Listener>, shared: Arc<Shared>, reloads: watch::Receiver<u64>) {
    let Some(listener) = listener else { return };
    let reloads = open_when_good(&listener, &shared.handle, reloads).await;
    let Listener { socket, web } = listener;
    // The listener is not blocking, and belongs to no other runtime.
    let Ok(listener) = tokio::net::TcpListener::from_std(socket) else { return };
    if let Some(web) = &web {
        tokio::spawn(renew_always(web.clone(), shared.handle.clone(), reloads));
    }
    let limit = ClientLimit::new(CLIENTS);
    loop {
        let Ok((stream, from)) = listener.accept().await else {
            tokio::time::sleep(NO_CLIENT).await;
            continue;
        };
        // It has had rules, and always has some then.
        let Some(rules) = rules(web.as_ref()) else { continue };
        let stream = async move {
            let (stream, is_secure) = rules.stream(stream).await?;
            Ok((stream, if is_secure { Client::Remote(rules, from.ip()) } else { Client::Plain }))
        };
        begin(stream, shared.clone(), limit.admit());
    }
}

/// Opens an address whose web file was bad from the start, once it is good.
async fn open_when_good(
    listener: &Listener,
    handle: &Handle,
    mut reloads: watch::Receiver<u64>,
) -> watch::Receiver<u64> {
    let Listener { socket, web: Some(web) } = listener else { return reloads };
    if web.rules().is_some() {
        return reloads;
    }
    let rules = loop {
        renew(web, handle, &mut reloads).await;
        if let Some(rules) = web.rules() {
            break rules;
        }
    };
    match listener.open().and_then(|()| socket.local_addr()) {
        Ok(address) => announce(handle, address, &rules),
        // Another process has taken the address meanwhile.
        Err(e) => {
            handle.change(|agent| agent.log(format!("serves no HTTP: {e}; restart the agent")));
            std::future::pending().await
        }
    }
    reloads
}

async fn renew_always(web: Web, handle: Handle, mut reloads: watch::Receiver<u64>) {
    loop {
        renew(&web, &handle, &mut reloads).await;
    }
}

/// Has the web file read again when it is time, in a thread that may wait for a file system.
async fn renew(web: &Web, handle: &Handle, reloads: &mut watch::Receiver<u64>) {
    let is_asked = tokio::time::timeout(RENEW, reloads.changed()).await.is_ok();
    let web = web.clone();
    let lines = tokio::task::spawn_blocking(move || web.renew(is_asked)).await.unwrap_or_default();
    if !lines.is_empty() {
        handle.change(|agent| lines.into_iter().for_each(|line| agent.log(line)));
    }
}

/// Clients behind an address do not count here.
async fn accept_local(listener: UnixListener, shared: Arc<Shared>) {
    let Ok(listener) = tokio::net::UnixListener::from_std(listener) else { return };
    // Strangers do not displace operators.
    let (limit, strangers) = (ClientLimit::new(CLIENTS), ClientLimit::new(STRANGERS));
    // The system's answer may come from another host. None is needed later.
    let own =
        User::from_uid(geteuid()).ok().flatten().map_or_else(|| geteuid().to_string(), |user| user.name);
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            tokio::time::sleep(NO_CLIENT).await;
            continue;
        };
        // At once: the number of its process may be that of another one later.
        let (client, admission) = match local_user(&stream, &own) {
            Some(user) => (Client::Local(user), limit.admit()),
            None => (Client::Stranger, strangers.admit()),
        };
        let stream: Box<dyn Stream> = Box::new(stream);
        begin(std::future::ready(Ok((stream, client))), shared.clone(), admission);
    }
}

/// Returns the name of the user at the other end, root or the agent's `own`, unless that is in a
/// container.
fn local_user(stream: &tokio::net::UnixStream, own: &str) -> Option<String> {
    let peer = PeerProcess::of(stream).ok().filter(PeerProcess::shares_namespace)?;
    match Uid::from_raw(peer.uid) {
        uid if uid.is_root() => Some("root".to_owned()),
        uid if uid == geteuid() => Some(own.to_owned()),
        _ => None,
    }
}

/// Serves one request over the connection that `stream` makes. A client that takes too long, or in whose
/// place another one is admitted, is disconnected.
fn begin(
    stream: impl Future<Output = io::Result<(Box<dyn Stream>, Client)>> + Send + 'static,
    shared: Arc<Shared>,
    (admission, ends): (Admission, oneshot::Receiver<()>),
) {
    tokio::spawn(async move {
        let deadline = Deadline::new();
        let serve = async {
            let Ok((stream, client)) = stream.await else { return };
            let answer = service_fn(|request| {
                deadline.extend();
                answer::answer(shared.clone(), deadline.clone(), client.clone(), &admission, request)
            });
            let connection = http1::Builder::new()
                .keep_alive(false)
                .header_read_timeout(None)
                .max_buf_size(HEAD_MAX)
                .max_headers(FIELDS_MAX)
                .serve_connection(TokioIo::new(stream), answer);
            // What a client did wrong is of no use in the agent's log.
            let _ = connection.await;
        };
        tokio::select! {
            () = serve => {}
            () = deadline.passed() => {}
            _ = ends => {}
        }
    });
}

/// When a client is disconnected.
#[derive(Debug, Clone)]
struct Deadline(Arc<Mutex<Instant>>);

impl Deadline {
    fn new() -> Self {
        Self(Arc::new(Mutex::new(Instant::now() + HEAD_PATIENCE)))
    }

    fn extend(&self) {
        *self.0.lock() = Instant::now() + PATIENCE;
    }

    async fn passed(&self) {
        loop {
            let at = *self.0.lock();
            if at <= Instant::now() {
                return;
            }
            tokio::time::sleep_until(at).await;
        }
    }
}
