//! Requests and their answers.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use http_body_util::channel::Channel;
use http_body_util::{BodyExt, Either, Full, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::header::{ALLOW, CACHE_CONTROL, CONTENT_TYPE, HeaderValue, WWW_AUTHENTICATE};
use hyper::{Method, Request, Response, StatusCode};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::client::WAITS;
use super::guard::{Refused, check_host, check_reader, check_token};
use super::{
    Admission, Client, Deadline, Drain, Drained, FOLLOWERS, Failure, Share, Shared, SharesSet, page, schema,
};
use crate::config::Policy;
use crate::state::Order;

const HEALTH: &str = "/healthz";
/// Most bytes of a request's body.
const BODY_MAX: usize = 4096;
/// The agent's loop has failed if it does not run within this time.
const LOOP: Duration = Duration::from_secs(2);
/// The thread that reads statistics has failed if the latest reading is older.
const OLDEST: Duration = Duration::from_secs(15);

const JSON: &str = "application/json";
const TEXT: &str = "text/plain; charset=utf-8";
const PROMETHEUS: &str = "text/plain; version=0.0.4; charset=utf-8";

type Body = Either<Full<Bytes>, Channel<Bytes>>;
pub(super) type Answer = Response<Body>;

/// Answers a request.
pub(super) async fn answer(
    shared: Arc<Shared>,
    deadline: Deadline,
    client: Client,
    admission: &Admission,
    request: Request<Incoming>,
) -> Result<Answer, Infallible> {
    let config = shared.handle.read(|agent| agent.config().http.clone());
    let user = match client {
        Client::Remote(rules, from) => {
            if let Err(why) = check_host(request.headers(), &config, &shared.names) {
                return Ok(failure(StatusCode::FORBIDDEN, why));
            }
            // A probe has no password, and learns nothing but that the agent is well.
            let is_probe = rules.has_users() && request.uri().path() == HEALTH;
            if !is_probe {
                if let Err(refused) = check_reader(request.headers(), &config, &rules, from).await {
                    return Ok(refused.answer("Basic realm=\"mpib agent\", charset=\"UTF-8\""));
                }
                admission.is_entitled();
            }
            None
        }
        Client::Plain => {
            let why = "this port serves HTTPS alone: ask https:// and the same address";
            return Ok(failure(StatusCode::BAD_REQUEST, why.into()));
        }
        // What makes a browser send a request does not reach a Unix socket.
        Client::Local(user) => {
            admission.is_entitled();
            Some(user)
        }
        Client::Stranger => {
            let why = "this socket serves root and the agent's user, and nobody in a container";
            return Ok(failure(StatusCode::FORBIDDEN, why.into()));
        }
    };
    let (get, post) =
        (matches!(*request.method(), Method::GET | Method::HEAD), *request.method() == Method::POST);
    let path = request.uri().path().to_owned();
    Ok(match &*path {
        "/api/v1/drain" | "/api/v1/shares" if post => {
            let by = match user {
                Some(user) => Ok(user),
                None => check_token(request.headers(), &config).map(|()| "token".into()),
            };
            match by {
                Ok(by) => change(&shared, &path, request, &by).await,
                Err(refused) => refused.answer("Bearer"),
            }
        }
        "/api/v1/drain" | "/api/v1/shares" => not_allowed("POST"),
        "/" | "/metrics" | HEALTH | "/api/v1/host" | "/api/v1/history" | "/api/v1/schema"
        | "/api/v1/stream" | WAITS
            if !get =>
        {
            not_allowed("GET, HEAD")
        }
        "/" => page::answer(),
        "/metrics" => {
            full(StatusCode::OK, PROMETHEUS, shared.readings.fresh().await.metrics(config.per_peer))
        }
        HEALTH => healthz(&shared).await,
        "/api/v1/host" => full(StatusCode::OK, JSON, shared.readings.fresh().await.json()),
        WAITS => full(StatusCode::OK, JSON, shared.readings.of_now().await.waits()),
        "/api/v1/history" => full(StatusCode::OK, JSON, shared.readings.history()),
        "/api/v1/schema" => full(StatusCode::OK, JSON, schema().into()),
        "/api/v1/stream" => stream(&shared, deadline),
        _ => failure(
            StatusCode::NOT_FOUND,
            format!(
                "there is no {path}; there are /, /metrics, /healthz and /api/v1/ with host, waits, history, stream, drain, shares and schema"
            ),
        ),
    })
}

/// Returns a whole answer.
pub(super) fn full(status: StatusCode, kind: &'static str, body: Bytes) -> Answer {
    let mut answer = Response::new(Either::Left(Full::new(body)));
    *answer.status_mut() = status;
    headers(&mut answer, kind);
    answer
}

fn headers(answer: &mut Answer, kind: &'static str) {
    let headers = answer.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert("x-content-type-options", HeaderValue::from_static("nosniff"));
}

fn json(status: StatusCode, value: &impl Serialize) -> Answer {
    // These documents have no maps with keys other than strings, so encoding cannot fail.
    full(status, JSON, serde_json::to_vec(value).unwrap_or_default().into())
}

fn failure(status: StatusCode, error: String) -> Answer {
    json(status, &Failure { error })
}

fn not_allowed(methods: &'static str) -> Answer {
    let mut answer = failure(StatusCode::METHOD_NOT_ALLOWED, format!("expected {methods}"));
    answer.headers_mut().insert(ALLOW, HeaderValue::from_static(methods));
    answer
}

impl Refused {
    /// Returns the answer, with what the request would have to have.
    fn answer(self, needed: &'static str) -> Answer {
        match self {
            Self::Nobody(why) => failure(StatusCode::FORBIDDEN, why),
            Self::Later(why) => failure(StatusCode::TOO_MANY_REQUESTS, why),
            Self::Credentials(why) => {
                let mut answer = failure(StatusCode::UNAUTHORIZED, why);
                answer.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static(needed));
                answer
            }
        }
    }
}

/// Checks that the agent's loop runs and that statistics are read.
async fn healthz(shared: &Shared) -> Answer {
    let passes = shared.handle.passes();
    shared.handle.wake();
    let runs = async {
        while shared.handle.passes() == passes {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    if tokio::time::timeout(LOOP, runs).await.is_err() {
        let why = format!("the agent's loop has not run for {} s\n", LOOP.as_secs());
        return full(StatusCode::SERVICE_UNAVAILABLE, TEXT, why.into());
    }
    let age = shared.readings.age();
    if age > OLDEST {
        let why = format!("statistics could not be read for {} s; see the agent's log\n", age.as_secs());
        return full(StatusCode::SERVICE_UNAVAILABLE, TEXT, why.into());
    }
    full(StatusCode::OK, TEXT, "ok\n".into())
}

/// Sends each reading as an event until the client closes, or does not take one in time.
fn stream(shared: &Shared, deadline: Deadline) -> Answer {
    if shared.readings.followers() >= FOLLOWERS {
        return failure(
            StatusCode::SERVICE_UNAVAILABLE,
            format!("{FOLLOWERS} clients follow the stream already"),
        );
    }
    let mut follower = shared.readings.follow();
    let (mut sender, body) = Channel::new(1);
    tokio::spawn(async move {
        // Milliseconds until the client connects again.
        let mut event = Bytes::from_static(b"retry: 1000\n\n");
        while sender.send_data(event).await.is_ok() {
            deadline.extend();
            let Some(reading) = follower.next().await else { return };
            event = reading.event();
        }
    });
    let mut answer = Response::new(Either::Right(body));
    headers(&mut answer, "text/event-stream");
    answer
}

/// Answers a request that changes something.
async fn change(shared: &Shared, path: &str, request: Request<Incoming>, by: &str) -> Answer {
    let changed = match path {
        "/api/v1/drain" => match read(request).await {
            Ok(body) => drain(shared, &body, by).await,
            Err(failed) => Err(failed),
        },
        _ => read(request).await.and_then(|body| set_share(shared, &body)),
    };
    shared.readings.nudge();
    changed.unwrap_or_else(|(status, why)| failure(status, why))
}

type Failed = (StatusCode, String);

async fn read<T: DeserializeOwned>(request: Request<Incoming>) -> Result<T, Failed> {
    let body = Limited::new(request.into_body(), BODY_MAX).collect().await;
    let body = body.map_err(|e| (StatusCode::PAYLOAD_TOO_LARGE, format!("the body: {e}")))?.to_bytes();
    serde_json::from_slice(&body).map_err(|e| (StatusCode::BAD_REQUEST, format!("the body: {e}")))
}

async fn drain(shared: &Shared, body: &Drain, by: &str) -> Result<Answer, Failed> {
    let known = match body.force {
        true => None,
        false => Some(shared.readings.ports().await),
    };
    let order = Order { by, reason: body.reason.as_deref(), known: known.as_ref() };
    let drained = shared
        .handle
        .change(|agent| agent.drain(&body.port, body.drain, order).map(|()| agent.snapshot().drained));
    let drained = drained.map_err(|why| (StatusCode::BAD_REQUEST, why))?;
    Ok(json(StatusCode::OK, &Drained { drained }))
}

fn set_share(shared: &Shared, share: &Share) -> Result<Answer, Failed> {
    let Share { source, destination, share } = *share;
    let set = shared.handle.change(|agent| {
        let flows = agent.set_share(source, destination, share);
        flows.map_err(|why| match agent.config().policy {
            Policy::External => (StatusCode::BAD_REQUEST, why),
            _ => (StatusCode::CONFLICT, why),
        })
    });
    Ok(json(StatusCode::OK, &SharesSet { flows: set? }))
}
