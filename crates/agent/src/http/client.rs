//! What another host's agent is asked for.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use mpib_host_view::{WAITS_MAX, Waits};

/// Who waits for whom.
pub(super) const WAITS: &str = "/api/v1/waits";
/// Most bytes of an answer's head.
const HEAD_MAX: usize = 16 << 10;

/// Asks the agent at an address who waits for whom on this host.
///
/// # Errors
/// Why it has no answer, in words.
pub fn waits(address: SocketAddr, host: &str, limit: Duration) -> Result<Waits, String> {
    let answer = get(address, limit).map_err(|e| match e.kind() {
        ErrorKind::ConnectionRefused => "no agent listens there".to_owned(),
        ErrorKind::WouldBlock | ErrorKind::TimedOut => format!("no answer within {limit:?}"),
        _ => e.to_string(),
    })?;
    let head = answer.windows(4).position(|bytes| bytes == b"\r\n\r\n").unwrap_or(answer.len());
    let (head, body) = answer.split_at(head);
    match status(head) {
        Some(200) if answer.len() > HEAD_MAX + WAITS_MAX => {
            Err(format!("its answer has more than {WAITS_MAX} bytes"))
        }
        Some(200) => Waits::received(body, host),
        Some(404) => Err("its agent does not know who waits: it is older than this command".into()),
        Some(status) => Err(format!("its agent answers with status {status}")),
        None => Err("what listens there is no agent".into()),
    }
}

/// Returns all that the server sends, up to a bit more than an answer may have. In version 1.0 of the
/// protocol the body ends with the connection.
fn get(address: SocketAddr, limit: Duration) -> io::Result<Vec<u8>> {
    let end = Instant::now() + limit;
    let mut stream = TcpStream::connect_timeout(&address, limit)?;
    let left = || match end.saturating_duration_since(Instant::now()) {
        Duration::ZERO => Err(io::Error::from(ErrorKind::TimedOut)),
        left => Ok(left),
    };
    // Without the scope of a link-local address, which the server has no use for.
    let name = SocketAddr::new(address.ip(), address.port());
    stream.set_write_timeout(Some(left()?))?;
    stream.write_all(format!("GET {WAITS} HTTP/1.0\r\nHost: {name}\r\n\r\n").as_bytes())?;
    let (mut answer, mut part) = (Vec::new(), [0; 16 << 10]);
    while answer.len() <= HEAD_MAX + WAITS_MAX {
        stream.set_read_timeout(Some(left()?))?;
        match stream.read(&mut part) {
            Ok(0) => break,
            Ok(n) => answer.extend_from_slice(&part[..n]),
            Err(e) if e.kind() == ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(answer)
}

/// Returns the status in the head of an answer.
fn status(head: &[u8]) -> Option<u16> {
    let line = std::str::from_utf8(head).ok()?.lines().next()?;
    line.strip_prefix("HTTP/1.")?.split(' ').nth(1)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;
    use std::thread;

    const LIMIT: Duration = Duration::from_secs(30);

    /// Asks a server that sends these bytes.
    fn asked(sends: &[u8]) -> Result<Waits, String> {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        thread::scope(|scope| {
            scope.spawn(|| {
                let (mut stream, _) = listener.accept().unwrap();
                let mut request = [0; 512];
                assert!(stream.read(&mut request).unwrap() > 0);
                // The client may have closed already.
                let _ = stream.write_all(sends);
            });
            waits(address, "node7", LIMIT)
        })
    }

    //= why.md: what another host answers is checked
    #[test]
    fn what_is_no_answer_of_an_agent_is_named() {
        let good = Waits { format: 1, hostname: "node7".into(), ..Waits::default() };
        let body = serde_json::to_string(&good).unwrap();
        let answer =
            |status: &str, body: &str| asked(format!("HTTP/1.0 {status}\r\na: b\r\n\r\n{body}").as_bytes());
        assert_eq!(answer("200 OK", &body), Ok(good));
        for (answer, expected) in [
            (answer("404 Not Found", ""), "it is older than this command"),
            (answer("403 Forbidden", ""), "with status 403"),
            (answer("x", ""), "is no agent"),
            (answer("200 OK", &body[1..]), "cannot be read"),
            (answer("200 OK", &body.replace("node7", "node8")), "the host that answers there is node8"),
            (answer("200 OK", &" ".repeat(HEAD_MAX + WAITS_MAX)), "more than 4194304 bytes"),
            (asked(b"SSH-2.0-OpenSSH_9.2\r\n"), "is no agent"),
            (asked(b"\xff\xfe"), "is no agent"),
            (asked(b""), "is no agent"),
        ] {
            let why = answer.unwrap_err();
            assert!(why.contains(expected), "{why}");
        }
    }

    #[test]
    fn a_host_without_an_answer_is_left_after_the_limit() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        // The kernel accepts the connection; nobody reads from it.
        let why = waits(address, "node7", Duration::from_millis(1)).unwrap_err();
        assert_eq!(why, "no answer within 1ms");
        drop(listener);
        assert_eq!(waits(address, "node7", LIMIT).unwrap_err(), "no agent listens there");
    }
}
