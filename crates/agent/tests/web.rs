//! TLS and passwords of the HTTP server.

use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::os::fd::AsRawFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use mpib_agent::http::{Access, SOCKET, Web, host, waits};
use nccl_net_mpib_agent_iface::agent::Request;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, SockaddrIn, bind, connect, socket};
use tempfile::TempDir;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

use crate::authority::Authority;
use crate::http::{LIMIT, Running, TOKEN};

/// What a web file needs for TLS with the certificate that [`Authority::sign`] writes.
const TLS: &str = "tls_server_config:\n  cert_file: node.crt\n  key_file: node.key\n";
const GET: &str = "GET /metrics HTTP/1.1\r\nHost: localhost\r\n";

fn write(folder: &Path, web: &str) -> PathBuf {
    let path = folder.join("web.yml");
    fs::write(&path, web).unwrap();
    path
}

/// Starts an agent with this web file, and a token.
fn start(dir: TempDir, web: &str) -> Running {
    let token = dir.path().join("token");
    fs::write(&token, TOKEN).unwrap();
    fs::set_permissions(&token, fs::Permissions::from_mode(0o600)).unwrap();
    let (web, _) = Web::read(write(dir.path(), web)).unwrap();
    Running::guarded(dir, &format!("[http]\ntoken_file = {token:?}\n"), Some(web))
}

fn user(name: &str, password: &str, cost: u32) -> String {
    format!("basic_auth_users:\n  {name}: {}\n", bcrypt::hash(password, cost).unwrap())
}

fn basic(login: &str) -> String {
    format!("Authorization: Basic {}\r\n", STANDARD.encode(login))
}

/// A client that trusts an authority, and has a certificate of a folder.
struct Client(Arc<ClientConfig>);

impl Client {
    fn new(authority: &Path, own: Option<&Path>) -> Self {
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_file(authority).unwrap()).unwrap();
        let provider = Arc::new(tokio_rustls::rustls::crypto::ring::default_provider());
        let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
        let builder = builder.unwrap().with_root_certificates(roots);
        Self(Arc::new(match own {
            None => builder.with_no_client_auth(),
            Some(folder) => {
                let chain = vec![CertificateDer::from_pem_file(folder.join("node.crt")).unwrap()];
                let key = PrivateKeyDer::from_pem_file(folder.join("node.key")).unwrap();
                builder.with_client_auth_cert(chain, key).unwrap()
            }
        }))
    }

    /// Sends the head of a request, and returns the status and all that comes back.
    fn ask(&self, agent: &Running, head: &str) -> Result<(u16, String), String> {
        let name = ServerName::try_from("localhost").unwrap();
        let session = ClientConnection::new(self.0.clone(), name).unwrap();
        let mut stream = StreamOwned::new(session, agent.connect());
        stream.write_all(format!("{head}\r\n").as_bytes()).map_err(|e| e.to_string())?;
        let mut text = String::new();
        stream.read_to_string(&mut text).map_err(|e| e.to_string())?;
        Ok((text.split(' ').nth(1).expect("an answer").parse().unwrap(), text))
    }
}

fn log(agent: &Running) -> Vec<String> {
    agent.handle.read(|agent| agent.snapshot().events.into_iter().map(|event| event.text).collect())
}

/// Waits for a line of the log.
fn logged(agent: &Running, part: &str) {
    let began = Instant::now();
    while !log(agent).iter().any(|line| line.contains(part)) {
        assert!(began.elapsed() < LIMIT, "{part}: {:?}", log(agent));
        thread::sleep(Duration::from_millis(10));
    }
}

//= agent.md: with a certificate the agent serves HTTPS alone
#[test]
fn requests_go_over_tls_and_a_plain_one_gets_a_sentence() {
    let (dir, authority) = (tempfile::tempdir().unwrap(), Authority::new());
    authority.sign(dir.path(), &["localhost"]);
    let [good, other] = [&authority, &Authority::new()]
        .map(|a| tempfile::tempdir().map(|d| (a.write(&d.path().join("ca")), d)).unwrap());
    let agent = start(dir, TLS);
    assert!(log(&agent).contains(&format!("serves https://{}/", agent.address())));
    let (status, text) = Client::new(&good.0, None).ask(&agent, GET).unwrap();
    assert!(status == 200 && text.contains("\nmpib_processes "), "{text}");
    let why = Client::new(&other.0, None).ask(&agent, GET).unwrap_err();
    assert!(why.contains("UnknownIssuer"), "{why}");
    let (status, text) = agent.raw(format!("{GET}\r\n").as_bytes());
    assert!(status == 400 && text.contains("this port serves HTTPS alone"), "{text}");
    // Operators of the host ask as before.
    assert!(!host(&agent.dir.path().join(SOCKET), LIMIT).unwrap().hostname.is_empty());
}

//= agent-interface.md: a handshake that stops half way is dropped as an idle client is
#[test]
fn half_a_handshake_gives_way_and_ends() {
    let (dir, authority) = (tempfile::tempdir().unwrap(), Authority::new());
    authority.sign(dir.path(), &["localhost"]);
    let trusted = authority.write(&dir.path().join("ca"));
    let agent = start(dir, TLS);
    // The head of a record that never comes.
    let half = || {
        let mut stream = agent.connect();
        stream.write_all(&[22, 3, 1, 2, 0, 1]).unwrap();
        stream
    };
    let mut halves: Vec<TcpStream> = (0..64).map(|_| half()).collect();
    assert_eq!(Client::new(&trusted, None).ask(&agent, GET).unwrap().0, 200);
    for stream in [0, 63] {
        // With a reset if its bytes were not read before.
        let end = halves[stream].read(&mut [0]).or_else(|e| match e.kind() {
            ErrorKind::ConnectionReset => Ok(0),
            _ => Err(e),
        });
        assert_eq!(end.unwrap(), 0, "disconnected");
    }
}

//= agent.md: a client without the certificate that is required is refused
#[test]
fn clients_show_their_certificate() {
    let (dir, server, clients) = (tempfile::tempdir().unwrap(), Authority::new(), Authority::new());
    server.sign(dir.path(), &["localhost"]);
    let trusted = server.write(&dir.path().join("ca"));
    clients.write(&dir.path().join("clients"));
    let [known, stranger] = [&clients, &server].map(|authority| {
        let folder = tempfile::tempdir().unwrap();
        authority.sign(folder.path(), &["scraper"]);
        folder
    });
    let policy = |name: &str| format!("{TLS}  client_ca_file: clients\n  client_auth_type: {name}\n");
    let agent = start(dir, &policy("RequireAndVerifyClientCert"));
    let ask = |own: Option<&Path>| Client::new(&trusted, own).ask(&agent, GET);
    assert_eq!(ask(Some(known.path())).unwrap().0, 200);
    for own in [None, Some(stranger.path())] {
        let why = ask(own).unwrap_err();
        assert!(why.contains("fatal alert"), "{why}");
    }
    let access = Access::read(&trusted, None).unwrap();
    let why = waits(agent.address(), "localhost", &access, LIMIT).unwrap_err();
    assert!(why.contains("CertificateRequired"), "{why}");
    write(agent.dir.path(), &policy("VerifyClientCertIfGiven"));
    agent.handle.reload();
    logged(&agent, "is in use as it is now");
    assert_eq!(ask(None).unwrap().0, 200);
    assert!(ask(Some(stranger.path())).is_err());
}

//= agent.md: a user and a password are asked for, or the token
#[test]
fn a_password_opens_what_is_read_and_the_token_everything() {
    let web = user("alice", "secret", 4);
    let agent = start(tempfile::tempdir().unwrap(), &web);
    let ask = |head: &str, more: &str| {
        agent.raw(format!("{head} HTTP/1.1\r\nHost: localhost\r\n{more}\r\n").as_bytes())
    };
    for login in
        ["", &basic("alice:Secret"), &basic("bob:secret"), &basic("alice"), "Authorization: Basic !\r\n"]
    {
        for path in ["/", "/metrics", "/api/v1/host", "/api/v1/stream"] {
            let (status, text) = ask(&format!("GET {path}"), login);
            assert!(
                status == 401 && text.contains("www-authenticate: Basic realm=\"mpib agent\""),
                "{login}{text}"
            );
        }
    }
    for _ in 0..2 {
        assert_eq!(ask("GET /metrics", &basic("alice:secret")).0, 200);
    }
    let token = format!("Authorization: Bearer {TOKEN}\r\n");
    assert_eq!(ask("GET /metrics", &token).0, 200);
    assert_eq!(ask("GET /metrics", &token.replace("-test", "-tesT")).0, 401);
    assert_eq!(ask("GET /healthz", "").0, 200, "a probe has no password");
    let body = r#"{"port": "mlx5_0:1", "drain": true}"#;
    let post = |login: &str| {
        let more = format!("{login}Content-Length: {}\r\n\r\n{body}", body.len());
        agent.raw(format!("POST /api/v1/drain HTTP/1.1\r\nHost: localhost\r\n{more}").as_bytes())
    };
    let (status, text) = post(&basic("alice:secret"));
    assert!(status == 401 && text.contains("www-authenticate: Bearer"), "{text}");
    assert_eq!(post(&token).0, 200);
}

/// Sends so many wrong passwords, two from an address.
fn guesses(agent: &Running, count: usize) -> Vec<TcpStream> {
    (0..count).map(|n| guess(agent, 2 + (n / 2) as u8, n)).collect()
}

/// Sends a wrong password from 127.0.0.`last`.
fn guess(agent: &Running, last: u8, number: usize) -> TcpStream {
    let mut stream = connect_from(agent, last);
    write!(stream, "{GET}{}\r\n", basic(&format!("alice:{number}"))).unwrap();
    stream
}

fn connect_from(agent: &Running, last: u8) -> TcpStream {
    let fd = socket(AddressFamily::Inet, SockType::Stream, SockFlag::empty(), None).unwrap();
    bind(fd.as_raw_fd(), &SockaddrIn::new(127, 0, 0, last, 0)).unwrap();
    connect(fd.as_raw_fd(), &SockaddrIn::new(127, 0, 0, 1, agent.address().port())).unwrap();
    let stream = TcpStream::from(fd);
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    stream
}

/// Returns what the agent sends until it closes.
fn answer(stream: &mut TcpStream) -> String {
    let mut text = String::new();
    let _ = stream.read_to_string(&mut text);
    text
}

/// Checks that a guess has no answer: it was not checked before others were served.
fn still_waits(guess: &mut TcpStream) {
    guess.set_nonblocking(true).unwrap();
    assert_eq!(guess.read(&mut [0]).unwrap_err().kind(), ErrorKind::WouldBlock);
}

/// Asks with a login until the password is checked, and returns the status.
fn ask_until_checked(agent: &Running, login: &str) -> u16 {
    let began = Instant::now();
    loop {
        let mut stream = agent.connect();
        write!(stream, "{GET}{}\r\n", basic(login)).unwrap();
        let text = answer(&mut stream);
        match text.split(' ').nth(1) {
            // It took too long, or other passwords wait.
            None | Some("429") => assert!(began.elapsed() < LIMIT, "{text}"),
            Some(status) => return status.parse().unwrap(),
        }
        thread::sleep(Duration::from_millis(1));
    }
}

/// Waits until guesses have all places.
fn places_are_taken(agent: &Running) {
    let began = Instant::now();
    while !answer(&mut guess(agent, 99, 0)).starts_with("HTTP/1.1 429 ") {
        assert!(began.elapsed() < LIMIT);
    }
}

//= agent-interface.md: wrong passwords delay neither /healthz, nor plugins, nor those whose password was right
#[test]
fn wrong_passwords_hold_up_nobody_else() {
    let agent = start(tempfile::tempdir().unwrap(), &user("alice", "secret", 9));
    let ask = |more: &str| agent.raw(format!("{GET}{more}\r\n").as_bytes()).0;
    assert_eq!(ask(&basic("alice:secret")), 200);
    let mut guesses = guesses(&agent, 16);
    let text = answer(&mut guesses[0]);
    assert!(text.starts_with("HTTP/1.1 401 "), "{text}");
    assert_eq!(agent.raw(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n").0, 200);
    assert_eq!(ask(&basic("alice:secret")), 200);
    let mut plugin = UnixStream::connect(agent.dir.path().join("agent.sock")).unwrap();
    let (bytes, len) = Request::Deregister { conn_id: 1 }.encode();
    plugin.write_all(&bytes[..len]).unwrap();
    plugin.read_exact(&mut [0; 12]).unwrap();
    still_waits(&mut guesses[15]);
}

//= agent-interface.md: guesses of one address take two places of those that wait
#[test]
fn a_first_right_password_is_checked_during_a_flood() {
    let agent = start(tempfile::tempdir().unwrap(), &user("alice", "secret", 9));
    let (ends, turned_away) = (AtomicBool::new(false), AtomicUsize::new(0));
    thread::scope(|scope| {
        for number in 0..20 {
            let (agent, ends, turned_away) = (&agent, &ends, &turned_away);
            scope.spawn(move || {
                while !ends.load(Ordering::Relaxed) {
                    let text = answer(&mut guess(agent, 2, number));
                    assert!(!text.contains(" 200 "), "{text}");
                    turned_away.fetch_add(text.contains(" 429 ").into(), Ordering::Relaxed);
                }
            });
        }
        let began = Instant::now();
        while turned_away.load(Ordering::Relaxed) == 0 && began.elapsed() < LIMIT {
            thread::sleep(Duration::from_millis(1));
        }
        // One that takes too long is disconnected, and its password is checked all the same.
        let mut text = String::new();
        while text.is_empty() && began.elapsed() < LIMIT {
            let mut stream = agent.connect();
            write!(stream, "{GET}{}\r\n", basic("alice:secret")).unwrap();
            text = answer(&mut stream);
        }
        ends.store(true, Ordering::Relaxed);
        assert!(turned_away.load(Ordering::Relaxed) > 0, "all guesses wait");
        assert!(text.starts_with("HTTP/1.1 200 "), "{text}");
    });
}

//= agent-interface.md: a right password counts although its client has left
#[test]
fn who_leaves_while_the_password_is_checked_need_not_wait_again() {
    let agent = start(tempfile::tempdir().unwrap(), &user("alice", "secret", 9));
    let mut leaves = connect_from(&agent, 90);
    write!(leaves, "{GET}{}\r\n", basic("alice:secret")).unwrap();
    drop(leaves);
    let mut guesses = guesses(&agent, 15);
    assert_eq!(ask_until_checked(&agent, "alice:secret"), 200);
    still_waits(&mut guesses[14]);
}

//= agent-interface.md: a right password counts after the web file was read again
#[test]
fn a_renewal_forgets_no_password_of_those_that_stay() {
    let web = user("alice", "secret", 7);
    let agent = start(tempfile::tempdir().unwrap(), &web);
    assert_eq!(ask_until_checked(&agent, "alice:secret"), 200);
    let bob = bcrypt::hash("other", 7).unwrap();
    write(agent.dir.path(), &format!("{web}  bob: {bob}\n"));
    agent.handle.reload();
    logged(&agent, "is in use as it is now");
    let _guesses = guesses(&agent, 16);
    places_are_taken(&agent);
    let (status, text) = agent.raw(format!("{GET}{}\r\n", basic("alice:secret")).as_bytes());
    assert_eq!(status, 200, "{text}");
    // A changed password counts at once.
    write(agent.dir.path(), &user("alice", "changed", 4));
    agent.handle.reload();
    let began = Instant::now();
    while ask_until_checked(&agent, "alice:secret") != 401 {
        assert!(began.elapsed() < LIMIT);
    }
}

//= agent-interface.md: a client whose password is not checked yet gives way
#[test]
fn who_guesses_displaces_nobody() {
    let agent = start(tempfile::tempdir().unwrap(), &user("alice", "secret", 10));
    let mut guesses = guesses(&agent, 2);
    let _idle: Vec<TcpStream> = (0..64).map(|_| agent.connect()).collect();
    assert_eq!(answer(&mut guesses[1]), "", "disconnected");
}

//= agent.md: a renewed certificate counts without a restart, and a bad file changes nothing
#[test]
fn files_are_read_again() {
    let (dir, first, second) = (tempfile::tempdir().unwrap(), Authority::new(), Authority::new());
    first.sign(dir.path(), &["localhost"]);
    let [old, new] = [(&first, "old"), (&second, "new")].map(|(a, name)| a.write(&dir.path().join(name)));
    let agent = start(dir, TLS);
    let folder = agent.dir.path();
    let ask = |authority: &Path| Client::new(authority, None).ask(&agent, GET).map(|(status, _)| status);
    assert_eq!(ask(&old), Ok(200));
    // Nobody says so.
    second.sign(folder, &["localhost"]);
    logged(&agent, "web.yml is in use as it is now");
    assert_eq!(ask(&new), Ok(200));
    assert!(ask(&old).is_err());
    for (web, why) in [
        ("tls_server_config:\n  cert_fil: x\n", "web.yml: line 2: unknown key \"cert_fil\""),
        ("tls_server_config:\n  cert_file: no\n  key_file: node.key\n", "/no: No such file"),
        (
            "tls_server_config:\n  cert_file: web.yml\n  key_file: node.key\n",
            "web.yml: no certificate in PEM form",
        ),
        (
            "tls_server_config:\n  cert_file: node.crt\n  key_file: node.crt\n",
            "node.crt: no private key in PEM form",
        ),
        ("tls_server_config:\n  cert_file: old\n  key_file: node.key\n", "with the key"),
    ] {
        write(folder, web);
        agent.handle.reload();
        logged(&agent, why);
        assert!(
            log(&agent)
                .iter()
                .any(|line| line.contains(why) && line.ends_with("the web file before stays in use"))
        );
        assert_eq!(ask(&new), Ok(200), "{why}");
    }
}

//= agent.md: without a good web file nobody is served at the address, and the agent goes on
#[test]
fn a_bad_file_at_the_start_refuses_connections_until_it_is_good() {
    let (dir, authority) = (tempfile::tempdir().unwrap(), Authority::new());
    let trusted = authority.write(&dir.path().join("ca"));
    let agent = start(dir, &format!("{TLS}{}", user("alice", "secret", 4)));
    let folder = agent.dir.path();
    assert!(!log(&agent).iter().any(|line| line.contains("serves ")), "{:?}", log(&agent));
    let refused = || TcpStream::connect(agent.address()).unwrap_err().kind();
    assert_eq!(refused(), ErrorKind::ConnectionRefused);
    assert!(!host(&folder.join(SOCKET), LIMIT).unwrap().hostname.is_empty());
    write(folder, "tls_server_config:\n  cert_fil: x\n");
    agent.handle.reload();
    logged(&agent, "unknown key \"cert_fil\"");
    logged(&agent, "; no HTTP at the address until the web file is good [MPIB-536]");
    assert_eq!(refused(), ErrorKind::ConnectionRefused);
    write(folder, &format!("{TLS}{}", user("alice", "secret", 4)));
    authority.sign(folder, &["localhost"]);
    logged(&agent, &format!("serves https://{}/", agent.address()));
    assert_eq!(Client::new(&trusted, None).ask(&agent, GET).unwrap().0, 401);
}

//= agent.md: a key file that others may read is a warning
#[test]
fn what_gives_secrets_away_is_a_warning() {
    let dir = tempfile::tempdir().unwrap();
    Authority::new().sign(dir.path(), &["localhost"]);
    let warnings = |web: &str| Web::read(write(dir.path(), web)).unwrap().1.unwrap();
    assert_eq!(warnings(TLS), [""; 0]);
    fs::set_permissions(dir.path().join("node.key"), fs::Permissions::from_mode(0o644)).unwrap();
    let [warning] = &warnings(TLS)[..] else { panic!("{:?}", warnings(TLS)) };
    assert!(warning.contains("node.key has mode 644: other users may read it"), "{warning}");
    let [warning] = &warnings(&user("alice", "secret", 4))[..] else { panic!() };
    assert!(
        warning.contains("passwords without tls_server_config go over the network in clear"),
        "{warning}"
    );
}

//= why.md: agents that serve HTTPS and want a password are asked with --agent-ca and --agent-login
#[test]
fn other_agents_are_asked_over_tls_with_a_login() {
    let (dir, authority) = (tempfile::tempdir().unwrap(), Authority::new());
    let name = fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
    let name = name.trim();
    authority.sign(dir.path(), &[name]);
    let [trusted, other] =
        [("ca", &authority), ("other", &Authority::new())].map(|(n, a)| a.write(&dir.path().join(n)));
    let login = dir.path().join("login");
    fs::write(&login, "alice:secret\n").unwrap();
    fs::set_permissions(&login, fs::Permissions::from_mode(0o600)).unwrap();
    let agent = start(dir, &format!("{TLS}{}", user("alice", "secret", 4)));
    let ask = |access: &Access| waits(agent.address(), name, access, LIMIT).map(drop);
    let with = |authority: &Path, login: Option<&Path>| Access::read(authority, login).unwrap();
    assert_eq!(ask(&with(&trusted, Some(&login))), Ok(()));
    for (access, why) in [
        (Access::default(), "its agent serves HTTPS alone: ask with --agent-ca FILE"),
        (with(&trusted, None), "its agent wants a user and a password"),
        (with(&other, Some(&login)), "UnknownIssuer"),
    ] {
        let said = ask(&access).unwrap_err();
        assert!(said.contains(why), "{said}");
    }
    // A certificate of this authority for another host.
    let said = waits(agent.address(), "node17", &with(&trusted, Some(&login)), LIMIT).unwrap_err();
    assert!(said.contains("not valid for name"), "{said}");
    // One that has the address alone.
    authority.sign(agent.dir.path(), &["127.0.0.1"]);
    logged(&agent, "is in use as it is now");
    assert_eq!(ask(&with(&trusted, Some(&login))), Ok(()));
    fs::set_permissions(&login, fs::Permissions::from_mode(0o644)).unwrap();
    let why = Access::read(&trusted, Some(&login)).unwrap_err();
    assert!(why.contains("login file") && why.contains("other users may read it"), "{why}");

    let plain = Running::guarded(tempfile::tempdir().unwrap(), "", None);
    let why = waits(plain.address(), name, &with(&trusted, None), LIMIT).unwrap_err();
    assert_eq!(why, "what listens there does not speak TLS");
}
