//! Which provider of rdma-core a device imitates.

use std::sync::OnceLock;

use super::profile::{Profile, STRICT};
use super::providers::{BNXT_RE, ERDMA, HNS, IONIC, IRDMA, MLX5, RXE, SIW};
use super::{DeviceSpec, of_all};

/// Name of the environment variable with the quirks of devices that name none.
pub const QUIRKS_VAR: &str = "SOFTVERBS_QUIRKS";

/// The deviations of a device from the verbs specification: those of a provider of rdma-core.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
#[repr(u32)]
pub enum Quirks {
    /// The device does what the specification says.
    None,
    /// NVIDIA's provider `mlx5`.
    Mlx5,
    /// Broadcom's provider `bnxt_re`.
    BnxtRe,
    /// Intel's provider `irdma`, as on E810.
    Irdma,
    /// AMD's provider `ionic`.
    Ionic,
    /// Alibaba's provider `erdma`, in its RoCE mode.
    Erdma,
    /// HiSilicon's provider `hns`.
    Hns,
    /// The kernel's software RoCE, `rxe`.
    Rxe,
    /// The kernel's software iWARP, `siw`.
    Siw,
}

/// In the order of [`Quirks`].
static PROFILES: [Profile; 9] = [STRICT, MLX5, BNXT_RE, IRDMA, IONIC, ERDMA, HNS, RXE, SIW];

impl Quirks {
    /// Parses the name of a provider.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let row = PROFILES.iter().find(|profile| profile.name == text);
        row.map(|profile| profile.quirks).ok_or_else(|| {
            let names: Vec<_> = PROFILES.iter().map(|profile| profile.name).collect();
            format!("found {text:?}, expected one of {}", names.join(", "))
        })
    }
}

/// Returns the quirks of devices that name none, or the line to log if the variable is invalid.
pub(super) fn default() -> Result<Quirks, &'static str> {
    static DEFAULT: OnceLock<Result<Quirks, String>> = OnceLock::new();
    of_all(&DEFAULT, QUIRKS_VAR, Quirks::None, Quirks::parse)
}

/// Returns the profile of a device.
pub(crate) fn of(spec: &DeviceSpec) -> &'static Profile {
    at(spec.quirks.or(default().ok()).map_or(0, |quirks| quirks as u32))
}

/// Returns the profile of a number in shared memory; that of the specification for an unknown one.
pub(crate) fn at(number: u32) -> &'static Profile {
    PROFILES.get(number as usize).unwrap_or(&PROFILES[0])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_provider_is_found_by_its_name_and_its_number() {
        for (number, profile) in (0..).zip(&PROFILES) {
            assert_eq!((Quirks::parse(profile.name), profile.quirks as u32), (Ok(profile.quirks), number));
            assert_eq!(at(number).name, profile.name);
        }
        assert_eq!(at(u32::MAX).name, "none");
        let error = Quirks::parse("bnxt").expect_err("no provider");
        assert!(error.starts_with("found \"bnxt\", expected one of none, mlx5, bnxt_re"), "{error}");
    }

    #[test]
    fn each_provider_has_its_row_among_the_adapters() {
        let page = include_str!("../../../../docs/internals/adapters.md");
        let (adapters, counters) = page.split_once("### Counters").expect("the section");
        for profile in PROFILES.iter().filter(|profile| profile.quirks != Quirks::None) {
            let driver = if profile.quirks == Quirks::Rxe { "rdma_rxe" } else { profile.name };
            assert!(adapters.contains(&format!("\n| {driver} |")), "{driver}: no row");
            // Adapters without immediates are refused.
            let row =
                |line: &&str| line.starts_with('|') && line[1..].split('|').next().unwrap().contains(driver);
            let is_refused = profile.quirks == Quirks::Siw;
            assert!(is_refused || counters.lines().any(|line| row(&line)), "{driver}: no counters");
        }
    }
}
