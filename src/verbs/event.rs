//! Asynchronous events of a device: their subject, and their meaning for an operator.

use std::fmt;

/// One event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct AsyncEvent {
    /// `enum ibv_event_type` as a number: newer libraries deliver events that older headers do not
    /// name.
    pub(crate) kind: i32,
    /// The subject of the event.
    pub(crate) about: About,
}

/// The subject of an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum About {
    /// A queue pair, by its number.
    Qp(u32),
    /// A completion queue, by [`Cq::id`](super::Cq::id).
    Cq(usize),
    /// A shared receive queue, by [`Srq::id`](super::Srq::id).
    Srq(usize),
    /// A port, by its number.
    Port(u8),
    /// The device, or an object of a kind that the plugin does not use.
    Device,
}

/// Which member of an event's union is set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Element {
    Qp,
    Cq,
    Srq,
    Port,
    None,
}

/// Number, name, element, and words for an operator.
const KINDS: &[(i32, &str, Element, &str)] = &[
    (0, "CQ_ERR", Element::Cq, "a completion queue failed, or ran over"),
    (1, "QP_FATAL", Element::Qp, "a queue pair failed"),
    (2, "QP_REQ_ERR", Element::Qp, "a queue pair received a request that it does not support"),
    // bnxt_re also raises it where the retries are over (drivers/infiniband/hw/bnxt_re/main.c).
    (
        3,
        "QP_ACCESS_ERR",
        Element::Qp,
        "a queue pair failed: its peer may not access the memory that it named, or does not answer",
    ),
    (4, "COMM_EST", Element::Qp, "a queue pair has heard of its peer"),
    (5, "SQ_DRAINED", Element::Qp, "a send queue is drained"),
    (6, "PATH_MIG", Element::Qp, "a queue pair took its other path"),
    (7, "PATH_MIG_ERR", Element::Qp, "a queue pair could not take its other path"),
    (DEVICE_FATAL, "DEVICE_FATAL", Element::None, "the adapter failed, or was removed"),
    (9, "PORT_ACTIVE", Element::Port, "the link is up"),
    (PORT_ERR, "PORT_ERR", Element::Port, "the link went down"),
    (11, "LID_CHANGE", Element::Port, "the port's LID changed"),
    (12, "PKEY_CHANGE", Element::Port, "the P_Key table changed"),
    (13, "SM_CHANGE", Element::Port, "the subnet manager changed"),
    (14, "SRQ_ERR", Element::Srq, "a shared receive queue failed"),
    (15, "SRQ_LIMIT_REACHED", Element::Srq, "a shared receive queue is at its limit"),
    (16, "QP_LAST_WQE_REACHED", Element::Qp, "a queue pair consumes no more receives"),
    (17, "CLIENT_REREGISTER", Element::Port, "the subnet manager asks for new registrations"),
    (18, "GID_CHANGE", Element::Port, "the GID table changed"),
    (19, "WQ_FATAL", Element::None, "a work queue failed"),
    (DEVICE_SPEED_CHANGE, "DEVICE_SPEED_CHANGE", Element::None, "a port's speed changed"),
];

const DEVICE_FATAL: i32 = 8;
const PORT_ERR: i32 = 10;
const DEVICE_SPEED_CHANGE: i32 = 20;

fn known(kind: i32) -> Option<&'static (i32, &'static str, Element, &'static str)> {
    KINDS.iter().find(|known| known.0 == kind)
}

/// Returns the row of an event type.
pub(super) fn element(kind: i32) -> Element {
    known(kind).map_or(Element::None, |known| known.2)
}

impl AsyncEvent {
    /// Returns whether the event is a normal effect of a queue pair's life: COMM_EST, SQ_DRAINED,
    /// QP_LAST_WQE_REACHED.
    pub(crate) fn is_consequence(&self) -> bool {
        matches!(self.kind, 4 | 5 | 16)
    }

    /// Returns whether the subject of the event can no longer be used.
    pub(crate) fn is_fatal(&self) -> bool {
        matches!(self.kind, 0..=3 | DEVICE_FATAL | 14)
    }

    /// Returns whether the GID table of a port changed.
    pub(crate) fn is_gid_change(&self) -> bool {
        self.kind == 18
    }

    /// Returns whether a port went down. Work requests in flight fail if it stays down.
    pub(crate) fn is_link_down(&self) -> bool {
        self.kind == PORT_ERR
    }

    /// Returns whether a port came up.
    pub(crate) fn is_link_up(&self) -> bool {
        self.kind == 9
    }

    /// Returns whether the speed of a port may have changed: an adapter reports that, or a link came up,
    /// which may have trained to another width.
    pub(crate) fn is_speed(&self) -> bool {
        self.kind == DEVICE_SPEED_CHANGE || self.is_link_up()
    }

    /// Returns whether a table of a port, or its LID, changed.
    pub(crate) fn is_table(&self) -> bool {
        matches!(self.kind, 11 | 12 | 18)
    }
}

impl fmt::Display for AsyncEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match known(self.kind) {
            Some((_, name, _, words)) => write!(f, "{words} (IBV_EVENT_{name}")?,
            None => write!(f, "an event of another kind ({}", self.kind)?,
        }
        match self.about {
            About::Qp(qpn) => write!(f, ", QP {qpn})"),
            _ => f.write_str(")"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_is_known_by_its_number() {
        for (i, (kind, ..)) in KINDS.iter().enumerate() {
            assert_eq!(*kind, i as i32);
        }
        let event = |kind, about| AsyncEvent { kind, about }.to_string();
        assert_eq!(event(1, About::Qp(77)), "a queue pair failed (IBV_EVENT_QP_FATAL, QP 77)");
        assert_eq!(event(10, About::Port(1)), "the link went down (IBV_EVENT_PORT_ERR)");
        assert_eq!(event(99, About::Device), "an event of another kind (99)");
        assert_eq!(element(99), Element::None);
    }
}
