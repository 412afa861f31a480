//! The release of a plugin, as the two ends of a connection name it to each other.

use std::fmt;

use nccl_net_mpib_agent_iface::COMMIT;

use super::PROTOCOL_VERSION;
use super::wire::{Codec, DecodeError, Layout, Reader, Writer, layout};

/// Bytes of a release in a handle and in a HELLO.
pub(super) const RELEASE_BYTES: usize = 10;

layout! {
    /// A release: for people, who see it in the log. Nothing is decided by it.
    #[derive(Copy, Default)]
    pub struct Release {
        /// Major, minor, patch. All zeros: unknown.
        pub version: [u8; 3] = "release",
        /// 0: this release. Others: after the release before it, as `-dev` says.
        pub stage: u8 = "release",
        /// The first bytes of the commit. All zeros: unknown.
        pub commit: [u8; 6] = "release",
    }
}

impl Release {
    /// Returns that of this plugin.
    pub fn ours() -> Self {
        let number = |text: &str| text.parse().unwrap_or_default();
        let digit =
            |at: usize| COMMIT.get(2 * at..2 * at + 2).and_then(|hex| u8::from_str_radix(hex, 16).ok());
        let commit: Option<Vec<u8>> = (0..6).map(digit).collect();
        Self {
            version: [
                number(env!("CARGO_PKG_VERSION_MAJOR")),
                number(env!("CARGO_PKG_VERSION_MINOR")),
                number(env!("CARGO_PKG_VERSION_PATCH")),
            ],
            stage: u8::from(!env!("CARGO_PKG_VERSION_PRE").is_empty()),
            commit: commit.and_then(|bytes| bytes.try_into().ok()).unwrap_or_default(),
        }
    }
}

impl fmt::Display for Release {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [major, minor, patch] = self.version;
        if self.version == [0; 3] {
            return f.write_str("of an unknown version");
        }
        write!(f, "version {major}.{minor}.{patch}{}", if self.stage == 0 { "" } else { "-dev" })?;
        if self.commit == [0; 6] {
            return Ok(());
        }
        f.write_str(" (commit ")?;
        self.commit.iter().try_for_each(|byte| write!(f, "{byte:02x}"))?;
        f.write_str(")")
    }
}

/// Describes two ends whose versions of the protocol differ.
pub(super) fn mismatch(whose: &str, found: u16, release: Release) -> String {
    format!(
        "{whose} is {release} with protocol {found}, this one {} with protocol {PROTOCOL_VERSION}: use one version of the \
         plugin on all hosts",
        Release::ours()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_release_is_shown_as_far_as_it_is_known() {
        let commit = [0x94, 0xb8, 0x89, 0xc4, 0xd0, 0xeb];
        for (release, text) in [
            (Release { version: [0, 3, 0], stage: 0, commit }, "version 0.3.0 (commit 94b889c4d0eb)"),
            (Release { version: [1, 20, 3], stage: 1, commit: [0; 6] }, "version 1.20.3-dev"),
            (Release { commit, ..Release::default() }, "of an unknown version"),
        ] {
            assert_eq!(release.to_string(), text);
            let mut out = Writer::default();
            release.write(&mut out);
            assert_eq!(out.bytes.len(), RELEASE_BYTES);
            assert_eq!(Release::read(&mut Reader::new(&out.bytes)), Ok(release));
        }
        assert!(Release::ours().to_string().starts_with(concat!("version ", env!("CARGO_PKG_VERSION"))));
    }
}
