//! The page.

use std::sync::LazyLock;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use hyper::StatusCode;
use hyper::body::Bytes;
use hyper::header::{CONTENT_SECURITY_POLICY, HeaderName, HeaderValue, REFERRER_POLICY};
use sha2::{Digest, Sha256};

use super::answer::{Answer, full};

const PAGE: &str = include_str!("page.html");

/// What the page may load and do: its own style and script, and requests to this server.
static POLICY: LazyLock<String> = LazyLock::new(|| {
    format!(
        "default-src 'none'; style-src {}; script-src {}; connect-src 'self'; img-src data:; base-uri 'none'; \
         form-action 'none'; frame-ancestors 'none'",
        hash("style"),
        hash("script")
    )
});

/// Returns the hash of an element's text, as a source of a content security policy.
fn hash(element: &str) -> String {
    let (begin, end) = (format!("<{element}>"), format!("</{element}>"));
    let text = PAGE.split_once(&begin).and_then(|(_, rest)| rest.split_once(&end));
    let hash = Sha256::digest(text.map_or("", |(text, _)| text));
    format!("'sha256-{}'", STANDARD.encode(hash))
}

pub(super) fn answer() -> Answer {
    let mut answer = full(StatusCode::OK, "text/html; charset=utf-8", Bytes::from_static(PAGE.as_bytes()));
    let headers = answer.headers_mut();
    if let Ok(policy) = HeaderValue::from_str(&POLICY) {
        headers.insert(CONTENT_SECURITY_POLICY, policy);
    }
    headers.insert(REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
    headers.insert(HeaderName::from_static("x-frame-options"), HeaderValue::from_static("DENY"));
    answer
}
