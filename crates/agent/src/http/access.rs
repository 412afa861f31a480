//! By what agents of other hosts are asked: over TLS, and with a password.

use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use hyper::header::HeaderValue;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::crypto::ring::default_provider;
use tokio_rustls::rustls::pki_types::ServerName;
use tokio_rustls::rustls::{CertificateError, ClientConfig, Error};

use super::client::not_connected;
use super::guard::read_secret;
use super::web::{Stream, authorities};

/// What is needed to ask agents of other hosts. Without anything: plain HTTP.
#[derive(Debug, Clone, Default)]
pub struct Access {
    tls: Option<Arc<ClientConfig>>,
    pub(super) login: Option<HeaderValue>,
}

impl Access {
    /// Reads the certificates of those who have signed the agents' ones, and USER:PASSWORD in a file
    /// that only its owner can read.
    ///
    /// # Errors
    /// A sentence that names the file and what is wrong with it.
    pub fn read(authorities_file: &Path, login: Option<&Path>) -> Result<Self, String> {
        let config = ClientConfig::builder_with_provider(Arc::new(default_provider()));
        let config = config.with_safe_default_protocol_versions().map_err(|e| e.to_string())?;
        let config = config.with_root_certificates(authorities(authorities_file)?).with_no_client_auth();
        let login = login.map(|path| {
            let login = read_secret("login file", path)?;
            let header = format!("Basic {}", STANDARD.encode(&login));
            let header = HeaderValue::try_from(header).ok().filter(|_| login.contains(':'));
            let mut header =
                header.ok_or_else(|| format!("login file {}: expected USER:PASSWORD", path.display()))?;
            header.set_sensitive(true);
            Ok::<_, String>(header)
        });
        Ok(Self { tls: Some(Arc::new(config)), login: login.transpose()? })
    }

    /// Connects to the agent of a host. A certificate must have the host's name, or this address.
    pub(super) async fn connect(&self, address: SocketAddr, host: &str) -> Result<Box<dyn Stream>, String> {
        let connect = || async { TcpStream::connect(address).await.map_err(|e| not_connected(&e)) };
        let Some(tls) = &self.tls else { return Ok(Box::new(connect().await?)) };
        let by_name = ServerName::try_from(host.to_owned()).ok();
        let mut first = None;
        for name in by_name.into_iter().chain([ServerName::from(address.ip())]) {
            match TlsConnector::from(tls.clone()).connect(name, connect().await?).await {
                Ok(stream) => return Ok(Box::new(stream)),
                Err(e) if has_another_name(&e) => _ = first.get_or_insert(e),
                Err(e) => return Err(words(&e)),
            }
        }
        Err(first.as_ref().map_or_else(String::new, words))
    }

    /// Returns whether agents are asked over TLS.
    pub(super) fn has_tls(&self) -> bool {
        self.tls.is_some()
    }
}

fn tls_error(e: &io::Error) -> Option<&Error> {
    e.get_ref()?.downcast_ref()
}

fn has_another_name(e: &io::Error) -> bool {
    use CertificateError::{NotValidForName, NotValidForNameContext};
    matches!(tls_error(e), Some(Error::InvalidCertificate(NotValidForName | NotValidForNameContext { .. })))
}

fn words(e: &io::Error) -> String {
    match tls_error(e) {
        Some(Error::InvalidMessage(_)) => "what listens there does not speak TLS".into(),
        _ => format!("TLS: {e}"),
    }
}
