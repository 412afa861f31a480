//! Certificates for tests.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};

/// Signs certificates.
pub(crate) struct Authority(CertifiedIssuer<'static, KeyPair>);

impl Authority {
    pub(crate) fn new() -> Self {
        let (mut params, key) = (CertificateParams::default(), KeyPair::generate().unwrap());
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        // No other one has this name.
        params.distinguished_name.push(DnType::CommonName, format!("{:02x?}", key.public_key_raw()));
        Self(CertifiedIssuer::self_signed(params, key).unwrap())
    }

    /// Writes its certificate.
    pub(crate) fn write(&self, path: &Path) -> PathBuf {
        fs::write(path, self.0.pem()).unwrap();
        path.to_owned()
    }

    /// Writes `node.crt` with these names and addresses, and its key `node.key`.
    pub(crate) fn sign(&self, folder: &Path, names: &[&str]) {
        let (key, names): (_, Vec<_>) =
            (KeyPair::generate().unwrap(), names.iter().map(|&n| n.into()).collect());
        let certificate = CertificateParams::new(names).unwrap().signed_by(&key, &self.0).unwrap();
        fs::write(folder.join("node.crt"), certificate.pem()).unwrap();
        let path = folder.join("node.key");
        fs::write(&path, key.serialize_pem()).unwrap();
        fs::set_permissions(path, fs::Permissions::from_mode(0o600)).unwrap();
    }
}
