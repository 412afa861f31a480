//! What an agent is asked for: one of another host by its address, and that of this host by its socket.

use std::io::ErrorKind;
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use http_body_util::{BodyExt, Full, LengthLimitError, Limited};
use hyper::body::Bytes;
use hyper::client::conn::http1;
use hyper::header::{AUTHORIZATION, HOST};
use hyper::{Method, Request, StatusCode};
use hyper_util::rt::TokioIo;
use mpib_host_view::{Host, WAITS_MAX, Waits};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::UnixStream;

use super::{Access, Drain, Drained, Failure};

/// Why a request to this host's agent has failed, in words.
#[derive(Debug, thiserror::Error)]
pub enum Failed {
    /// The agent has refused it.
    #[error("{0}")]
    Refused(String),
    /// There is no agent, or no answer of an agent.
    #[error("{0}")]
    NoAnswer(String),
}

/// Who waits for whom.
pub(super) const WAITS: &str = "/api/v1/waits";
/// Most bytes of an answer's head.
const HEAD_MAX: usize = 16 << 10;
/// Most bytes of the document of this host, whose agent is of root or of this user.
const HOST_MAX: usize = 256 << 20;

/// Asks the agent at an address who waits for whom on this host.
///
/// # Errors
/// Why it has no answer, in words.
pub fn waits(address: SocketAddr, host: &str, access: &Access, limit: Duration) -> Result<Waits, String> {
    // Without the scope of a link-local address, which the server has no use for.
    let name = SocketAddr::new(address.ip(), address.port()).to_string();
    let exchange = async {
        let mut request = request(Method::GET, WAITS, &name, Bytes::new())?;
        request.headers_mut().extend(access.login.clone().map(|login| (AUTHORIZATION, login)));
        exchange(access.connect(address, host).await?, request, WAITS_MAX).await
    };
    match within(limit, exchange)? {
        (StatusCode::OK, body) => Waits::received(&body, host),
        (StatusCode::NOT_FOUND, _) => {
            Err("its agent does not know who waits: it is older than this command".into())
        }
        (StatusCode::BAD_REQUEST, _) if !access.has_tls() => {
            Err("its agent serves HTTPS alone: ask with --agent-ca FILE".into())
        }
        (StatusCode::UNAUTHORIZED, _) => {
            Err("its agent wants a user and a password that it knows: ask with --agent-login FILE".into())
        }
        (status, _) => Err(format!("its agent answers with status {}", status.as_u16())),
    }
}

/// Asks the agent of this host what its processes do.
///
/// # Errors
/// Why it has no answer.
pub fn host(socket: &Path, limit: Duration) -> Result<Host, Failed> {
    #[derive(Deserialize)]
    struct Document {
        host: Host,
    }
    let document = local(socket, Method::GET, "/api/v1/host", Bytes::new(), limit);
    document.map(|document: Document| document.host)
}

/// Has the agent of this host take a port out of use, or back into it.
///
/// # Errors
/// The agent's reason, or why it has no answer.
pub fn drain(socket: &Path, drain: &Drain, limit: Duration) -> Result<Drained, Failed> {
    let body = serde_json::to_vec(drain).map_err(|e| Failed::NoAnswer(e.to_string()))?;
    local(socket, Method::POST, "/api/v1/drain", body.into(), limit)
}

/// Sends a request to the socket of this host's agent.
fn local<T: DeserializeOwned>(
    socket: &Path,
    method: Method,
    path: &str,
    body: Bytes,
    limit: Duration,
) -> Result<T, Failed> {
    let answer = within(limit, async {
        let stream = UnixStream::connect(socket).await.map_err(|e| match e.kind() {
            ErrorKind::PermissionDenied => "it serves its own user and root".to_owned(),
            _ => not_connected(&e),
        })?;
        exchange(stream, request(method, path, "localhost", body)?, HOST_MAX).await
    });
    let no_answer = |why: String| Failed::NoAnswer(format!("{}: {why}", socket.display()));
    let (status, body) = answer.map_err(no_answer)?;
    if status == StatusCode::OK {
        return serde_json::from_slice(&body)
            .map_err(|e| no_answer(format!("its answer cannot be read: {e}")));
    }
    Err(match serde_json::from_slice(&body) {
        Ok(Failure { error }) => Failed::Refused(error),
        Err(_) => no_answer(format!("it answers with status {}", status.as_u16())),
    })
}

pub(super) fn not_connected(e: &std::io::Error) -> String {
    match e.kind() {
        ErrorKind::ConnectionRefused | ErrorKind::NotFound => "no agent listens there".into(),
        _ => e.to_string(),
    }
}

fn request(method: Method, path: &str, host: &str, body: Bytes) -> Result<Request<Full<Bytes>>, String> {
    let request = Request::builder().method(method).uri(path).header(HOST, host);
    request.body(Full::new(body)).map_err(|e| e.to_string())
}

/// Runs `exchange`, within this time.
fn within<T>(limit: Duration, exchange: impl Future<Output = Result<T, String>>) -> Result<T, String> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|e| format!("no thread can wait for it: {e}"))?;
    let answer = runtime.block_on(async { tokio::time::timeout(limit, exchange).await });
    answer.unwrap_or_else(|_| Err(format!("no answer within {limit:?}")))
}

/// Sends a request. Returns the status and the body, which has at most so many bytes.
async fn exchange<S>(
    stream: S,
    request: Request<Full<Bytes>>,
    most: usize,
) -> Result<(StatusCode, Bytes), String>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let failed = |e: hyper::Error| match e.is_parse() || e.is_incomplete_message() || e.is_canceled() {
        true => "what listens there is no agent".to_owned(),
        false => std::error::Error::source(&e).map_or_else(|| e.to_string(), ToString::to_string),
    };
    let connecting = http1::Builder::new().max_buf_size(HEAD_MAX).handshake(TokioIo::new(stream));
    let (mut sender, connection) = connecting.await.map_err(failed)?;
    // It ends with the runtime. What goes wrong shows in the answer.
    tokio::spawn(connection);
    let answer = sender.send_request(request).await.map_err(failed)?;
    let status = answer.status();
    let body = Limited::new(answer.into_body(), most).collect().await;
    let body = body.map_err(|e| match e.is::<LengthLimitError>() {
        true => format!("its answer has more than {most} bytes"),
        false => e.to_string(),
    })?;
    Ok((status, body.to_bytes()))
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpListener;
    use std::thread;

    use super::*;

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
            waits(address, "node7", &Access::default(), LIMIT)
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
    fn a_host_that_sends_a_byte_now_and_then_is_left_after_the_limit() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        thread::scope(|scope| {
            scope.spawn(|| {
                let (mut stream, _) = listener.accept().unwrap();
                assert!(stream.read(&mut [0; 512]).unwrap() > 0);
                stream.write_all(b"HTTP/1.0 200 OK\r\n\r\n").unwrap();
                // Until the client has closed.
                for _ in 0..5_000 {
                    thread::sleep(Duration::from_millis(1));
                    if stream.write_all(b" ").is_err() {
                        break;
                    }
                }
            });
            let limit = Duration::from_millis(50);
            assert_eq!(
                waits(address, "node7", &Access::default(), limit).unwrap_err(),
                "no answer within 50ms"
            );
        });
    }

    #[test]
    fn a_host_without_an_answer_is_left_after_the_limit() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        // The kernel accepts the connection; nobody reads from it.
        let why = waits(address, "node7", &Access::default(), Duration::from_millis(1)).unwrap_err();
        assert_eq!(why, "no answer within 1ms");
        // Nobody else gets the port of a socket that does not listen.
        let mute = tokio::net::TcpSocket::new_v4().unwrap();
        mute.bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let address = mute.local_addr().unwrap();
        assert_eq!(waits(address, "node7", &Access::default(), LIMIT).unwrap_err(), "no agent listens there");
    }
}
