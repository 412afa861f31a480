//! The format of the web file, which is that of Prometheus' exporters (exporter-toolkit).

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use bcrypt::HashParts;
use saphyr::{LoadableYamlNode, MarkedYaml, YamlData};

use crate::config::nearest;

/// What a web file has.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct WebFile {
    /// How TLS is served; `None`: the server speaks plain HTTP.
    pub(super) tls: Option<TlsSettings>,
    /// The bcrypt hash of each user's password. Without any, none is asked for.
    pub(super) users: BTreeMap<String, String>,
}

/// The section `tls_server_config`.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct TlsSettings {
    pub(super) certificate: PathBuf,
    pub(super) key: PathBuf,
    pub(super) clients: Clients,
    pub(super) oldest: Version,
    pub(super) newest: Version,
}

/// Whose certificates are asked for.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Clients {
    /// Nobody's.
    Any,
    /// Those of clients that have one, by the authorities of this file.
    IfGiven(PathBuf),
    /// That of each client, by the authorities of this file.
    Known(PathBuf),
}

/// A version of TLS.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Version {
    Tls12,
    Tls13,
}

/// The keys of a section.
struct Keys {
    section: &'static str,
    known: &'static [&'static str],
    /// Those that the format has and this server does not offer.
    not_offered: &'static [&'static str],
}

const FILE: Keys = Keys {
    section: "the file",
    known: &["tls_server_config", "basic_auth_users"],
    not_offered: &["http_server_config", "rate_limit"],
};
const TLS: Keys = Keys {
    section: "tls_server_config",
    known: &["cert_file", "key_file", "client_ca_file", "client_auth_type", "min_version", "max_version"],
    not_offered: &[
        "cert",
        "key",
        "client_ca",
        "client_allowed_sans",
        "cipher_suites",
        "prefer_server_cipher_suites",
        "curve_preferences",
    ],
};

/// The costs of a hash: a check of the last one takes about a second.
const COSTS: std::ops::RangeInclusive<u32> = 4..=14;

/// An error has the line, what was found, and what is expected.
type Checked<T> = Result<T, String>;
type Entry<'a> = (&'a str, usize, &'a MarkedYaml<'a>);

impl WebFile {
    /// Checks the text of a file in `folder`, from which its paths count.
    pub(super) fn parse(text: &str, folder: &Path) -> Checked<Self> {
        let documents = MarkedYaml::load_from_str(text)
            .map_err(|e| format!("line {}: {}", e.marker().line(), e.info()))?;
        let mut file = Self::default();
        let document = match &documents[..] {
            [] => return Ok(file),
            [document] => document,
            [_, second, ..] => {
                return Err(format!("line {}: a second document, expected one", second.span.start.line()));
            }
        };
        for (key, line, value) in FILE.entries(document)? {
            match key {
                "tls_server_config" => file.tls = TlsSettings::read(value, line, folder)?,
                _ => file.users = users(value)?,
            }
        }
        Ok(file)
    }
}

impl TlsSettings {
    /// Reads the section; `None` if it is empty.
    fn read(section: &MarkedYaml<'_>, line: usize, folder: &Path) -> Checked<Option<Self>> {
        let entries = TLS.entries(section)?;
        if entries.is_empty() {
            return Ok(None);
        }
        let (mut certificate, mut key, mut authorities, mut clients) =
            (None, None, None, ("NoClientCert", line));
        let (mut oldest, mut newest) = (Version::Tls12, Version::Tls13);
        for (name, line, value) in entries {
            let text = text(name, value)?;
            match name {
                "cert_file" => certificate = Some(folder.join(text)),
                "key_file" => key = Some(folder.join(text)),
                "client_ca_file" => authorities = Some(folder.join(text)),
                "client_auth_type" => clients = (text, line),
                "min_version" => oldest = Version::read(name, text, line)?,
                _ => newest = Version::read(name, text, line)?,
            }
        }
        let missing = |name: &str| format!("line {line}: tls_server_config has no {name}");
        if oldest > newest {
            return Err(format!("line {line}: min_version is above max_version"));
        }
        Ok(Some(Self {
            certificate: certificate.ok_or_else(|| missing("cert_file"))?,
            key: key.ok_or_else(|| missing("key_file"))?,
            clients: Clients::read(clients, authorities)?,
            oldest,
            newest,
        }))
    }
}

impl Clients {
    fn read((policy, line): (&str, usize), authorities: Option<PathBuf>) -> Checked<Self> {
        let needed = || format!("line {line}: client_auth_type {policy} needs client_ca_file");
        match (policy, authorities) {
            ("NoClientCert", None) => Ok(Self::Any),
            ("NoClientCert", Some(_)) => Err(format!(
                "line {line}: client_ca_file has no effect without client_auth_type: expected \
                 RequireAndVerifyClientCert or VerifyClientCertIfGiven"
            )),
            ("VerifyClientCertIfGiven", file) => file.map(Self::IfGiven).ok_or_else(needed),
            ("RequireAndVerifyClientCert", file) => file.map(Self::Known).ok_or_else(needed),
            ("RequestClientCert" | "RequireAnyClientCert" | "RequireClientCert", _) => Err(format!(
                "line {line}: client_auth_type {policy} is not offered, since it verifies nothing; expected \
                 RequireAndVerifyClientCert"
            )),
            _ => Err(format!(
                "line {line}: client_auth_type {policy:?}, expected NoClientCert, VerifyClientCertIfGiven or \
                 RequireAndVerifyClientCert"
            )),
        }
    }
}

impl Version {
    fn read(key: &str, text: &str, line: usize) -> Checked<Self> {
        match text {
            "TLS12" => Ok(Self::Tls12),
            "TLS13" => Ok(Self::Tls13),
            _ => Err(format!("line {line}: {key} {text:?}, expected TLS12 or TLS13")),
        }
    }
}

impl Keys {
    /// Returns the entries of a section, with their lines.
    fn entries<'a>(&self, section: &'a MarkedYaml<'a>) -> Checked<Vec<Entry<'a>>> {
        let Self { section: within, known, not_offered } = self;
        let entries = entries(within, section)?;
        for (key, line, _) in &entries {
            if not_offered.contains(key) {
                let known = known.join(", ");
                return Err(format!(
                    "line {line}: {key} in {within} is a key of exporter-toolkit that this agent does not offer; \
                     it has {known}"
                ));
            }
            if !known.contains(key) {
                let hint = nearest(key, known);
                return Err(format!("line {line}: unknown key {key:?} in {within}; {hint}"));
            }
        }
        Ok(entries)
    }
}

fn entries<'a>(within: &str, section: &'a MarkedYaml<'a>) -> Checked<Vec<Entry<'a>>> {
    let map = match &section.data {
        YamlData::Mapping(map) => map,
        data if data.is_null() => return Ok(Vec::new()),
        _ => {
            return Err(format!(
                "line {}: {within} must have \"key: value\" lines",
                section.span.start.line()
            ));
        }
    };
    let entry = |(key, value): (&'a MarkedYaml<'a>, &'a MarkedYaml<'a>)| {
        let line = key.span.start.line();
        let name = key.data.as_str();
        let name =
            name.ok_or_else(|| format!("line {line}: a key in {within} is no text: write it in quotes"))?;
        Ok((name, line, value))
    };
    map.iter().map(entry).collect()
}

fn text<'a>(key: &str, value: &'a MarkedYaml<'_>) -> Checked<&'a str> {
    let line = value.span.start.line();
    let text = value.data.as_str().filter(|text| !text.is_empty());
    text.ok_or_else(|| format!("line {line}: {key} must be a text: write it in quotes"))
}

/// Reads the section `basic_auth_users`. No error has a hash.
fn users(section: &MarkedYaml<'_>) -> Checked<BTreeMap<String, String>> {
    let read = |(user, line, value): Entry<'_>| {
        let hash = text(user, value)?;
        if user.is_empty() || user.contains(':') {
            return Err(format!("line {line}: the user name {user:?} is empty or has a colon"));
        }
        let parts = HashParts::from_str(hash).map_err(|_| {
            format!("line {line}: user {user} has no bcrypt hash, as \"htpasswd -nBC 10 {user}\" prints it")
        })?;
        let cost = parts.get_cost();
        if !COSTS.contains(&cost) {
            let (least, most) = (COSTS.start(), COSTS.end());
            return Err(format!(
                "line {line}: the hash of user {user} has cost {cost}, expected {least} to {most}"
            ));
        }
        Ok((user.to_owned(), hash.to_owned()))
    };
    entries("basic_auth_users", section)?.into_iter().map(read).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const HASH: &str = "$2y$10$X0h1gDsPszWURQaxFh.zoubFi6DXncSjhoQNJgRrnGs7EsimhC7zG";

    fn parse(text: &str) -> Checked<WebFile> {
        WebFile::parse(text, Path::new("/etc/mpib"))
    }

    //= agent.md: the web file has the format of exporter-toolkit
    #[test]
    fn a_file_has_tls_and_users() {
        let file = parse(&format!(
            "# A comment\ntls_server_config:\n  cert_file: node.crt\n  key_file: \"/secret/node.key\"\n  \
             client_auth_type: RequireAndVerifyClientCert\n  client_ca_file: ca.crt\n  min_version: TLS13\n\
             basic_auth_users:\n  alice: {HASH}\n  \"17\": {HASH}\n"
        ));
        let file = file.unwrap();
        assert_eq!(file.users.keys().collect::<Vec<_>>(), ["17", "alice"]);
        let expected = TlsSettings {
            certificate: "/etc/mpib/node.crt".into(),
            key: "/secret/node.key".into(),
            clients: Clients::Known("/etc/mpib/ca.crt".into()),
            oldest: Version::Tls13,
            newest: Version::Tls13,
        };
        assert_eq!(file.tls, Some(expected));
        for nothing in
            ["", "# nothing\n", "tls_server_config:\nbasic_auth_users:\n", "tls_server_config: {}\n"]
        {
            assert_eq!(parse(nothing), Ok(WebFile::default()), "{nothing:?}");
        }
    }

    //= agent.md: an error in the web file names the line, the key and what is known
    #[test]
    fn a_bad_file_names_the_line_and_what_is_expected() {
        let tls = |lines: &str| format!("tls_server_config:\n  cert_file: c\n  key_file: k\n{lines}");
        let user = |line: &str| format!("basic_auth_users:\n  {line}\n");
        for (text, expected) in [
            (
                "tls_server_confg:\n".to_owned(),
                "line 1: unknown key \"tls_server_confg\" in the file; did you mean \"tls_server_config\"?",
            ),
            (
                "rate_limit:\n  burst: 20\n".into(),
                "line 1: rate_limit in the file is a key of exporter-toolkit that this agent does not offer",
            ),
            (
                tls("  min_versoin: TLS12\n"),
                "line 4: unknown key \"min_versoin\" in tls_server_config; did you mean \"min_version\"?",
            ),
            (
                tls("  x: y\n"),
                "line 4: unknown key \"x\" in tls_server_config; expected one of cert_file, key_file",
            ),
            (
                tls("  cipher_suites: [a]\n"),
                "line 4: cipher_suites in tls_server_config is a key of exporter-toolkit",
            ),
            (tls("  min_version: TLS10\n"), "line 4: min_version \"TLS10\", expected TLS12 or TLS13"),
            (tls("  min_version: TLS13\n  max_version: TLS12\n"), "min_version is above max_version"),
            (tls("  client_ca_file: ca\n"), "client_ca_file has no effect without client_auth_type"),
            (
                tls("  client_auth_type: VerifyClientCertIfGiven\n"),
                "line 4: client_auth_type VerifyClientCertIfGiven needs client_ca_file",
            ),
            (
                tls("  client_auth_type: RequireAnyClientCert\n"),
                "line 4: client_auth_type RequireAnyClientCert is not offered",
            ),
            (tls("  client_auth_type: Always\n"), "line 4: client_auth_type \"Always\", expected"),
            (tls("  cert_file: d\n"), "line 4: duplicated key"),
            ("tls_server_config:\n  key_file: k\n".into(), "line 1: tls_server_config has no cert_file"),
            ("tls_server_config:\n  cert_file: c\n".into(), "line 1: tls_server_config has no key_file"),
            ("tls_server_config:\n  cert_file: 17\n".into(), "line 2: cert_file must be a text"),
            ("tls_server_config: yes\n".into(), "line 1: tls_server_config must have \"key: value\" lines"),
            (user("17: x"), "line 2: a key in basic_auth_users is no text"),
            (
                user("bob: secret"),
                "line 2: user bob has no bcrypt hash, as \"htpasswd -nBC 10 bob\" prints it",
            ),
            (user(&format!("\"a:b\": {HASH}")), "line 2: the user name \"a:b\" is empty or has a colon"),
            (
                user(&format!("bob: {}", HASH.replace("$10$", "$15$"))),
                "line 2: the hash of user bob has cost 15, expected 4 to 14",
            ),
            ("a: b\n---\nc: d\n".into(), "a second document, expected one"),
            ("a: [\n".into(), "line 2: "),
        ] {
            let why = parse(&text).unwrap_err();
            assert!(why.contains(expected) && !why.contains(HASH) && !why.contains("secret"), "{text}{why}");
        }
    }
}
