//! Where the drivers of adapters differ from the verbs specification.
//!
//! A deviation is a bit with its source in rdma-core. A row of `TABLE` has those of one provider.

use std::sync::OnceLock;

use super::DeviceSpec;

/// Name of the environment variable with the quirks of devices that name none.
pub const QUIRKS_VAR: &str = "SOFTVERBS_QUIRKS";

/// A receive without an SGE in a shared receive queue is malformed. Posting it succeeds. The adapter
/// notices when a message consumes it: the receive completes with `IBV_WC_LOC_QP_OP_ERR`, and the
/// requester with `IBV_WC_REM_OP_ERR`.
///
/// Source: `bnxt_re_post_recv` in providers/bnxt_re/verbs.c gives an entry of a QP's own queue an
/// SGE of length 0, since the adapter needs one. `bnxt_re_build_srqe` there does not: its entry
/// consists of the header alone.
pub(crate) const SRQ_RECEIVE_NEEDS_SGE: u32 = 1;

/// A WRITE without an immediate, or a READ, uses the first SGE even if `num_sge` is 0, unless
/// `sg_list` is null. WRITEs with an immediate, inline data and other opcodes keep to `num_sge`.
///
/// Source: `irdma_uk_rdma_write` and `irdma_uk_rdma_read` in providers/irdma/uk.c put
/// `lo_sg_list` into the first fragment. `irdma_uk_send` there looks at the number first.
pub(crate) const FIRST_SGE_ALWAYS: u32 = 1 << 1;

/// The deviations of a device from the verbs specification: those of a provider of rdma-core.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Quirks {
    /// The device does what the specification says.
    None,
    /// Broadcom's provider `bnxt_re`.
    BnxtRe,
    /// Intel's provider `irdma`.
    Irdma,
}

const TABLE: [(Quirks, &str, u32); 3] = [
    (Quirks::None, "none", 0),
    (Quirks::BnxtRe, "bnxt_re", SRQ_RECEIVE_NEEDS_SGE),
    (Quirks::Irdma, "irdma", FIRST_SGE_ALWAYS),
];

impl Quirks {
    /// Parses the name of a provider.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let row = TABLE.iter().find(|(_, name, _)| *name == text);
        row.map(|(quirks, ..)| *quirks).ok_or_else(|| {
            let names: Vec<_> = TABLE.iter().map(|(_, name, _)| *name).collect();
            format!("found {text:?}, expected one of {}", names.join(", "))
        })
    }

    fn bits(self) -> u32 {
        TABLE.iter().find(|(quirks, ..)| *quirks == self).map_or(0, |(.., bits)| *bits)
    }
}

/// Returns the quirks of devices that name none, or the line to log if the variable is invalid.
pub(super) fn default() -> Result<Quirks, &'static str> {
    static DEFAULT: OnceLock<Result<Quirks, String>> = OnceLock::new();
    let read = || {
        let Some(value) = std::env::var_os(QUIRKS_VAR) else { return Ok(Quirks::None) };
        let value = value.to_string_lossy();
        Quirks::parse(&value).map_err(|why| format!("{QUIRKS_VAR}={value:?}: {why}; there are no devices"))
    };
    DEFAULT.get_or_init(read).as_ref().copied().map_err(String::as_str)
}

/// Returns the deviations of a device as bits.
pub(crate) fn of(spec: &DeviceSpec) -> u32 {
    spec.quirks.or(default().ok()).map_or(0, Quirks::bits)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_provider_is_found_by_its_name() {
        for (quirks, name, bits) in TABLE {
            assert_eq!((Quirks::parse(name), quirks.bits()), (Ok(quirks), bits));
        }
        let error = Quirks::parse("bnxt").expect_err("no provider");
        assert_eq!(error, "found \"bnxt\", expected one of none, bnxt_re, irdma");
    }
}
