//! The names of errnos and of completion statuses, as the headers of C write them.

use std::ffi::c_int;

use rdma_sys::ibv_wc_status as wc;

macro_rules! names {
    ($in:ident: $($name:ident)*) => { &[$((stringify!($name), $in::$name),)*] };
}

const ERRNOS: &[(&str, c_int)] = names! {libc:
    EPERM ENOENT ESRCH EINTR EIO ENXIO E2BIG EBADF EAGAIN EWOULDBLOCK ENOMEM EACCES EFAULT EBUSY EEXIST
    ENODEV EINVAL ENFILE EMFILE ENOTTY EFBIG ENOSPC EPIPE EDOM ERANGE EDEADLK ENAMETOOLONG ENOSYS ENODATA
    ETIME ECOMM EPROTO EOVERFLOW EBADFD EREMOTEIO EMSGSIZE EPROTONOSUPPORT ENOTSUP EOPNOTSUPP
    EAFNOSUPPORT EADDRINUSE EADDRNOTAVAIL ENETDOWN ENETUNREACH ENETRESET ECONNABORTED ECONNRESET
    ENOBUFS EISCONN ENOTCONN ESHUTDOWN ETIMEDOUT ECONNREFUSED EHOSTDOWN EHOSTUNREACH EALREADY
    EINPROGRESS ESTALE EDQUOT ECANCELED EKEYEXPIRED EKEYREVOKED EKEYREJECTED
};

const STATUSES: &[(&str, u32)] = names! {wc:
    IBV_WC_LOC_LEN_ERR IBV_WC_LOC_QP_OP_ERR IBV_WC_LOC_EEC_OP_ERR IBV_WC_LOC_PROT_ERR
    IBV_WC_WR_FLUSH_ERR IBV_WC_MW_BIND_ERR IBV_WC_BAD_RESP_ERR IBV_WC_LOC_ACCESS_ERR
    IBV_WC_REM_INV_REQ_ERR IBV_WC_REM_ACCESS_ERR IBV_WC_REM_OP_ERR IBV_WC_RETRY_EXC_ERR
    IBV_WC_RNR_RETRY_EXC_ERR IBV_WC_LOC_RDD_VIOL_ERR IBV_WC_REM_INV_RD_REQ_ERR IBV_WC_REM_ABORT_ERR
    IBV_WC_INV_EECN_ERR IBV_WC_INV_EEC_STATE_ERR IBV_WC_FATAL_ERR IBV_WC_RESP_TIMEOUT_ERR
    IBV_WC_GENERAL_ERR IBV_WC_TM_ERR IBV_WC_TM_RNDV_INCOMPLETE
};

fn of<T: Copy>(names: &[(&str, T)], text: &str) -> Option<T> {
    names.iter().find(|(name, _)| *name == text).map(|(_, value)| *value)
}

/// Parses an errno: its name or its number, from 1.
pub(super) fn errno(text: &str) -> Result<c_int, String> {
    let number = || text.parse().ok().filter(|errno| (1..4096).contains(errno));
    of(ERRNOS, text)
        .or_else(number)
        .ok_or_else(|| format!("found {text:?}, expected the name or the number of an errno, like EIO or 5"))
}

/// Returns a completion status by its name.
pub(super) fn status(text: &str) -> Option<u32> {
    of(STATUSES, text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errnos_and_statuses_have_the_names_of_the_headers() {
        assert_eq!(errno("ETIMEDOUT"), Ok(110));
        assert_eq!(errno("EOPNOTSUPP"), errno("95"));
        for bad in ["", "0", "4096", "eio", "-5"] {
            assert!(errno(bad).is_err_and(|why| why.contains("errno")), "{bad}");
        }
        // Every status but success, without a gap.
        let numbers: Vec<_> = STATUSES.iter().map(|(_, number)| *number).collect();
        assert_eq!(numbers, (1..=23).collect::<Vec<_>>());
        assert_eq!((status("IBV_WC_REM_ACCESS_ERR"), status("IBV_WC_SUCCESS")), (Some(10), None));
    }
}
