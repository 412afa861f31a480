//! Why a call does not take the shortest way.

use crate::transport::send_queue::NotPosted;

/// Why a send or a receive has not been started by the shortest way.
#[derive(Debug)]
pub(crate) enum Unusual {
    /// It is not a usual one, or something is in its way. Nothing has been done.
    General,
    /// The comm is marked. Nothing has been done.
    Marked,
    /// All is done but the post, which has failed. The index is the request's.
    NotPosted(u8, NotPosted),
}
