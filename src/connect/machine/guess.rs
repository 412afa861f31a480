//! What a connector expects of a peer whose HELLO it does not have yet.

use super::Stripes;
use super::attempts::Attempts;
use crate::proto::{Hello, Role};
use crate::split::Plan;

/// Returns the stripes of the first attempt with a peer that has the same rails as this end, on the
/// same networks, and the same settings: the usual peer. The addresses in the routes are meaningless.
/// `None` if there is no such attempt, or if the choice of rails depends on the peer's addresses.
pub(crate) fn expected_stripes(local: &Hello) -> Option<Stripes> {
    let attempts = Attempts::new(Role::Connector, local.clone(), local.clone(), "").ok()?;
    if matches!(attempts.plan, Plan::Isolated(_) | Plan::StandIn) {
        return None;
    }
    Some(attempts.stripes()).filter(|stripes| !stripes.each.is_empty())
}
