//! The listening end: serves one run after another, and refuses strangers without waiting for them.

use std::{
    collections::{VecDeque, hash_map::RandomState},
    hash::{BuildHasher, Hasher},
    io,
    net::{SocketAddr, TcpListener, TcpStream},
    path::PathBuf,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, Ordering},
        mpsc::{Receiver, channel},
    },
    thread,
    time::{Duration, Instant},
};

use mpib_host_view::Waits;

use super::fleet::{Checked, list};
use super::peer::{self, MAGIC, MEASURED, Opening, PATIENCE, PROTOCOL, Reply, Summary, Task, VERSION};
use super::perftest::{self, Tools};
use super::session::{self, Request};
use super::{DoctorArgs, Document, Verdict, check_host, text};
use crate::failure::{Context, Failure, Kind};
use crate::nccl_conf::ConfFile;
use crate::output;
use crate::perf::{self, Channel, Outcome, Trial};

/// A new connection must identify itself within this time.
const OPENING: Duration = Duration::from_secs(10);
/// How long to look at this host for an end that asks who waits.
const LOOK: Duration = Duration::from_millis(200);
/// How long this end may take to check another one for the end that checks many hosts. That end waits
/// for a little longer.
const CHECKED: Duration = Duration::from_secs(240);
/// Most connections that have not identified themselves yet.
const STRANGERS: usize = 64;
/// Most runs that wait for the current one.
const WAITING: usize = 16;

/// A connection that has identified itself.
enum Client {
    Run(Visit),
    Join(TcpStream, String),
}

/// A run, or a request of the end that checks many hosts.
struct Visit {
    channel: Channel,
    from: SocketAddr,
    task: Option<Task>,
}

/// The connections that wait to be served.
struct Queue {
    clients: Receiver<Client>,
    waiting: VecDeque<Visit>,
}

/// Serves until the process is ended or the listening socket fails.
pub(crate) fn listen(args: &DoctorArgs, files: &[ConfFile], address: &str) -> Result<Verdict, Failure> {
    let (host, port) = perf::split(address)?;
    let listener = perf::bind(host, port).map_err(|e| {
        let place = if host.is_empty() { "any address" } else { host };
        let hint = match e.kind() {
            io::ErrorKind::AddrInUse => {
                "; another \"mpib doctor --listen\" or \"mpib perf --listen\" runs here, or name another port: --listen :PORT"
            }
            io::ErrorKind::AddrNotAvailable => "; it is no address of this host (ip addr)",
            _ => "",
        };
        Failure::new(Kind::Tool, format!("cannot listen on {place}, port {port}: {e}{hint}"))
    })?;
    if let Some(path) = &args.hosts {
        list::read(path)?;
    }
    let here = listener.local_addr().tool("read the listening address")?;
    eprintln!("listening on {here}; end it with Ctrl-C");
    let permitted = args.hosts.clone().map_or(Permitted::Nobody, Permitted::File);
    Server { args: args.clone(), files: files.to_vec(), permitted, is_quiet: false }.run(listener)
}

/// The hosts that a listening end connects to on request.
pub(super) enum Permitted {
    Nobody,
    /// Those in this file, which is read for each request.
    File(PathBuf),
    /// These, once they are known.
    These(Arc<OnceLock<Vec<String>>>),
}

/// A listening end.
pub(super) struct Server {
    pub(super) args: DoctorArgs,
    pub(super) files: Vec<ConfFile>,
    pub(super) permitted: Permitted,
    /// Whether it says nothing: another process reports what it does.
    pub(super) is_quiet: bool,
}

impl Server {
    /// Serves until the listening socket fails.
    pub(super) fn run(&self, listener: TcpListener) -> Result<Verdict, Failure> {
        let busy = Arc::new(AtomicBool::new(false));
        let (sender, clients) = channel();
        let (seen, is_quiet) = (Arc::clone(&busy), self.is_quiet);
        let identify = move |stream, from| match opening(stream, from, &seen) {
            // The receiver ends with the process only.
            Ok(Some(client)) => drop(sender.send(client)),
            Ok(None) => {}
            Err(_) if is_quiet => {}
            Err(failure) => eprintln!("mpib: refused {from}: {failure}; still listening"),
        };
        thread::spawn(move || accept(&listener, STRANGERS, identify));
        let mut queue = Queue { clients, waiting: VecDeque::new() };
        loop {
            busy.store(!queue.waiting.is_empty(), Ordering::SeqCst);
            let visit = match queue.waiting.pop_front() {
                Some(next) => next,
                None => match queue.clients.recv() {
                    Ok(Client::Run(visit)) => visit,
                    // It belongs to a run that has ended.
                    Ok(Client::Join(..)) => continue,
                    Err(_) => return Err(Failure::new(Kind::Tool, "the listening socket failed")),
                },
            };
            busy.store(true, Ordering::SeqCst);
            let Visit { channel, from, task } = visit;
            let served = match task {
                Some(task) => self.perform(channel, from, &task),
                None => self.serve(channel, from, &mut queue),
            };
            if let Err(failure) = served
                && !self.is_quiet
            {
                eprintln!("mpib: {from}: {failure}; still listening");
            }
        }
    }

    fn serve(&self, mut channel: Channel, from: SocketAddr, queue: &mut Queue) -> Result<(), Failure> {
        let token = token();
        channel.send(&reply(None, false, token.clone()))?;
        let theirs: Summary = channel.recv(PATIENCE, || Ok(()))?;
        // Reads the host again for each run: a fault may have been corrected.
        let mut document = check_host(&self.args, &self.files)?;
        channel.send(&Summary::new(&document))?;
        self.print(&format!("checked by {} ({from})", text::printable(&theirs.host)))?;
        // What a request has started ends with the session.
        let mut program = None;
        loop {
            match channel.recv(MEASURED, || Ok(()))? {
                Request::Run(order) => {
                    let joined = queue.joined(&token).and_then(|stream| Ok((order.received()?, stream)));
                    let run = |(order, stream): (session::Order, _)| {
                        order.perform(&document, Trial::default(), stream)
                    };
                    channel.send(&joined.map_or_else(Outcome::from, run))?;
                }
                Request::Counters => channel.send(&session::counters(&document))?,
                Request::Tools => channel.send(&Tools::here())?,
                Request::Perftest(end) => {
                    let started = end.start(&document, from.ip());
                    channel.send(&started.map(|(running, tcp)| {
                        program = Some(running);
                        tcp
                    }))?;
                }
                Request::PerftestEnds(seconds) => {
                    let ended = perftest::ended(program.take(), seconds, &channel)?;
                    channel.send(&ended)?;
                }
                Request::Result(rows) => {
                    document.routes = rows;
                    document.peer = Some(theirs);
                    self.print(&text::text(&mirrored(document), self.args.detail()))?;
                    return Ok(());
                }
            }
        }
    }

    /// Performs a task for the end that checks many hosts.
    fn perform(&self, mut channel: Channel, from: SocketAddr, task: &Task) -> Result<(), Failure> {
        let address = match task {
            Task::Check(address) => address,
            Task::Describe | Task::Waits => {
                channel.send(&reply(None, false, String::new()))?;
                return channel.send(&Summary::new(&check_host(&self.args, &self.files)?));
            }
            Task::Join(_) => {
                let why =
                    "an mpib doctor --listen is here, and no rank 0; name another port: --root HOST:PORT";
                return channel.send(&reply(Some(why.into()), false, String::new()));
            }
        };
        if let Err(why) = self.permitted(address) {
            channel.send(&reply(Some(why.message.clone()), false, String::new()))?;
            return Err(why);
        }
        channel.send(&reply(None, false, String::new()))?;
        self.print(&format!("checks {} for {from}", text::printable(address)))?;
        let outcome = check_host(&self.args, &self.files).and_then(|mut document| {
            let own = document.checks.len();
            peer::check(&self.args, address, &mut document, Some(CHECKED))?;
            Ok(Checked { checks: document.checks.split_off(own), routes: document.routes })
        });
        channel.send(&outcome)
    }

    /// Returns an error unless this listener may connect to a host: it connects to those in its file.
    /// Reads the file for each request.
    fn permitted(&self, address: &str) -> Result<(), Failure> {
        let refuse = |text: String| Err(Failure::new(Kind::Peer, text));
        match &self.permitted {
            Permitted::Nobody => refuse(
                "this listener connects to no other host; start it with: mpib doctor --listen --hosts FILE"
                    .into(),
            ),
            Permitted::These(hosts)
                if hosts.get().is_some_and(|hosts| hosts.iter().any(|h| h == address)) =>
            {
                Ok(())
            }
            Permitted::These(_) => refuse(format!("{} is no host of this job", text::printable(address))),
            Permitted::File(path) if list::read(path)?.iter().any(|host| host == address) => Ok(()),
            Permitted::File(path) => refuse(format!(
                "{} is not in the file of hosts of this listener ({}); use the same file on all hosts",
                text::printable(address),
                path.display()
            )),
        }
    }

    fn print(&self, text: &str) -> Result<(), Failure> {
        if self.is_quiet { Ok(()) } else { output::print(&format!("{text}\n")) }
    }
}

/// Accepts connections. Each is identified on a thread, so many at a time at most: others are closed.
pub(super) fn accept(
    listener: &TcpListener,
    most: usize,
    identify: impl Fn(TcpStream, SocketAddr) + Clone + Send + 'static,
) {
    let running = Arc::new(());
    loop {
        let Ok((stream, from)) = listener.accept() else {
            // No free descriptor, or the peer has closed already; both are temporary.
            thread::sleep(Duration::from_millis(50));
            continue;
        };
        if Arc::strong_count(&running) > most {
            continue;
        }
        let (identify, running) = (identify.clone(), Arc::clone(&running));
        // Without a thread the connection is closed.
        let _ = thread::Builder::new().spawn(move || {
            let _running = running;
            identify(stream, perf::canonical(from));
        });
    }
}

/// Returns a connection for the loop; `None` if it needs no more.
fn opening(stream: TcpStream, from: SocketAddr, busy: &AtomicBool) -> Result<Option<Client>, Failure> {
    let lent = stream.try_clone().tool("share a connection")?;
    let (opening, mut channel) = first_message(lent)?;
    if let Some(token) = opening.join {
        return Ok(Some(Client::Join(stream, token)));
    }
    // It asks while something hangs, and a run may take minutes.
    if opening.task == Some(Task::Waits) {
        let waits = Waits::look(LOOK).tool("read the statistics of this host")?;
        channel.send(&reply(None, false, String::new()))?;
        return channel.send(&waits).map(|()| None);
    }
    if busy.load(Ordering::SeqCst) {
        channel.send(&reply(None, true, String::new()))?;
    }
    Ok(Some(Client::Run(Visit { channel, from, task: opening.task })))
}

/// Reads the first message of a connection. Refuses another program or release.
pub(super) fn first_message(stream: TcpStream) -> Result<(Opening, Channel), Failure> {
    stream.set_nodelay(true).tool("set TCP_NODELAY")?;
    let mut channel = Channel::new(stream.into(), "it")?;
    let why = match channel.first::<Opening>(OPENING, MAGIC) {
        Ok(opening) if opening.magic == MAGIC && opening.protocol == PROTOCOL => {
            return Ok((opening, channel));
        }
        Ok(opening) => {
            format!("the other end {}", peer::other_release(opening.mpib.as_deref(), opening.protocol))
        }
        Err(failure) => failure.message,
    };
    // The peer may have closed already.
    let _ = channel.send(&reply(Some(why.clone()), false, String::new()));
    Err(Failure::new(Kind::Peer, why))
}

pub(super) fn reply(refused: Option<String>, wait: bool, token: String) -> Reply {
    Reply { magic: MAGIC.into(), protocol: PROTOCOL, mpib: Some(VERSION.into()), refused, wait, token }
}

/// Makes a random token.
fn token() -> String {
    // Each value has a new random key.
    let word = || RandomState::new().build_hasher().finish();
    format!("{:016x}{:016x}", word(), word())
}

/// Returns the leading end's table from this end's point of view.
fn mirrored(mut document: Document) -> Document {
    for row in &mut document.routes {
        std::mem::swap(&mut row.pair.ours, &mut row.pair.theirs);
        std::mem::swap(&mut row.out, &mut row.back);
    }
    document
}

impl Queue {
    /// Returns the connection of this run's next measurement. Runs that arrive meanwhile wait.
    fn joined(&mut self, token: &str) -> Result<TcpStream, Failure> {
        let end = Instant::now() + PATIENCE;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            match self.clients.recv_timeout(left) {
                Ok(Client::Join(stream, word)) if word == token => return Ok(stream),
                Ok(Client::Join(..)) => {}
                Ok(Client::Run(Visit { mut channel, from, .. })) if self.waiting.len() >= WAITING => {
                    // The peer may have closed already.
                    let _ = channel.send(&reply(Some("too many machines wait".into()), false, String::new()));
                    eprintln!("mpib: refused {from}: too many wait");
                }
                Ok(Client::Run(visit)) => self.waiting.push_back(visit),
                Err(_) => return Err(Failure::new(Kind::Peer, "no connection for a measurement arrived")),
            }
        }
    }
}
