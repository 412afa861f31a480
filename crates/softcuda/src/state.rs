//! The state of the process after softcuda is attached.

use std::sync::OnceLock;

use crate::{
    device::Devices,
    image::Image,
    memory::Memory,
    stream::Streams,
    unknown::{Unknown, end_rank},
};

/// Everything that the functions share.
pub(crate) struct State {
    pub(crate) image: Image,
    pub(crate) devices: Devices,
    pub(crate) memory: Memory,
    pub(crate) streams: Streams,
}

static STATE: OnceLock<State> = OnceLock::new();

/// Returns the state. Ends the rank if softcuda is not attached.
pub(crate) fn state() -> &'static State {
    STATE.get().unwrap_or_else(|| end_rank(&Unknown::new("call", "before softcuda_attach")))
}

/// Sets the state, once for the process.
pub(crate) fn set(state: State) -> Result<&'static State, &'static str> {
    let mut fresh = false;
    let state = STATE.get_or_init(|| {
        fresh = true;
        state
    });
    if fresh { Ok(state) } else { Err("softcuda is attached already") }
}
