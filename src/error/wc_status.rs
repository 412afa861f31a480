//! Describes failed completions: the meaning of each `enum ibv_wc_status`, and what to check.

/// The most likely origin of a failed completion.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Blame {
    /// None: success, or a request flushed after an earlier failure.
    Nobody,
    /// This end: the request was invalid.
    Local,
    /// The peer, or memory that it advertised.
    Peer,
    /// The network between the two ends, or a peer that has ended.
    Path,
    /// The adapter or its driver.
    Device,
}

/// One status.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WcStatus {
    /// Name in `enum ibv_wc_status`.
    pub name: &'static str,
    /// What happened.
    pub(crate) meaning: &'static str,
    /// What to check.
    pub(crate) advice: &'static str,
    /// The likely origin.
    pub(crate) blame: Blame,
    /// Whether the request itself is wrong: any rail would refuse it. It ends the connection. Every
    /// other failure, one with an unknown number included, costs the rail.
    pub(crate) is_mistake: bool,
}

/// Looks a status up by number: a newer library may know more of them than this table.
pub const fn wc_status(number: u32) -> WcStatus {
    match TABLE.len() as u64 > number as u64 {
        true => TABLE[number as usize],
        false => WcStatus {
            name: "unknown status",
            meaning: "the verbs library reports a status that this plugin does not know",
            advice: "look the number up in enum ibv_wc_status of the installed infiniband/verbs.h",
            blame: Blame::Device,
            is_mistake: false,
        },
    }
}

/// Returns a status of a completion as logs show it: number, name and the vendor's code.
pub(crate) fn status_text(status: u32, vendor_err: u32) -> String {
    format!("status={status} {}, vendor error {vendor_err:#x}", wc_status(status).name)
}

const fn row(name: &'static str, blame: Blame, meaning: &'static str, advice: &'static str) -> WcStatus {
    WcStatus { name, meaning, advice, blame, is_mistake: false }
}

/// A row whose status shows a mistake in memory or lengths.
const fn mistake(name: &'static str, blame: Blame, meaning: &'static str, advice: &'static str) -> WcStatus {
    WcStatus { name, meaning, advice, blame, is_mistake: true }
}

const UNUSED: &str =
    "this plugin uses no such feature; look at the adapter's driver and firmware, and at dmesg";
const HEALTH: &str = "look at dmesg and at the adapter's health (firmware, PCIe errors)";

/// `IBV_WC_RETRY_EXC_ERR`
pub(crate) const RETRY_EXC: u32 = 12;

/// In the order of `enum ibv_wc_status`.
const TABLE: [WcStatus; 24] = [
    row("IBV_WC_SUCCESS", Blame::Nobody, "success", "nothing"),
    mistake(
        "IBV_WC_LOC_LEN_ERR",
        Blame::Local,
        "a message was longer than the adapter or the posted receive takes",
        "compare the message size with max_msg_sz of ibv_devinfo -v; do both ends run the same plugin?",
    ),
    row(
        "IBV_WC_LOC_QP_OP_ERR",
        Blame::Device,
        "the adapter refused the request or failed inside",
        "look at dmesg; rdma_rxe also reports a port that goes down so. If it comes again on a port that stays up, report it \
         with this line and the adapter's model: its driver may not take a request of this plugin",
    ),
    row("IBV_WC_LOC_EEC_OP_ERR", Blame::Device, "a fault in a reliable-datagram context", UNUSED),
    mistake(
        "IBV_WC_LOC_PROT_ERR",
        Blame::Local,
        "local memory of the request is not covered by its registration",
        "was the buffer freed or deregistered while the transfer ran? For GPU memory, is nvidia_peermem loaded or DMA-BUF in use, \
         and does PCIe ACS or an IOMMU stand between GPU and adapter (mpib doctor)? NCCL_NET_GDR_LEVEL=LOC does without GPUDirect",
    ),
    row(
        "IBV_WC_WR_FLUSH_ERR",
        Blame::Nobody,
        "the request was thrown away because its queue pair had failed before",
        "look for the first failure on this connection, at either end",
    ),
    row("IBV_WC_MW_BIND_ERR", Blame::Device, "binding a memory window failed", UNUSED),
    row(
        "IBV_WC_BAD_RESP_ERR",
        Blame::Peer,
        "the peer's adapter answered with an unexpected packet",
        "are two hosts using one GID or LID? Look at the peer's dmesg and firmware",
    ),
    row(
        "IBV_WC_LOC_ACCESS_ERR",
        Blame::Local,
        "the peer wrote to local memory that is not registered for that",
        "was a receive buffer deregistered while the transfer ran?",
    ),
    mistake(
        "IBV_WC_REM_INV_REQ_ERR",
        Blame::Peer,
        "the peer's adapter found the request invalid",
        "compare MTU and limits of both adapters (ibv_devinfo -v); do both ends run the same plugin?",
    ),
    mistake(
        "IBV_WC_REM_ACCESS_ERR",
        Blame::Peer,
        "the peer's memory is not registered for this access",
        "was the peer's buffer freed or deregistered, or did its process end or restart? Look at the peer's log. For GPU memory: \
         does PCIe ACS or an IOMMU stand between GPU and adapter there (mpib doctor)?",
    ),
    row(
        "IBV_WC_REM_OP_ERR",
        Blame::Peer,
        "the peer's adapter could not carry the request out",
        "look at the peer's log, which names a queue of it that has failed, and at its dmesg. For GPU memory: does PCIe ACS \
         or an IOMMU stand between GPU and adapter there (mpib doctor)?",
    ),
    row(
        "IBV_WC_RETRY_EXC_ERR",
        Blame::Path,
        "the peer did not acknowledge, however often it was tried",
        "is the peer's process alive? Is its port up (ibv_devinfo)? Do both GIDs lie on networks that reach each other (ping -I, \
         rping)? On RoCE: PFC/ECN and MTU on the switches. NCCL_IB_TIMEOUT and NCCL_IB_RETRY_CNT set how long an adapter tries: \
         34 to 137 s by default",
    ),
    row(
        "IBV_WC_RNR_RETRY_EXC_ERR",
        Blame::Peer,
        "the peer had no receive posted, however often it was tried",
        "is the peer's process stopped or starved of CPU?",
    ),
    row("IBV_WC_LOC_RDD_VIOL_ERR", Blame::Device, "a reliable-datagram domain mismatch", UNUSED),
    row("IBV_WC_REM_INV_RD_REQ_ERR", Blame::Device, "an invalid reliable-datagram request", UNUSED),
    row(
        "IBV_WC_REM_ABORT_ERR",
        Blame::Peer,
        "the peer aborted the operation",
        "look at the peer's log and dmesg",
    ),
    row("IBV_WC_INV_EECN_ERR", Blame::Device, "an invalid reliable-datagram context number", UNUSED),
    row("IBV_WC_INV_EEC_STATE_ERR", Blame::Device, "a reliable-datagram context in the wrong state", UNUSED),
    row("IBV_WC_FATAL_ERR", Blame::Device, "the adapter failed", HEALTH),
    row(
        "IBV_WC_RESP_TIMEOUT_ERR",
        Blame::Path,
        "the peer's answer did not come in time",
        "is the peer's process alive and its port up? Look at both ends' dmesg",
    ),
    row("IBV_WC_GENERAL_ERR", Blame::Device, "the adapter reports an error without a kind", HEALTH),
    row("IBV_WC_TM_ERR", Blame::Device, "a fault in tag matching", UNUSED),
    row("IBV_WC_TM_RNDV_INCOMPLETE", Blame::Device, "a tag-matching rendezvous is incomplete", UNUSED),
];

#[cfg(test)]
mod tests {
    use mpib_test_env::stands_in_the_guide;

    use super::*;

    #[test]
    fn the_guide_has_the_statuses() {
        let mut statuses = String::from("| status | meaning | what to check |\n|---|---|---|\n");
        let used = TABLE.iter().enumerate().skip(1).filter(|(_, row)| row.advice != UNUSED);
        for (number, WcStatus { name, meaning, advice, .. }) in used {
            statuses += &format!("| {number} `{name}` | {meaning} | {advice} |\n");
        }
        stands_in_the_guide("errors.md", "statuses", &statuses);
    }

    /// Numbers from `infiniband/verbs.h`.
    #[test]
    fn numbers_meet_their_names() {
        for (n, name) in [
            (0, "IBV_WC_SUCCESS"),
            (1, "IBV_WC_LOC_LEN_ERR"),
            (4, "IBV_WC_LOC_PROT_ERR"),
            (5, "IBV_WC_WR_FLUSH_ERR"),
            (9, "IBV_WC_REM_INV_REQ_ERR"),
            (10, "IBV_WC_REM_ACCESS_ERR"),
            (12, "IBV_WC_RETRY_EXC_ERR"),
            (13, "IBV_WC_RNR_RETRY_EXC_ERR"),
            (19, "IBV_WC_FATAL_ERR"),
            (21, "IBV_WC_GENERAL_ERR"),
            (23, "IBV_WC_TM_RNDV_INCOMPLETE"),
            (24, "unknown status"),
            (u32::MAX, "unknown status"),
        ] {
            assert_eq!(wc_status(n).name, name);
        }
    }

    /// The documents name the same statuses as the table.
    #[test]
    fn documents_list_the_statuses_that_end_a_connection() {
        let mistakes: Vec<_> = (0..).map_while(|n| TABLE.get(n)).filter(|row| row.is_mistake).collect();
        let names: Vec<_> = mistakes.iter().map(|row| row.name).collect();
        let guide = include_str!("../../docs/guide/failover.md");
        let row = guide.lines().find(|line| line.starts_with("| a completion with `IBV_WC_"));
        let listed: Vec<_> =
            row.unwrap_or_default().split('`').filter(|word| word.starts_with("IBV_WC_")).collect();
        assert_eq!(listed, names, "docs/guide/failover.md");
        let protocol = include_str!("../../docs/internals/protocol.md").replace('\n', " ");
        let short: Vec<_> =
            names.iter().map(|name| name.trim_start_matches("IBV_WC_").trim_end_matches("_ERR")).collect();
        let list = format!("({}) are mistakes", short.join(", "));
        assert!(protocol.contains(&list), "docs/internals/protocol.md has no {list:?}");
    }
}
