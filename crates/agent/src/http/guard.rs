//! Which requests are served: the host that they name, the password of those that read, and the token of
//! those that change something.

use std::io::Read;
use std::net::IpAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use hyper::header::{AUTHORIZATION, HOST, HeaderMap};
use nccl_net_mpib_agent_iface::agent::paths::{Trust, open_file};
use subtle::ConstantTimeEq;

use super::HttpConfig;
use super::names::OwnNames;
use super::web::{Rules, Verdict};

/// A shorter token could be guessed.
const TOKEN_MIN: usize = 16;
/// Most bytes that are read of a secret.
const SECRET_MAX: u64 = 4096;

/// Checks that a request was sent to this host by name or by address. A web page of somebody else
/// whose name was made to resolve to this host sends its own name (DNS rebinding).
///
/// # Errors
/// A sentence for the client.
pub(super) fn check_host(headers: &HeaderMap, config: &HttpConfig, names: &OwnNames) -> Result<(), String> {
    let mut all = headers.get_all(HOST).iter();
    let (Some(value), None) = (all.next(), all.next()) else {
        return Err(String::from("the request must have one Host header"));
    };
    let value = value.to_str().unwrap_or_default();
    let name = without_port(value);
    let known = ["localhost"].into_iter().chain(config.hosts.iter().map(String::as_str));
    let is_known = names.have(name) || known.into_iter().any(|known| known.eq_ignore_ascii_case(name));
    let address = name.trim_start_matches('[').trim_end_matches(']');
    let good = address.parse::<IpAddr>().is_ok() || is_known;
    good.then_some(()).ok_or_else(|| {
        format!(
            "{value:?} is no name of this host; add it to \"hosts\" in [http] of the agent's configuration"
        )
    })
}

/// Removes the port of a Host header.
fn without_port(value: &str) -> &str {
    match value.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|c| c.is_ascii_digit()) => name,
        _ => value,
    }
}

/// Why a request may not change anything.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Refused {
    /// The agent has no token, or one that it does not trust: nobody may.
    Nobody(String),
    /// The request has no token or password, or another one.
    Credentials(String),
    /// Too many passwords wait for their check.
    Later(String),
}

/// Checks user and password of a request, if there are users. Who has the token may also read.
///
/// # Errors
/// Why the request is refused.
pub(super) async fn check_reader(
    headers: &HeaderMap,
    config: &HttpConfig,
    rules: &Rules,
    from: IpAddr,
) -> Result<(), Refused> {
    if !rules.has_users() {
        return Ok(());
    }
    let given = headers.get(AUTHORIZATION).map(|value| value.as_bytes()).unwrap_or_default();
    if given.starts_with(b"Bearer ") {
        return check_token(headers, config);
    }
    let Some(basic) = given.strip_prefix(b"Basic ") else {
        let why = "the request needs a user and a password: this agent has a web file with users";
        return Err(Refused::Credentials(why.into()));
    };
    match rules.check(basic, from).await {
        Verdict::Right => Ok(()),
        Verdict::Wrong => Err(Refused::Credentials("user or password is wrong".into())),
        Verdict::Unchecked => {
            Err(Refused::Later("other passwords wait for their check: ask again in a second".into()))
        }
    }
}

/// Checks the token of a request. The file is read each time: a new token counts at once.
pub(super) fn check_token(headers: &HeaderMap, config: &HttpConfig) -> Result<(), Refused> {
    let Some(path) = &config.token_file else {
        let text = "there is no token: set \"token_file\" in [http] of the agent's configuration to a \
                    file with at least 16 characters that only its owner can read";
        return Err(Refused::Nobody(text.into()));
    };
    let token = read_token(path).map_err(Refused::Nobody)?;
    let given = headers.get(AUTHORIZATION).and_then(|value| value.as_bytes().strip_prefix(b"Bearer "));
    let given = given.ok_or_else(|| {
        Refused::Credentials("the request needs the header \"Authorization: Bearer TOKEN\"".into())
    })?;
    match bool::from(given.ct_eq(token.as_bytes())) {
        true => Ok(()),
        false => Err(Refused::Credentials(format!("the token is not the one in {}", path.display()))),
    }
}

/// Checks the token file, if there is one.
///
/// # Errors
/// A sentence that names the file and what is wrong with it.
pub fn check_token_file(config: &HttpConfig) -> Result<(), String> {
    config.token_file.as_deref().map_or(Ok(()), |path| read_token(path).map(drop))
}

fn read_token(path: &Path) -> Result<String, String> {
    let token = read_secret("token file", path)?;
    let good = token.len() >= TOKEN_MIN && token.bytes().all(|c| c.is_ascii_graphic());
    good.then_some(token).ok_or_else(|| {
        let at = path.display();
        format!("token file {at}: expected at least {TOKEN_MIN} printable characters and no blanks")
    })
}

/// Reads a file that only its owner can read.
///
/// # Errors
/// A sentence that names the file and what is wrong with it.
pub(super) fn read_secret(what: &str, path: &Path) -> Result<String, String> {
    let at = path.display();
    let file = open_file(path, &Trust::new(None)).map_err(|refusal| format!("{what} {at}: {refusal}"))?;
    let mode = file.metadata().map_err(|e| format!("{what} {at}: {e}"))?.permissions().mode() & 0o7777;
    if mode & 0o077 != 0 {
        return Err(format!(
            "{what} {at} has mode {mode:o}: other users may read it; run \"chmod 600 {at}\" and replace what \
             is in it"
        ));
    }
    let mut text = String::new();
    file.take(SECRET_MAX).read_to_string(&mut text).map_err(|e| format!("{what} {at}: {e}"))?;
    Ok(text.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn headers(name: &'static str, values: &[&str]) -> HeaderMap {
        let mut map = HeaderMap::new();
        for value in values {
            map.append(name, value.parse().unwrap());
        }
        map
    }

    //= agent-interface.md: requests that name another host are refused
    #[test]
    fn only_names_and_addresses_of_this_host_are_served() {
        let config = HttpConfig { hosts: vec!["node7.example".into()], ..HttpConfig::default() };
        let names = OwnNames::default();
        let own = fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
        for good in [
            "127.0.0.1:9119",
            "127.0.0.1",
            "10.1.2.3:80",
            "[::1]:9119",
            "[::1]",
            "localhost",
            "LOCALHOST:9119",
            "node7.example:9119",
            own.trim_end(),
            own.trim_end().split('.').next().unwrap(),
        ] {
            assert_eq!(check_host(&headers("host", &[good]), &config, &names), Ok(()), "{good}");
        }
        for bad in [
            "evil.example",
            "evil.example:9119",
            "127.0.0.1.evil.example",
            "localhost.evil",
            "",
            ":9119",
            "é",
        ] {
            let refused = check_host(&headers("host", &[bad]), &config, &names).unwrap_err();
            assert!(refused.contains("is no name of this host"), "{bad}: {refused}");
        }
        for count in [&[][..], &["localhost", "localhost"]] {
            assert!(
                check_host(&headers("host", count), &config, &names).unwrap_err().contains("one Host header")
            );
        }
    }

    //= agent.md: a token opens what changes something, and nothing else does
    #[test]
    fn a_token_must_be_the_one_of_a_private_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("token");
        let check = |given: &[&str]| {
            let config = HttpConfig { token_file: Some(path.clone()), ..HttpConfig::default() };
            check_token(&headers("authorization", given), &config)
        };
        let nobody = |part: &str| match check(&["Bearer 0123456789abcdef"]) {
            Err(Refused::Nobody(why)) => assert!(why.contains(part), "{why}"),
            other => panic!("{part}: {other:?}"),
        };
        nobody("no such file");
        let config = |path| HttpConfig { token_file: path, ..HttpConfig::default() };
        assert!(check_token_file(&config(Some(path.clone()))).unwrap_err().contains("no such file"));
        assert_eq!(check_token_file(&config(None)), Ok(()));
        let write = |text: &str, mode| {
            fs::write(&path, text).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        };
        write("0123456789abcdef\n", 0o640);
        nobody("has mode 640: other users may read it");
        write("short\n", 0o600);
        nobody("at least 16");
        write("0123456789 abcdef\n", 0o600);
        nobody("no blanks");
        write("0123456789abcdef\n", 0o600);
        assert_eq!(check(&["Bearer 0123456789abcdef"]), Ok(()));
        for bad in
            ["Bearer 0123456789abcdeg", "Bearer 0123456789abcde", "Bearer ", "0123456789abcdef", "Basic eA=="]
        {
            assert!(matches!(check(&[bad]), Err(Refused::Credentials(_))), "{bad}");
        }
        assert!(matches!(check(&[]), Err(Refused::Credentials(_))));
        let none = check_token(&headers("authorization", &["Bearer "]), &HttpConfig::default());
        assert!(matches!(none, Err(Refused::Nobody(why)) if why.contains("token_file")));
    }
}
