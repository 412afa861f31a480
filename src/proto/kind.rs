//! The type bytes of the frames.

pub(super) const HELLO: u8 = 1;
pub(super) const WELCOME: u8 = 2;
pub(super) const WIRING: u8 = 3;
pub(super) const READY: u8 = 4;
pub(super) const PROBED: u8 = 5;
pub(super) const REFUSE: u8 = 6;
pub(super) const BYE: u8 = 7;
pub(super) const CALLBACK: u8 = 8;
pub(super) const REDIAL: u8 = 9;
pub(super) const RESUME: u8 = 10;
pub(super) const PROOF: u8 = 11;
pub(super) const ENDED: u8 = 12;
pub(super) const DOWN: u8 = 16;
pub(super) const STATE: u8 = 17;
pub(super) const VERDICT: u8 = 18;
pub(super) const REBUILD: u8 = 19;
pub(super) const REBUILT: u8 = 20;
pub(super) const REBUILD_FAILED: u8 = 21;
pub(super) const PROVED: u8 = 22;
pub(super) const UP: u8 = 23;
pub(super) const RETURN: u8 = 24;
pub(super) const NUMBERED: u8 = 25;
