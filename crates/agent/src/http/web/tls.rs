//! TLS of the server: made of files, and laid over connections.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;

use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::crypto::ring::default_provider;
use tokio_rustls::rustls::pki_types::pem::{Error as PemError, PemObject};
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::server::WebPkiClientVerifier;
use tokio_rustls::rustls::{self, RootCertStore, ServerConfig, SupportedProtocolVersion};

use super::file::{Clients, TlsSettings, Version};

/// Other users of the host may read a file.
const OTHERS_READ: u32 = 0o004;

/// Reads the files that the settings name.
///
/// # Errors
/// A sentence that names the file and what is wrong with it.
pub(super) fn configuration(settings: &TlsSettings) -> Result<ServerConfig, String> {
    let TlsSettings { certificate, key, clients, oldest, newest } = settings;
    let chain = certificates(certificate)?;
    let private = PrivateKeyDer::from_pem_file(key).map_err(|e| unreadable(key, "private key", &e))?;
    let provider = Arc::new(default_provider());
    let versions: Vec<&SupportedProtocolVersion> =
        [(Version::Tls12, &rustls::version::TLS12), (Version::Tls13, &rustls::version::TLS13)]
            .into_iter()
            .filter_map(|(version, known)| (*oldest..=*newest).contains(&version).then_some(known))
            .collect();
    let builder = ServerConfig::builder_with_provider(provider.clone()).with_protocol_versions(&versions);
    let builder = builder.map_err(|e| e.to_string())?;
    let verified = |file: &Path, is_needed: bool| {
        let verifier = WebPkiClientVerifier::builder_with_provider(authorities(file)?.into(), provider);
        let verifier = if is_needed { verifier } else { verifier.allow_unauthenticated() };
        verifier.build().map_err(|e| format!("{}: {e}", file.display()))
    };
    let builder = match clients {
        Clients::Any => builder.with_no_client_auth(),
        Clients::IfGiven(file) => builder.with_client_cert_verifier(verified(file, false)?),
        Clients::Known(file) => builder.with_client_cert_verifier(verified(file, true)?),
    };
    builder
        .with_single_cert(chain, private)
        .map_err(|e| format!("{} with the key {}: {e}", certificate.display(), key.display()))
}

/// Returns the certificates of a file.
fn certificates(file: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let read = CertificateDer::pem_file_iter(file).and_then(|all| all.collect::<Result<Vec<_>, _>>());
    let read = read.and_then(|all| if all.is_empty() { Err(PemError::NoItemsFound) } else { Ok(all) });
    read.map_err(|e| unreadable(file, "certificate", &e))
}

/// Returns the authorities of a file.
///
/// # Errors
/// A sentence that names the file and what is wrong with it.
pub(in crate::http) fn authorities(file: &Path) -> Result<RootCertStore, String> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(file)? {
        roots.add(certificate).map_err(|e| format!("{}: {e}", file.display()))?;
    }
    Ok(roots)
}

fn unreadable(file: &Path, what: &str, e: &PemError) -> String {
    let at = file.display();
    match e {
        PemError::Io(e) => format!("{at}: {e}"),
        PemError::NoItemsFound => format!("{at}: no {what} in PEM form, without a password"),
        e => format!("{at}: {e}"),
    }
}

/// Returns a warning if other users may read a key.
pub(super) fn warning(key: &Path) -> Option<String> {
    let mode = fs::metadata(key).ok()?.mode() & 0o7777;
    let at = key.display();
    let text = || {
        format!(
            "key file {at} has mode {mode:o}: other users may read it; run \"chmod o= {at}\" and replace the key"
        )
    };
    (mode & OTHERS_READ != 0).then(text)
}

/// Lays TLS over a connection; `None` if the client speaks something else. Nothing of that is read.
pub(super) async fn secured(
    stream: TcpStream,
    config: &Arc<ServerConfig>,
) -> std::io::Result<Result<tokio_rustls::server::TlsStream<TcpStream>, TcpStream>> {
    /// The first byte of each TLS connection: a record of the handshake.
    const HANDSHAKE: u8 = 22;
    let mut first = [0];
    if stream.peek(&mut first).await? == 1 && first[0] != HANDSHAKE {
        return Ok(Err(stream));
    }
    TlsAcceptor::from(config.clone()).accept(stream).await.map(Ok)
}
