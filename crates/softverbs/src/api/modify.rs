//! `ibv_modify_qp`: the state transitions of an RC QP, with their required and optional attributes.

use std::ffi::c_int;
use std::sync::PoisonError;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use rdma_sys as sys;

use crate::abi::border::{self, Errno};
use crate::abi::handle::Handle;
use crate::api::events;
use crate::api::qp::{ERR, INIT, Qp, RESET, RTR, RTS, SQD};
use crate::config::LinkLayer;
use crate::config::call::Call;
use crate::limits::MAX_RD_ATOMIC;
use crate::log::fault;
use crate::process::{self, Process, calls, port};
use crate::shm::gids;
use crate::shm::layout::QpShared;
use crate::wire::bounce;
use crate::wire::late;
use crate::wire::placement;
use crate::wire::respond;
use crate::wire::send_queue::SendQueue;

macro_rules! masks {
    ($($name:ident = $value:expr, $text:literal;)*) => {
        $(const $name: u32 = $value;)*
        /// Names for messages.
        const NAMES: &[(u32, &str)] = &[$(($name, $text)),*];
    };
}
masks! {
    STATE = 1, "IBV_QP_STATE";
    CUR_STATE = 1 << 1, "IBV_QP_CUR_STATE";
    SQD_NOTIFY = 1 << 2, "IBV_QP_EN_SQD_ASYNC_NOTIFY";
    ACCESS = 1 << 3, "IBV_QP_ACCESS_FLAGS";
    PKEY = 1 << 4, "IBV_QP_PKEY_INDEX";
    PORT = 1 << 5, "IBV_QP_PORT";
    QKEY = 1 << 6, "IBV_QP_QKEY";
    AV = 1 << 7, "IBV_QP_AV";
    MTU = 1 << 8, "IBV_QP_PATH_MTU";
    TIMEOUT = 1 << 9, "IBV_QP_TIMEOUT";
    RETRY = 1 << 10, "IBV_QP_RETRY_CNT";
    RNR_RETRY = 1 << 11, "IBV_QP_RNR_RETRY";
    RQ_PSN = 1 << 12, "IBV_QP_RQ_PSN";
    MAX_RD = 1 << 13, "IBV_QP_MAX_QP_RD_ATOMIC";
    ALT_PATH = 1 << 14, "IBV_QP_ALT_PATH";
    RNR_TIMER = 1 << 15, "IBV_QP_MIN_RNR_TIMER";
    SQ_PSN = 1 << 16, "IBV_QP_SQ_PSN";
    MAX_DEST_RD = 1 << 17, "IBV_QP_MAX_DEST_RD_ATOMIC";
    MIGRATION = 1 << 18, "IBV_QP_PATH_MIG_STATE";
    CAP = 1 << 19, "IBV_QP_CAP";
    DEST_QPN = 1 << 20, "IBV_QP_DEST_QPN";
}

/// Returns the required and the optional attributes of a transition, or `None` if there is no such
/// transition. This is the table of the InfiniBand specification (11.2.5.2) for RC.
fn rules(from: u32, to: u32) -> Option<(u32, u32)> {
    let running = CUR_STATE | ACCESS | ALT_PATH | MIGRATION | RNR_TIMER;
    Some(match (from, to) {
        (RESET..=ERR, RESET | ERR) => (0, 0),
        (RESET, INIT) => (PKEY | PORT | ACCESS, 0),
        (INIT, INIT) => (0, PKEY | PORT | ACCESS),
        (INIT, RTR) => (AV | MTU | DEST_QPN | RQ_PSN | MAX_DEST_RD | RNR_TIMER, ALT_PATH | ACCESS | PKEY),
        (RTR, RTS) => (TIMEOUT | RETRY | RNR_RETRY | SQ_PSN | MAX_RD, running),
        (RTS, RTS) | (SQD, RTS) => (0, running),
        (RTS, SQD) => (0, SQD_NOTIFY),
        (SQD, SQD) => (0, running | PORT | PKEY | AV | TIMEOUT | RETRY | RNR_RETRY | MAX_RD | MAX_DEST_RD),
        _ => return None,
    })
}

fn names(mask: u32) -> String {
    let known = NAMES.iter().filter(|(bit, _)| mask & bit != 0).map(|(_, name)| (*name).to_owned());
    let unknown = NAMES.iter().fold(mask, |rest, (bit, _)| rest & !bit);
    known.chain((unknown != 0).then(|| format!("{unknown:#x}"))).collect::<Vec<_>>().join(", ")
}

fn state_name(state: u32) -> &'static str {
    ["RESET", "INIT", "RTR", "RTS", "SQD", "SQE", "ERR"].get(state as usize).unwrap_or(&"unknown")
}

fn check_mask(from: u32, to: u32, mask: u32) -> Result<(), String> {
    let path = format!("{} to {}", state_name(from), state_name(to));
    let Some((needed, allowed)) = rules(from, to) else {
        return Err(format!("there is no transition from {path}"));
    };
    if needed & !mask != 0 {
        return Err(format!("{path} requires {}", names(needed & !mask)));
    }
    match mask & !(needed | allowed | STATE) {
        0 => Ok(()),
        extra => Err(format!("{path} does not allow {}", names(extra))),
    }
}

fn mtu_bytes(mtu: u32) -> Option<u32> {
    (1..=5).contains(&mtu).then(|| 128 << mtu)
}

/// Checks the values of the attributes in `mask`.
fn check_values(qp: &Qp, attr: &sys::ibv_qp_attr, mask: u32) -> Result<(), String> {
    let number = if mask & PORT != 0 { attr.port_num } else { qp.port().number };
    let ports = qp.context.device.ports().len();
    let device = qp.context.device.port(number.into());
    let device = device.map_err(|_| format!("port_num is {number}, expected 1 to {ports}"))?;
    let below = |bit: u32, name: &str, value: u32, max: u32| match mask & bit != 0 && value > max {
        true => Err(format!("{name} is {value}, expected at most {max}")),
        false => Ok(()),
    };
    let port_attr = || {
        below(PKEY, "pkey_index", u32::from(attr.pkey_index), device.spec.pkeys.len() as u32 - 1)?;
        below(DEST_QPN, "dest_qp_num", attr.dest_qp_num, 0xff_ffff)?;
        below(TIMEOUT, "timeout", u32::from(attr.timeout), 31)?;
        below(RETRY, "retry_cnt", u32::from(attr.retry_cnt), 7)?;
        below(RNR_RETRY, "rnr_retry", u32::from(attr.rnr_retry), 7)?;
        below(RNR_TIMER, "min_rnr_timer", u32::from(attr.min_rnr_timer), 31)?;
        below(MAX_RD, "max_rd_atomic", u32::from(attr.max_rd_atomic), u32::from(MAX_RD_ATOMIC))?;
        below(MAX_DEST_RD, "max_dest_rd_atomic", u32::from(attr.max_dest_rd_atomic), u32::from(MAX_RD_ATOMIC))
    };
    port_attr()?;
    if mask & MTU != 0 && mtu_bytes(attr.path_mtu).is_none_or(|bytes| bytes > device.spec.mtu) {
        let most = device.spec.mtu;
        return Err(format!("path_mtu is {} (enum ibv_mtu), the port's MTU is {most} bytes", attr.path_mtu));
    }
    if mask & AV != 0 {
        let (global, index) = (attr.ah_attr.is_global != 0, usize::from(attr.ah_attr.grh.sgid_index));
        if !global && device.spec.link_layer == LinkLayer::Ethernet {
            return Err(String::from("ah_attr.is_global is 0, but Ethernet has no addresses except GIDs"));
        }
        if !global && device.spec.grh_required {
            return Err(String::from("ah_attr.is_global is 0, but the port has IBV_QPF_GRH_REQUIRED"));
        }
        if global {
            let gids = port::gids(device);
            match gids.get(index) {
                None => return Err(format!("sgid_index is {index}, the port has {} GIDs", gids.len())),
                Some(None) => return Err(format!("sgid_index is {index}, which is empty")),
                Some(Some(_)) => {}
            }
        }
        if attr.ah_attr.port_num != number {
            return Err(format!("ah_attr.port_num is {}, the QP is on port {number}", attr.ah_attr.port_num));
        }
    }
    Ok(())
}

macro_rules! copy_fields {
    ($mask:expr, $from:expr, $to:expr; $($bit:expr => $($field:ident),+;)*) => {
        $(if $mask & $bit != 0 { $($to.$field = $from.$field;)+ })*
    };
}

/// Stores the attributes, for `ibv_query_qp` and the send queue.
fn keep(to: &mut sys::ibv_qp_attr, from: &sys::ibv_qp_attr, mask: u32) {
    copy_fields! { mask, from, to;
        SQD_NOTIFY => en_sqd_async_notify;
        ACCESS => qp_access_flags;
        PKEY => pkey_index;
        PORT => port_num;
        AV => ah_attr;
        MTU => path_mtu;
        TIMEOUT => timeout;
        RETRY => retry_cnt;
        RNR_RETRY => rnr_retry;
        RQ_PSN => rq_psn;
        MAX_RD => max_rd_atomic;
        ALT_PATH => alt_ah_attr, alt_pkey_index, alt_port_num, alt_timeout;
        RNR_TIMER => min_rnr_timer;
        SQ_PSN => sq_psn;
        MAX_DEST_RD => max_dest_rd_atomic;
        DEST_QPN => dest_qp_num;
    }
}

/// Publishes the attributes that the peer needs. The caller holds the shared lock.
fn publish(shared: &QpShared, attr: &sys::ibv_qp_attr) {
    // SAFETY: any bytes are a valid GID.
    let [high, low] = gids::halves(unsafe { attr.ah_attr.grh.dgid.raw });
    shared.access.store(attr.qp_access_flags, Relaxed);
    shared.dest_qpn.store(attr.dest_qp_num, Relaxed);
    shared.rq_psn.store(attr.rq_psn & 0xff_ffff, Relaxed);
    shared.dgid_high.store(high, Relaxed);
    shared.dgid_low.store(low, Relaxed);
    shared.dlid.store(attr.ah_attr.dlid.into(), Relaxed);
    shared.global.store(u32::from(attr.ah_attr.is_global != 0), Relaxed);
    shared.min_rnr_timer.store(u32::from(attr.min_rnr_timer), Relaxed);
    shared.max_dest_rd_atomic.store(u32::from(attr.max_dest_rd_atomic), Relaxed);
}

impl Qp {
    fn modify(&self, process: &Process, attr: &sys::ibv_qp_attr, mask: u32) -> Result<(), Errno> {
        self.context.check()?;
        if let Some(call) = Call::modify_to(attr.qp_state).filter(|_| mask & STATE != 0) {
            calls::begin(self.context.device, call)?;
        }
        if mask & DEST_QPN != 0 && self.is_loopback(attr) {
            calls::begin(self.context.device, Call::ModifyLoopback)?;
        }
        let mut sq = self.lock_sq();
        let shared = self.shared(process)?;
        if mask & STATE != 0 && attr.qp_state == SQD && shared.state.load(Acquire) == RTS {
            self.finish_begun(process, &mut sq);
        }
        let guard = bounce::lock(&shared.lock);
        let from = shared.state.load(Acquire);
        let to = if mask & STATE != 0 { attr.qp_state } else { from };
        let mut checked = check_mask(from, to, mask).and_then(|()| check_values(self, attr, mask));
        if checked.is_ok() && mask & CUR_STATE != 0 && attr.cur_qp_state != from {
            let claimed = state_name(attr.cur_qp_state);
            checked = Err(format!("cur_qp_state is {claimed}, the QP is in {}", state_name(from)));
        }
        if let Err(why) = checked {
            fault!("ibv_modify_qp: QP {:#x}: {why}", self.qpn);
            return Err(Errno(libc::EINVAL));
        }
        self.apply(process, shared, &mut sq, attr, mask, (from, to));
        drop(guard);
        self.show_state(to);
        self.drain(process, &mut sq, true);
        Ok(())
    }

    /// Applies a valid change. The caller holds both locks.
    fn apply(
        &self,
        process: &Process,
        shared: &QpShared,
        sq: &mut SendQueue,
        attr: &sys::ibv_qp_attr,
        mask: u32,
        (from, to): (u32, u32),
    ) {
        let mut kept = self.attr.lock().unwrap_or_else(PoisonError::into_inner);
        keep(&mut kept, attr, mask);
        publish(shared, &kept);
        if mask & PORT != 0 {
            self.set_port(shared, kept.port_num);
        }
        let source = match mask & AV != 0 {
            true => port::gids(self.port()).get(usize::from(kept.ah_attr.grh.sgid_index)).copied(),
            false => None,
        };
        let source = source.flatten().map_or(sq.connection.sgid, |gid| gid.raw);
        sq.connect(&kept, source, self.is_loopback(&kept));
        match to {
            RESET => {
                placement::land_qp(&process.own, self.index);
                shared.state.store(RESET, Release);
                late::release(process, sq);
                respond::give_back_taken(process, self.index, shared);
                self.clear(shared, sq);
            }
            ERR => respond::to_error(process, &process.own, self.index, shared, None),
            _ => {
                if to == RTR {
                    shared.generation.fetch_add(1, Relaxed);
                }
                shared.state.store(to, Release);
            }
        }
        if (from, to) == (RTS, SQD) && kept.en_sqd_async_notify != 0 {
            events::raise(&process.own, events::SQ_DRAINED, self.index, self.qpn);
        }
    }
}

/// `ibv_modify_qp(3)`
///
/// # Safety
/// `qp` is alive, `attr` readable.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_modify_qp(qp: *mut sys::ibv_qp, attr: *mut sys::ibv_qp_attr, mask: c_int) -> c_int {
    border::code("ibv_modify_qp", || {
        let process = process::get()?;
        // SAFETY: alive and readable, as the caller guarantees.
        let (this, attr) = unsafe { (Qp::from_c(qp)?, attr.as_ref().ok_or(Errno(libc::EINVAL))?) };
        this.modify(process, attr, mask.cast_unsigned())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_missing_attribute_is_named() {
        for (from, to) in [(RESET, INIT), (INIT, RTR), (RTR, RTS)] {
            let (needed, _) = rules(from, to).expect("a transition");
            assert_eq!(check_mask(from, to, needed | STATE), Ok(()));
            for (bit, name) in NAMES.iter().filter(|(bit, _)| needed & bit != 0) {
                let error = check_mask(from, to, needed & !bit | STATE).expect_err("one is missing");
                assert!(error.contains(name), "{error}");
            }
            let error = check_mask(from, to, needed | STATE | QKEY).expect_err("one too many");
            assert!(error.contains("IBV_QP_QKEY"), "{error}");
        }
        assert!(check_mask(RESET, RTS, STATE).is_err());
        assert!(check_mask(INIT, INIT, CAP).is_err());
        assert_eq!(check_mask(RTS, ERR, STATE), Ok(()));
    }
}
