//! An agent under attack by users and clients, and an honest user beside them.
//!
//! `TEST_SOAK_SECONDS=n` makes it long, as `make soak-agent` does.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, IoSlice, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use mpib_agent::http::{Http, listen};
use mpib_agent::{Config, Server};
use mpib_host_view::Source;
use nccl_net_mpib_agent_iface::agent::{Register, Request, TAKES_MEMORY};
use nccl_net_mpib_agent_iface::stats::{
    Data, Direction, Islands, NewConnection, STATS_ENTRY_SIZE, STATS_SIZE, StatsWriter, Traffic,
};
use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use nix::sched::{CloneFlags, unshare};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::socket::sockopt::Linger;
use nix::sys::socket::{ControlMessage, MsgFlags, sendmsg, setsockopt};

/// What this program is to be instead of the test.
const ROLE: &str = "TEST_HOSTILE_ROLE";
const NAME: &str = "hostile::an_honest_user_is_served_beside_hostile_ones";
/// The first user of the attackers, none of whom exists.
const ATTACKERS: u32 = 3_000_000;
const HONEST: u32 = 4_000_000;
/// How long one try of an honest user may take. Only a failing test waits so long.
const LIMIT: Duration = Duration::from_secs(60);
/// The agent's memory: less than this.
const MEMORY_KB: u64 = 64 << 10;
/// The same in a long run: half of what its unit may have.
const LONG_MEMORY_KB: u64 = 128 << 10;
/// Begin of the name of a port in a page, which others of the same length replace.
const PORT: &[u8] = b"hostile";

//= agent.md: an honest user is served beside hostile ones, and the agent does not grow
#[test]
fn an_honest_user_is_served_beside_hostile_ones() {
    match std::env::var(ROLE).as_deref() {
        Ok("agent") => return agent(),
        Ok(_) => return attack(),
        Err(_) => {}
    }
    if !nix::unistd::geteuid().is_root() {
        return eprintln!("skipped: only root can play several users");
    }
    let seconds: Option<u64> = std::env::var("TEST_SOAK_SECONDS").ok().map(|text| text.parse().unwrap());
    let folder = tempfile::tempdir().unwrap();
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let (agent, address) = Part::start("agent", folder.path(), "");
    let address: SocketAddr = address.parse().unwrap();
    let socket = folder.path().join("agent.sock");
    let (mut registers, mut healths, mut most_kb) = (Vec::new(), Vec::new(), 0);
    let (attackers, _) = Part::start("attack", folder.path(), &address.to_string());
    let end = Instant::now() + Duration::from_secs(seconds.unwrap_or(5));
    thread::scope(|scope| {
        let honest = scope.spawn(|| {
            become_user(HONEST);
            let mut took = Vec::new();
            while Instant::now() < end {
                took.push(honest_register(&socket));
                thread::sleep(Duration::from_millis(20));
            }
            took
        });
        let health = scope.spawn(|| {
            let mut took = Vec::new();
            while Instant::now() < end {
                took.push(healthy(address));
                thread::sleep(Duration::from_millis(50));
            }
            took
        });
        while !honest.is_finished() || !health.is_finished() {
            most_kb = most_kb.max(agent.resident_kb());
            thread::sleep(Duration::from_millis(20));
        }
        registers = honest.join().unwrap();
        healths = health.join().unwrap();
    });
    drop(attackers);
    let (register, health) = (Times::of(registers), Times::of(healths));
    println!(
        "hostile users: REGISTER {register}; /healthz {health}; the agent had up to {} MB",
        most_kb >> 10
    );
    let limit_kb = if seconds.is_some() { LONG_MEMORY_KB } else { MEMORY_KB };
    assert!(most_kb < limit_kb, "the agent had {most_kb} KB");
    if seconds.is_some() {
        assert!(register.median < Duration::from_millis(50), "REGISTER");
        assert!(health.median < Duration::from_millis(100), "/healthz");
    }
}

/// How long something took, many times.
struct Times {
    count: usize,
    median: Duration,
    p99: Duration,
    most: Duration,
}

impl Times {
    fn of(mut all: Vec<Duration>) -> Self {
        all.sort();
        let at = |percent: usize| all[(all.len() - 1) * percent / 100];
        Self { count: all.len(), median: at(50), p99: at(99), most: at(100) }
    }
}

impl std::fmt::Display for Times {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { count, median, p99, most } = self;
        write!(f, "{count} times, median {median:.1?}, p99 {p99:.1?}, most {most:.1?}")
    }
}

/// A process of this test, which ends with it.
struct Part(Child);

impl Part {
    /// Returns it with the line that it prints first.
    fn start(role: &str, folder: &Path, address: &str) -> (Self, String) {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", NAME, "--nocapture"]).env(ROLE, role);
        command.env("TEST_HOSTILE_FOLDER", folder).env("TEST_HOSTILE_ADDRESS", address);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
        let mut said = lines.filter_map(|line| Some(line.split_once("ready: ")?.1.to_owned()));
        let said_first = said.next().expect(role);
        (Self(child), said_first)
    }

    fn resident_kb(&self) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.0.id())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        line.and_then(|line| line.trim().trim_end_matches(" kB").parse().ok()).expect("the agent has ended")
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A part says that it is ready, and lives until the test ends.
fn ready(line: &str) {
    // Not by println: libtest keeps that.
    std::io::stdout().write_all(format!("\nready: {line}\n").as_bytes()).unwrap();
    std::io::stdin().read_to_end(&mut Vec::new()).unwrap();
}

fn agent() {
    // Its processes are in the control group of the test, which may be that of a person.
    unshare(CloneFlags::CLONE_NEWCGROUP).unwrap();
    Server::raise_limits();
    let folder = PathBuf::from(std::env::var_os("TEST_HOSTILE_FOLDER").unwrap());
    let server = Server::bind(&folder, Config::default(), None).unwrap();
    let listener = listen("127.0.0.1:0".parse().unwrap(), None).unwrap();
    let source = Source::new(folder.join("no adapters"));
    let http = Http::start(Some(listener), &folder, source, server.handle()).unwrap();
    thread::spawn(|| server.run().unwrap());
    ready(&http.address().unwrap().to_string());
}

/// Becomes another user, with this thread alone.
fn become_user(uid: u32) {
    // SAFETY: the call takes numbers only. Other threads stay root.
    assert_eq!(unsafe { libc::syscall(libc::SYS_setresuid, uid, uid, uid) }, 0);
}

fn connect(socket: &Path) -> std::io::Result<UnixStream> {
    let stream = UnixStream::connect(socket)?;
    stream.set_read_timeout(Some(LIMIT))?;
    Ok(stream)
}

fn register(conn_id: u32, last: u32) -> Request {
    let ip = |net: u32| (0x0a00_0000 + (net << 16) + last).into();
    Request::Register(Register { conn_id, sout_src: ip(0), sout_dst: ip(1), sup_src: ip(2), sup_dst: ip(3) })
}

/// Sends a request, and reads `len` bytes of an answer.
fn ask(stream: &mut UnixStream, request: &Request, len: usize) -> std::io::Result<()> {
    let (bytes, sent) = request.encode_with(TAKES_MEMORY);
    stream.write_all(&bytes[..sent])?;
    stream.read_exact(&mut [0; 16][..len])
}

/// Returns the time until a process that has just begun is registered. It tries again as the plugin does.
fn honest_register(socket: &Path) -> Duration {
    let began = Instant::now();
    loop {
        let answered = connect(socket).and_then(|mut stream| ask(&mut stream, &register(1, 1), 16));
        if answered.is_ok() {
            return began.elapsed();
        }
        assert!(began.elapsed() < LIMIT, "REGISTER: {answered:?}");
        thread::sleep(Duration::from_millis(100));
    }
}

/// Returns the time until the agent says that it is well.
fn healthy(address: SocketAddr) -> Duration {
    let began = Instant::now();
    loop {
        let mut text = String::new();
        let answered = get(address, "/healthz").and_then(|mut stream| stream.read_to_string(&mut text));
        if text.starts_with("HTTP/1.1 200") {
            return began.elapsed();
        }
        assert!(began.elapsed() < LIMIT, "/healthz: {answered:?} {text}");
    }
}

fn get(address: SocketAddr, path: &str) -> std::io::Result<TcpStream> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(LIMIT))?;
    stream.write_all(format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n").as_bytes())?;
    Ok(stream)
}

/// Where the attackers go.
#[derive(Clone, Copy)]
struct Target {
    socket: &'static Path,
    address: SocketAddr,
    /// A page with as much as one can show.
    page: &'static [u8],
}

/// What a user does, until it is refused or disconnected.
type Attack = fn(Target, u32);

/// All attacks at once, each by other users, until the test ends.
fn attack() {
    Server::raise_limits();
    let socket = PathBuf::from(std::env::var_os("TEST_HOSTILE_FOLDER").unwrap()).join("agent.sock");
    let socket = Box::leak(socket.into_boxed_path());
    let address = std::env::var("TEST_HOSTILE_ADDRESS").unwrap().parse().unwrap();
    let target = Target { socket, address, page: full_page().leak() };
    let attacks: [(u32, Attack); 9] = [
        (4, flood_connections),
        (2, pass_what_is_not_closed),
        (1, pass_anything),
        (4, |target, user| show_pages(target, user, 100, 64)),
        (2, |target, user| show_pages(target, user, 8, 1024)),
        (4, register_all),
        (1, read_no_answers),
        (1, send_half_heads),
        (1, read_slowly),
    ];
    let attacks = attacks.into_iter().flat_map(|(users, attack)| (0..users).map(move |_| attack));
    for (user, attack) in (ATTACKERS..).zip(attacks) {
        thread::spawn(move || {
            become_user(user);
            loop {
                attack(target, user);
                thread::sleep(Duration::from_millis(10));
            }
        });
    }
    ready("");
}

/// The page of this process with connections and ports, which no memory of the process changes.
fn full_page() -> Vec<u8> {
    let writer = StatsWriter::for_this_process("1.2.3").unwrap();
    let name = |port: usize| format!("hostile{port:02}:1");
    let connections: Vec<_> = (0..1024)
        .map(|n| {
            let names = [name(2 * n % 64), name((2 * n + 1) % 64)];
            let rails = [(0, &*names[0]), (1, &*names[1])];
            writer.add(&NewConnection {
                direction: Direction::Send,
                islands: Islands::Two,
                data: Data::Split,
                traffic: Traffic::Messages,
                peer: "node7 process 4711",
                rails: &rails,
                substituted: false,
            })
        })
        .collect();
    let mut bytes = vec![0; STATS_SIZE];
    let file = File::from(StatsWriter::descriptor().unwrap().try_clone_to_owned().unwrap());
    file.read_exact_at(&mut bytes, 0).unwrap();
    drop(connections);
    bytes
}

/// Connects without end, and keeps what is not refused.
fn flood_connections(target: Target, _: u32) {
    let connected: Vec<_> = (0..700).map_while(|_| UnixStream::connect(target.socket).ok()).collect();
    drop(connected);
}

fn give(stream: &UnixStream, descriptors: &[i32]) -> nix::Result<usize> {
    let (bytes, len) = Request::Deregister { conn_id: 9 }.encode();
    let control = [ControlMessage::ScmRights(descriptors)];
    let flags = MsgFlags::MSG_NOSIGNAL | MsgFlags::MSG_DONTWAIT;
    sendmsg::<()>(stream.as_raw_fd(), &[IoSlice::new(&bytes[..len])], &control, flags, None)
}

/// A socket whose close takes an hour while the other one is there.
fn lingering() -> std::io::Result<(OwnedFd, TcpStream)> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let mut ours = TcpStream::connect(listener.local_addr()?)?;
    let (theirs, _) = listener.accept()?;
    ours.set_nonblocking(true)?;
    while ours.write(&[0; 65536]).is_ok() {}
    ours.set_nonblocking(false)?;
    setsockopt(&ours, Linger, &libc::linger { l_onoff: 1, l_linger: 3600 })?;
    Ok((ours.into(), theirs))
}

/// Passes what is not closed for an hour, and as much else as is taken.
fn pass_what_is_not_closed(target: Target, _: u32) {
    let Ok((socket, _theirs)) = lingering() else { return };
    let (pipe, _writer) = std::io::pipe().unwrap();
    let pipes = [pipe.as_raw_fd(); 250];
    let socket = std::cell::Cell::new(Some(socket));
    for _ in 0..1000 {
        let Ok(stream) = UnixStream::connect(target.socket) else { continue };
        if let Some(socket) = socket.take() {
            let _ = give(&stream, &[pipe.as_raw_fd(), socket.as_raw_fd()]);
        }
        while give(&stream, &pipes).is_ok() {}
        // The agent reads them, or has closed.
        thread::sleep(Duration::from_millis(1));
    }
}

/// Passes what is no page: devices, and files of any size.
fn pass_anything(target: Target, _: u32) {
    for size in [0, 4096, STATS_SIZE as u64, 1 << 40] {
        let file = File::from(memfd_create("mpib-stats", MFdFlags::MFD_ALLOW_SEALING).unwrap());
        if file.set_len(size).is_err() {
            continue;
        }
        fcntl(&file, FcntlArg::F_ADD_SEALS(SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_GROW)).unwrap();
        let zero = File::open("/dev/zero").unwrap();
        for descriptor in [file.as_raw_fd(), zero.as_raw_fd()] {
            let Ok(mut stream) = connect(target.socket) else { continue };
            let _ = give(&stream, &[descriptor]);
            let _ = stream.read(&mut [0; 16]);
        }
    }
}

/// Shows pages with so many connections, whose ports have other names all the time.
fn show_pages(target: Target, user: u32, pages: usize, connections: usize) {
    let len = target.page.len() - (1024 - connections) * STATS_ENTRY_SIZE;
    let places: Vec<usize> =
        (0..len - PORT.len()).filter(|at| target.page[*at..].starts_with(PORT)).collect();
    let mut shown = Vec::new();
    for number in 0.. {
        if shown.len() < pages {
            let file = File::from(memfd_create("mpib-stats", MFdFlags::MFD_ALLOW_SEALING).unwrap());
            file.set_len(STATS_SIZE as u64).unwrap();
            file.write_all_at(&target.page[..len], 0).unwrap();
            fcntl(&file, FcntlArg::F_ADD_SEALS(SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_GROW)).unwrap();
            let Ok(mut stream) = connect(target.socket) else { return };
            if give(&stream, &[file.as_raw_fd()]).is_err() || stream.read(&mut [0; 16]).is_err() {
                return;
            }
            shown.push((stream, file));
            continue;
        }
        let (_, file) = &shown[number % shown.len()];
        let name = format!("{:07}", (u64::from(user) * 10_007 + number as u64) % 10_000_000);
        for at in &places {
            file.write_all_at(name.as_bytes(), *at as u64).unwrap();
        }
        thread::sleep(Duration::from_millis(10));
    }
}

/// Registers as many connections as one user may have, in many processes.
fn register_all(target: Target, _: u32) {
    let mut streams = Vec::new();
    for _ in 0..100 {
        let Ok(mut stream) = connect(target.socket) else { return };
        for n in 0..1500 {
            if ask(&mut stream, &register(n, n % 256), 16).is_err() {
                return;
            }
        }
        streams.push(stream);
    }
    thread::sleep(LIMIT);
}

/// Sends requests, and reads nothing.
fn read_no_answers(target: Target, _: u32) {
    let (bytes, len) = Request::Deregister { conn_id: 7 }.encode();
    let flood = bytes[..len].repeat(300);
    let streams: Vec<_> = (0..100).map_while(|_| UnixStream::connect(target.socket).ok()).collect();
    for mut stream in &streams {
        let _ = stream.set_nonblocking(true);
        while stream.write(&flood).is_ok() {}
    }
}

/// Begins requests, and ends none.
fn send_half_heads(target: Target, _: u32) {
    let heads = (0..200).map_while(|n| {
        let mut stream = TcpStream::connect(target.address).ok()?;
        // Some send nothing.
        let _ = if n % 2 == 0 { stream.write(b"GET / HTTP/1.1\r\nHost: ") } else { Ok(0) };
        Some(stream)
    });
    let heads: Vec<_> = heads.collect();
    thread::sleep(Duration::from_millis(100));
    drop(heads);
}

/// Asks for all that is large, and does not read it.
fn read_slowly(target: Target, _: u32) {
    let paths = ["/api/v1/host", "/api/v1/history", "/metrics", "/api/v1/stream"];
    let streams = (0..64).map_while(|n| get(target.address, paths[n % paths.len()]).ok());
    let streams: Vec<_> = streams.collect();
    thread::sleep(Duration::from_secs(2));
    drop(streams);
}
