//! Settings that are valid alone but contradict each other.

use super::{Config, SplitBy};
use crate::error::BadSetting;
use crate::proto::Mode;

impl Config {
    /// Lists the settings that contradict each other.
    pub(super) fn contradictions(&self) -> Vec<BadSetting> {
        let mut bad = Vec::new();
        let mut both =
            |variable, found: String, expected: String| bad.push(BadSetting { variable, found, expected });
        match (&self.hca_sout, &self.hca_sup) {
            (Some(sout), None) => both(
                "MPIB_HCA_SUP",
                "(unset)".into(),
                format!("an HCA, since MPIB_HCA_SOUT={sout}: set both or neither"),
            ),
            (None, Some(sup)) => both(
                "MPIB_HCA_SOUT",
                "(unset)".into(),
                format!("an HCA, since MPIB_HCA_SUP={sup}: set both or neither"),
            ),
            (Some(sout), Some(sup)) if sout.same_port(sup) => {
                both(
                    "MPIB_HCA_SUP",
                    format!("{:?}", sup.to_string()),
                    format!("another HCA or port than MPIB_HCA_SOUT={sout}"),
                );
            }
            _ => {}
        }
        let has_share = self.sup_share.is_some() || self.mode == Mode::Advanced;
        if self.split == SplitBy::Share && !(has_share && self.hca_sout.is_some()) {
            both(
                "MPIB_SPLIT",
                "\"share\"".into(),
                "speed or measured; share is for MPIB_HCA_SOUT and MPIB_HCA_SUP with MPIB_SUP_SHARE or MPIB_MODE=1".into(),
            );
        }
        if let (Some(family), Some(range)) = (self.addr_family, &self.addr_range)
            && family != range.family()
        {
            both(
                "NCCL_IB_ADDR_RANGE",
                format!("{:?}", range.to_string()),
                format!("a range of NCCL_IB_ADDR_FAMILY={family}"),
            );
        }
        bad
    }
}
