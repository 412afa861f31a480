//! Texts for enumerations. The values come from C and may be any integer.

use core::ffi::{CStr, c_char, c_int};

const UNKNOWN: &CStr = c"unknown";

fn word(words: &'static [&'static CStr], value: c_int) -> *const c_char {
    usize::try_from(value).ok().and_then(|i| words.get(i)).unwrap_or(&UNKNOWN).as_ptr()
}

/// `enum ibv_wc_status`, in order.
const WC_STATUS: [&CStr; 24] = [
    c"success",
    c"local length error",
    c"local QP operation error",
    c"local EE context operation error",
    c"local protection error",
    c"Work Request Flushed Error",
    c"memory window bind error",
    c"bad response error",
    c"local access error",
    c"remote invalid request error",
    c"remote access error",
    c"remote operation error",
    c"transport retry counter exceeded",
    c"RNR retry counter exceeded",
    c"local RDD violation error",
    c"remote invalid RD request",
    c"remote aborted error",
    c"invalid EE context number",
    c"invalid EE context state",
    c"fatal error",
    c"response timeout error",
    c"general error",
    c"tag matching error",
    c"tag matching rendezvous incomplete",
];

/// `enum ibv_event_type`, in order.
const EVENTS: [&CStr; 20] = [
    c"CQ error",
    c"local work queue catastrophic error",
    c"invalid request local work queue error",
    c"local access violation work queue error",
    c"communication established",
    c"send queue drained",
    c"path migrated",
    c"path migration request error",
    c"local catastrophic error",
    c"port active",
    c"port error",
    c"LID change",
    c"P_Key change",
    c"SM change",
    c"SRQ catastrophic error",
    c"SRQ limit reached",
    c"last WQE reached",
    c"client reregistration",
    c"GID table change",
    c"WQ fatal error",
];

/// `enum ibv_port_state`, in order.
const PORT_STATES: [&CStr; 6] =
    [c"no state change (NOP)", c"down", c"init", c"armed", c"active", c"active defer"];

/// `enum ibv_node_type`, which starts at 1.
const NODE_TYPES: [&CStr; 8] = [
    UNKNOWN,
    c"InfiniBand channel adapter",
    c"InfiniBand switch",
    c"InfiniBand router",
    c"iWARP NIC",
    c"usNIC",
    c"usNIC UDP",
    c"unspecified",
];

/// `ibv_wc_status_str`
#[unsafe(no_mangle)]
extern "C" fn ibv_wc_status_str(status: c_int) -> *const c_char {
    word(&WC_STATUS, status)
}

/// `ibv_event_type_str`
#[unsafe(no_mangle)]
extern "C" fn ibv_event_type_str(event: c_int) -> *const c_char {
    word(&EVENTS, event)
}

/// `ibv_port_state_str`
#[unsafe(no_mangle)]
extern "C" fn ibv_port_state_str(state: c_int) -> *const c_char {
    word(&PORT_STATES, state)
}

/// `ibv_node_type_str`
#[unsafe(no_mangle)]
extern "C" fn ibv_node_type_str(node: c_int) -> *const c_char {
    word(&NODE_TYPES, node)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_has_a_text() {
        // SAFETY: the functions return constants.
        let text = |p: *const c_char| unsafe { CStr::from_ptr(p) };
        assert_eq!(text(ibv_wc_status_str(12)), c"transport retry counter exceeded");
        assert_eq!(text(ibv_event_type_str(9)), c"port active");
        assert_eq!(text(ibv_port_state_str(4)), c"active");
        assert_eq!(text(ibv_node_type_str(1)), c"InfiniBand channel adapter");
        for outside in [-1, 24, c_int::MIN, c_int::MAX] {
            assert_eq!(text(ibv_wc_status_str(outside)), UNKNOWN);
            assert_eq!(text(ibv_event_type_str(outside)), UNKNOWN);
            assert_eq!(text(ibv_port_state_str(outside)), UNKNOWN);
            assert_eq!(text(ibv_node_type_str(outside)), UNKNOWN);
        }
    }
}
