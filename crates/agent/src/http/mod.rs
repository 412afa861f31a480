//! The HTTP server: metrics, the API and the page.
//!
//! It has two threads. One serves all clients and never waits for anything else; the
//! other reads statistics. They share the agent's state with the agent's loop, and hold its lock
//! only for copies in memory.

mod answer;
mod client;
mod config;
mod document;
mod guard;
mod history;
mod page;
mod rails;
mod readings;

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

pub use client::waits;
pub use config::{DEFAULT, HttpConfig, Listen};
pub use document::{Document, Drain, Drained, Failure, STREAM_CONNECTIONS, Share, SharesSet, schema};
pub use guard::check_token_file;
pub use history::History;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use mpib_host_view::Source;
use parking_lot::Mutex;
pub(crate) use readings::Nudge;
use readings::Readings;
use tokio::net::TcpStream;
use tokio::sync::{Semaphore, oneshot};
use tokio::time::Instant;

use crate::Handle;

/// The most clients at a time. Others wait until one has its answer.
const CLIENTS: usize = 64;
/// The most clients that follow the stream.
const FOLLOWERS: usize = 32;
/// How long a client may take to send a request and to take the answer, and to take each event.
const PATIENCE: Duration = Duration::from_secs(10);
/// Most bytes of a request's head.
const HEAD_MAX: usize = 16 << 10;
/// Most header fields of a request.
const FIELDS_MAX: usize = 64;

/// The server. It ends when it is dropped.
#[derive(Debug)]
pub struct Http {
    address: SocketAddr,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Http {
    /// Listens and serves. Statistics come from `source`.
    ///
    /// # Errors
    /// The address cannot be used, `/proc` cannot be read, or there is no thread.
    pub fn start(listen: SocketAddr, source: Source, handle: Handle) -> io::Result<Self> {
        let listener = TcpListener::bind(listen)
            .map_err(|e| io::Error::new(e.kind(), format!("http://{listen}: {e}")))?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        let readings = Readings::start(source, handle.clone()).map_err(io::Error::other)?;
        let shared = Arc::new(Shared { handle: handle.clone(), readings });
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let (stop, stopped) = oneshot::channel();
        let serve = move || {
            runtime.block_on(async {
                tokio::select! {
                    () = accept(listener, shared) => {}
                    _ = stopped => {}
                }
            });
        };
        let thread = thread::Builder::new().name("http".into()).spawn(serve)?;
        handle.change(|agent| {
            agent.log(format!("serves http://{address}/"));
            if let Err(why) = check_token_file(&agent.config().http) {
                agent.log(format!("nobody can drain a port or set a share by HTTP: {why}"));
            }
        });
        Ok(Self { address, stop: Some(stop), thread: Some(thread) })
    }

    /// Returns the address on which it listens.
    pub fn address(&self) -> SocketAddr {
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

/// What all requests need.
struct Shared {
    handle: Handle,
    readings: Readings,
}

async fn accept(listener: TcpListener, shared: Arc<Shared>) {
    // The listener is not blocking, and belongs to no other runtime.
    let Ok(listener) = tokio::net::TcpListener::from_std(listener) else { return };
    let clients = Arc::new(Semaphore::new(CLIENTS));
    while let Ok(client) = clients.clone().acquire_owned().await {
        match listener.accept().await {
            Ok((stream, _)) => {
                let shared = shared.clone();
                tokio::spawn(async move {
                    serve(stream, shared).await;
                    drop(client);
                });
            }
            // No descriptors are left, or the client has closed already.
            Err(_) => tokio::time::sleep(Duration::from_millis(100)).await,
        }
    }
}

/// Serves one request. A client that takes too long is disconnected.
async fn serve(stream: TcpStream, shared: Arc<Shared>) {
    let deadline = Deadline::new();
    let answer = service_fn(|request| answer::answer(shared.clone(), deadline.clone(), request));
    let connection = http1::Builder::new()
        .keep_alive(false)
        .header_read_timeout(None)
        .max_buf_size(HEAD_MAX)
        .max_headers(FIELDS_MAX)
        .serve_connection(TokioIo::new(stream), answer);
    tokio::select! {
        // What a client did wrong is of no use in the agent's log.
        _ = connection => {}
        () = deadline.passed() => {}
    }
}

/// When a client is disconnected.
#[derive(Debug, Clone)]
struct Deadline(Arc<Mutex<Instant>>);

impl Deadline {
    fn new() -> Self {
        Self(Arc::new(Mutex::new(Instant::now() + PATIENCE)))
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
