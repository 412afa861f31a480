//! The HTTP server over its socket.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use mpib_agent::http::{Access, Drain, Http, SOCKET, Web, drain, host, listen, schema, waits};
use mpib_agent::{Agent, Config, Handle, Server};
use mpib_host_view::Source;
use nccl_net_mpib_agent_iface::agent::Request;
use serde_json::{Value, json};
use tempfile::TempDir;

pub(crate) const TOKEN: &str = "0123456789abcdef-test";
/// Only a failing test waits this long.
pub(crate) const LIMIT: Duration = Duration::from_secs(30);

pub(crate) struct Running {
    pub(crate) dir: TempDir,
    http: Option<Http>,
    pub(crate) handle: Handle,
    thread: Option<JoinHandle<()>>,
}

impl Running {
    /// Starts an agent whose configuration has a token file and these lines.
    fn start(config: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let token = dir.path().join("token");
        fs::write(&token, TOKEN).unwrap();
        fs::set_permissions(&token, fs::Permissions::from_mode(0o600)).unwrap();
        let config = format!("{config}\n[http]\ntoken_file = {token:?}\nhosts = [\"agent.example\"]\n");
        Self::with(dir, &config)
    }

    fn with(dir: TempDir, config: &str) -> Self {
        Self::guarded(dir, config, None)
    }

    pub(crate) fn guarded(dir: TempDir, config: &str, web: Option<Web>) -> Self {
        let server = Server::bind(dir.path(), Config::parse(config).unwrap(), None).unwrap();
        let handle = server.handle();
        let adapters = dir.path().join("adapters");
        fs::create_dir_all(adapters.join("mlx5_0/ports/1")).unwrap();
        let listener = listen("127.0.0.1:0".parse().unwrap(), web).unwrap();
        let source = Source::new(adapters);
        let http = Some(Http::start(Some(listener), dir.path(), source, handle.clone()).unwrap());
        let thread = Some(thread::spawn(move || server.run().unwrap()));
        Self { dir, http, handle, thread }
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.http.as_ref().unwrap().address().unwrap()
    }

    pub(crate) fn connect(&self) -> TcpStream {
        connect(self.address())
    }

    /// Sends bytes, and returns the status and everything that comes back.
    pub(crate) fn raw(&self, bytes: &[u8]) -> (u16, String) {
        raw(self.address(), bytes)
    }

    fn get(&self, path: &str) -> (u16, String) {
        self.raw(format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n").as_bytes())
    }

    fn post(&self, path: &str, token: Option<&str>, body: &str) -> (u16, Value) {
        let token = token.map_or(String::new(), |token| format!("Authorization: Bearer {token}\r\n"));
        let length = body.len();
        let head = format!("POST {path} HTTP/1.1\r\nHost: agent.example\r\n{token}Content-Length: {length}");
        let (status, text) = self.raw(format!("{head}\r\n\r\n{body}").as_bytes());
        (status, serde_json::from_str(body_of(&text)).unwrap())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.http = None;
        self.handle.stop();
        self.thread.take().unwrap().join().unwrap();
    }
}

fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    stream
}

fn raw(address: SocketAddr, bytes: &[u8]) -> (u16, String) {
    let mut stream = connect(address);
    stream.write_all(bytes).unwrap();
    let mut text = String::new();
    // The server may close before it has read everything.
    let _ = stream.read_to_string(&mut text);
    let status = text.split(' ').nth(1).unwrap_or_else(|| panic!("no answer: {text:?}"));
    (status.parse().unwrap(), text)
}

fn body_of(answer: &str) -> &str {
    answer.split_once("\r\n\r\n").unwrap().1
}

//= agent.md: /metrics, /api/v1/host, /api/v1/waits, /api/v1/history and /api/v1/schema
#[test]
fn what_is_read_needs_no_token() {
    let agent = Running::start("drain = [\"mlx5_0:1\"]");
    let (status, text) = agent.get("/metrics");
    assert_eq!(status, 200);
    assert!(
        text.contains("content-type: text/plain; version=0.0.4") && text.contains("\nmpib_processes "),
        "{text}"
    );
    let (status, text) = agent.get("/api/v1/host");
    let document: Value = serde_json::from_str(body_of(&text)).unwrap();
    assert_eq!((status, &document["agent"]["drained"]), (200, &json!(["mlx5_0:1"])));
    assert!(document["host"]["ports"].is_array() && document["agent"]["events"][0]["kind"] == "agent");
    let host = document["host"]["hostname"].as_str().unwrap();
    let plain = Access::default();
    waits(agent.address(), host, &plain, LIMIT).unwrap();
    let wrong = waits(agent.address(), "node17", &plain, LIMIT).unwrap_err();
    assert_eq!(wrong, format!("the host that answers there is {host}"));
    let (status, text) = agent.get("/api/v1/history");
    assert!(status == 200 && body_of(&text).starts_with("{\"at_ms\":["), "{text}");
    let (status, text) = agent.get("/api/v1/schema");
    assert!(status == 200 && body_of(&text) == schema(), "{text}");
    let (status, text) = agent.raw(b"HEAD /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n");
    assert!(status == 200 && body_of(&text).is_empty(), "{text}");
    let (status, text) = agent.get("/api/v2");
    assert!(status == 404 && text.contains("there is no /api/v2"), "{text}");
    let lines = agent.handle.read(|agent| agent.snapshot().events);
    assert!(lines.iter().any(|e| e.text == format!("serves http://{}/", agent.address())));
}

//= agent.md: the page has no external resource
#[test]
fn the_page_loads_nothing_and_nobody_may_frame_it() {
    let agent = Running::start("");
    let (status, text) = agent.get("/");
    assert_eq!(status, 200);
    let (head, page) = text.split_once("\r\n\r\n").unwrap();
    let policy = head.lines().find_map(|line| line.strip_prefix("content-security-policy: ")).unwrap();
    let part = |name: &str| policy.split("; ").find(|part| part.starts_with(name)).unwrap();
    assert_eq!(part("default-src"), "default-src 'none'");
    assert!(
        part("script-src").starts_with("script-src 'sha256-")
            && part("style-src").starts_with("style-src 'sha256-")
    );
    assert_eq!(
        (part("connect-src"), part("frame-ancestors")),
        ("connect-src 'self'", "frame-ancestors 'none'")
    );
    for outside in ["http:", "https:", "src=", "@import", "url("] {
        let found = page.replace("http://www.w3.org/2000/svg", "").contains(outside);
        assert!(!found, "the page refers to {outside}");
    }
    assert!(head.contains("cache-control: no-store") && head.contains("x-content-type-options: nosniff"));
}

//= agent.md: the schema of the API
#[test]
fn the_guide_has_the_schema() {
    let path = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/guide/agent.schema.json"));
    if std::env::var_os("WRITE_MANUAL").is_some() {
        fs::write(&path, schema()).unwrap();
    }
    let hint = "docs/guide/agent.schema.json differs: WRITE_MANUAL=1 cargo test -p mpib-agent http";
    assert!(fs::read_to_string(path).unwrap() == schema(), "{hint}");
}

//= agent.md: POST /api/v1/drain and /api/v1/shares need the token
#[test]
fn a_change_needs_the_token() {
    let agent = Running::start("policy = \"external\"");
    let body = r#"{"port": "mlx5_0:1", "drain": true}"#;
    let drained = || agent.handle.read(|agent| agent.snapshot().drained);
    for token in [None, Some("0123456789abcdef-tesT"), Some("")] {
        let (status, answer) = agent.post("/api/v1/drain", token, body);
        assert_eq!((status, drained().len()), (401, 0), "{answer}");
    }
    assert_eq!(agent.post("/api/v1/drain", Some(TOKEN), body), (200, json!({"drained": ["mlx5_0:1"]})));
    assert_eq!(drained(), ["mlx5_0:1"]);
    let back = r#"{"port": "mlx5_0:1", "drain": false}"#;
    assert_eq!(agent.post("/api/v1/drain", Some(TOKEN), back), (200, json!({"drained": []})));
    let share = r#"{"source": "10.0.0.1", "destination": "10.0.0.2", "share": 341}"#;
    assert_eq!(agent.post("/api/v1/shares", Some(TOKEN), share), (200, json!({"flows": 0})));
    assert_eq!(agent.handle.read(Agent::kept).shares[0].share, 341);
    let kinds =
        agent.handle.read(|agent| agent.snapshot().events.into_iter().map(|e| e.kind).collect::<Vec<_>>());
    let kinds = serde_json::to_value(kinds).unwrap();
    assert_eq!(kinds, json!(["agent", "agent", "drained", "undrained", "share"]));

    for (path, body, expected, why) in [
        ("/api/v1/drain", "{\"port\": \"mlx5_0\", \"drain\": true}", 400, "is no port"),
        ("/api/v1/drain", "{\"port\": \"mlx5_0:1\"}", 400, "missing field `drain`"),
        ("/api/v1/drain", "{\"port\": \"mlx5_0:1\", \"drain\": true, \"x\": 1}", 400, "unknown field `x`"),
        ("/api/v1/shares", "nonsense", 400, "the body: expected"),
        ("/api/v1/shares", &share.replace("341", "1025"), 400, "a share of 1025"),
        ("/api/v1/shares", &" ".repeat(5000), 413, "length limit"),
    ] {
        let (status, answer) = agent.post(path, Some(TOKEN), body);
        assert!(status == expected && answer["error"].as_str().unwrap().contains(why), "{body}: {answer}");
    }
    let measured = Running::start("policy = \"measured\"");
    let (status, answer) = measured.post("/api/v1/shares", Some(TOKEN), share);
    assert!(status == 409 && answer["error"].as_str().unwrap().contains("only with policy"), "{answer}");
}

//= agent.md: the agent's user and root need no token on its socket
//= agent.md: a port that the host does not have is refused
#[test]
fn the_socket_serves_its_user_without_a_token() {
    let agent = Running::with(tempfile::tempdir().unwrap(), "");
    let socket = agent.dir.path().join(SOCKET);
    assert_eq!(fs::metadata(&socket).unwrap().permissions().mode() & 0o777, 0o600);
    let set = |port: &str, drain_it, reason: Option<&str>, force| {
        let body = Drain { port: port.into(), drain: drain_it, reason: reason.map(Into::into), force };
        drain(&socket, &body, LIMIT).map(|answer| answer.drained).map_err(|e| e.to_string())
    };
    assert_eq!(set("mlx5_0:1", true, Some("ticket 17"), false).unwrap(), ["mlx5_0:1"]);
    let snapshot = agent.handle.read(Agent::snapshot);
    let [view] = &snapshot.drains[..] else { panic!("{snapshot:?}") };
    assert_eq!((view.port.as_str(), view.reason.as_deref()), ("mlx5_0:1", Some("ticket 17")));
    let by = view.by.as_deref().unwrap();
    let line = format!("port mlx5_0:1 is out of use, by {by}: ticket 17");
    assert!(snapshot.events.iter().any(|event| event.text == line), "{line}: {:?}", snapshot.events);

    for (port, drain) in [("mlx5_9:1", true), ("mlx5_9:1", false), ("mlx5_0:2", true)] {
        let why = set(port, drain, None, false).unwrap_err();
        // Other processes of this machine may have ports, too.
        let there = why.split_once("there are: ").and_then(|(_, rest)| rest.split_once(". ")).unwrap().0;
        assert!(
            why.contains(&format!("has port {port},")) && !there.split(", ").any(|it| it == port),
            "{why}"
        );
        assert!(there.split(", ").any(|it| it == "mlx5_0:1"), "{why}");
    }
    assert_eq!(set("mlx5_9:1", true, None, true).unwrap(), ["mlx5_0:1", "mlx5_9:1"]);
    // One that is out of use can be put back, whether it is there or not.
    assert_eq!(set("mlx5_9:1", false, None, false).unwrap(), ["mlx5_0:1"]);
    let long = "x".repeat(201);
    for reason in ["a\nb", "\x1b[31m", &long] {
        assert!(
            set("mlx5_0:1", true, Some(reason), false).unwrap_err().contains("at most 200"),
            "{reason:?}"
        );
    }
    assert!(!host(&socket, LIMIT).unwrap().hostname.is_empty());
    let nobody = drain(&agent.dir.path().join("no"), &Drain::default(), LIMIT).unwrap_err().to_string();
    assert!(nobody.ends_with("no agent listens there"), "{nobody}");
    let file = socket.clone();
    drop(agent);
    assert!(!file.exists());
}

//= agent.md: without a token file nobody may change anything
#[test]
fn without_a_token_nothing_is_changed_and_the_answer_says_what_to_set() {
    let agent = Running::with(tempfile::tempdir().unwrap(), "[http]\nhosts = [\"agent.example\"]");
    let (status, answer) = agent.post("/api/v1/drain", Some(""), r#"{"port": "a:1", "drain": true}"#);
    assert!(status == 403 && answer["error"].as_str().unwrap().contains("set \"token_file\""), "{answer}");
    assert!(agent.handle.read(|agent| agent.snapshot().drained.is_empty()));
}

//= agent-interface.md: requests that name another host are refused
#[test]
fn pages_of_others_can_neither_read_nor_change_anything() {
    let agent = Running::start("");
    for path in ["/", "/metrics", "/healthz", "/api/v1/host", "/api/v1/stream"] {
        let request = format!("GET {path} HTTP/1.1\r\nHost: rebound.example:9119\r\n\r\n");
        let (status, text) = agent.raw(request.as_bytes());
        assert!(status == 403 && text.contains("is no name of this host"), "{path}: {text}");
    }
    let (_, text) =
        agent.raw(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nOrigin: http://other.example\r\n\r\n");
    assert!(!text.to_lowercase().contains("access-control"), "{text}");
    let preflight = b"OPTIONS /api/v1/drain HTTP/1.1\r\nHost: localhost\r\nOrigin: http://other.example\r\n\
        Access-Control-Request-Method: POST\r\nAccess-Control-Request-Headers: authorization\r\n\r\n";
    let (status, text) = agent.raw(preflight);
    assert!(status == 405 && !text.to_lowercase().contains("access-control"), "{text}");
    assert_eq!(agent.get("/api/v1/drain").0, 405);
    assert_eq!(agent.post("/metrics", Some(TOKEN), "").0, 405);
}

//= agent.md: /healthz is 200 while the agent's loop runs
#[test]
fn health_is_that_of_the_loop() {
    let agent = Running::start("");
    let (status, text) = agent.get("/healthz");
    assert_eq!((status, body_of(&text)), (200, "ok\n"));

    let dir = tempfile::tempdir().unwrap();
    let server = Server::bind(dir.path(), Config::default(), None).unwrap();
    let listener = listen("127.0.0.1:0".parse().unwrap(), None).unwrap();
    let http = Http::start(Some(listener), dir.path(), Source::default(), server.handle()).unwrap();
    let (status, text) = raw(http.address().unwrap(), b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n");
    assert_eq!((status, body_of(&text)), (503, "the agent's loop has not run for 2 s\n"));
}

/// Reads the next event of a stream.
fn event(lines: &mut impl Iterator<Item = std::io::Result<String>>) -> Value {
    let line = lines.find_map(|line| line.unwrap().strip_prefix("data: ").map(str::to_owned));
    serde_json::from_str(&line.unwrap()).unwrap()
}

//= agent.md: /api/v1/stream sends an event per second
#[test]
fn the_stream_follows_what_happens() {
    let agent = Running::start("");
    let mut stream = agent.connect();
    stream.write_all(b"GET /api/v1/stream HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
    let mut lines = BufReader::new(stream).lines();
    let head: Vec<String> = lines.by_ref().map(Result::unwrap).take_while(|line| !line.is_empty()).collect();
    assert!(
        head[0].contains("200") && head.iter().any(|l| l == "content-type: text/event-stream"),
        "{head:?}"
    );
    let first = event(&mut lines);
    assert_eq!(first["agent"]["drained"], json!([]));
    agent.post("/api/v1/drain", Some(TOKEN), r#"{"port": "mlx5_0:1", "drain": true}"#);
    let began = Instant::now();
    while event(&mut lines)["agent"]["drained"] != json!(["mlx5_0:1"]) {
        assert!(began.elapsed() < LIMIT);
    }
    let (a, b) = (event(&mut lines), event(&mut lines));
    assert!(b["host"]["at_ms"].as_u64() > a["host"]["at_ms"].as_u64());
    assert!(b["host"]["interval_seconds"].is_number());
}

//= agent-interface.md: clients that send nothing give way to others, and block no plugin
#[test]
fn idle_clients_give_way() {
    let agent = Running::start("");
    let mut idle: Vec<TcpStream> = (0..64).map(|_| agent.connect()).collect();
    let socket = agent.dir.path().join(SOCKET);
    let mut operators: Vec<UnixStream> = (0..64).map(|_| UnixStream::connect(&socket).unwrap()).collect();
    // A plugin is served meanwhile.
    let mut plugin = UnixStream::connect(agent.dir.path().join("agent.sock")).unwrap();
    plugin.set_read_timeout(Some(LIMIT)).unwrap();
    let (bytes, len) = Request::Deregister { conn_id: 1 }.encode();
    plugin.write_all(&bytes[..len]).unwrap();
    plugin.read_exact(&mut [0; 12]).unwrap();
    // Those that came first have made room, and the others are there.
    assert_eq!(agent.get("/healthz").0, 200);
    assert_eq!(idle[0].read(&mut [0]).unwrap(), 0, "disconnected");
    assert!(!host(&socket, LIMIT).unwrap().hostname.is_empty());
    operators[0].set_read_timeout(Some(LIMIT)).unwrap();
    assert_eq!(operators[0].read(&mut [0]).unwrap(), 0, "disconnected");
    // In the end they are disconnected even if nobody comes.
    assert_eq!(idle[63].read(&mut [0]).unwrap(), 0, "disconnected");
}

//= agent.md: requests are limited in size
#[test]
fn a_request_has_a_limited_size() {
    let agent = Running::start("");
    let long = format!("GET /healthz HTTP/1.1\r\nHost: localhost\r\nX: {}\r\n\r\n", "x".repeat(20_000));
    assert_eq!(agent.raw(long.as_bytes()).0, 431);
    let fields = "X: y\r\n".repeat(65);
    assert_eq!(agent.raw(format!("GET / HTTP/1.1\r\nHost: localhost\r\n{fields}\r\n").as_bytes()).0, 431);
    assert_eq!(agent.raw(b"nonsense\r\n\r\n").0, 400);
}
