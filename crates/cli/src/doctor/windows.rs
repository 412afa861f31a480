//! Checks which network NCCL would use for what programs do in windows: `ncclPutSignal`, GIN and
//! collectives on them. `docs/guide/one-sided.md` is the page for users.

use nccl_net_mpib_agent_iface::doctor::{Check, Level, Port};

use super::search::{Release, numbers};

const ID: &str = "windows";

/// The first release with GIN, which belonged to the network plugin.
const GIN: Release = [2, 28, 9];
/// The first release that takes its own InfiniBand code beside any network plugin.
const OWN: Release = [2, 29, 2];
/// The first release that has GIN along rails, without ncclPutSignal, with `NCCL_CROSS_NIC=0`.
const ALONG_RAILS: Release = [2, 29, 7];
/// The first release that uses this plugin's RMA table, and in which `NCCL_NUM_RMA_CTX=0` turns
/// `ncclPutSignal` off.
const RMA: Release = [2, 30, 7];

/// With it, NCCL joins only the ranks of one rail for one-sided traffic.
const CROSS_NIC: &str = "NCCL_CROSS_NIC=0";

/// Returns which network it is. `release`: absent if it is not known, and then a new one. `reached`:
/// adapters may reach the memory of GPUs. `variable` returns the value of a variable of the
/// environment.
pub(super) fn check(
    release: Option<&str>,
    ports: &[Port],
    reached: bool,
    variable: impl Fn(&str) -> Option<String>,
) -> Check {
    let number = |name: &str| variable(name)?.trim().parse::<i64>().ok();
    let is_before = |first: Release| release.and_then(numbers).is_some_and(|release| release < first);
    if is_before(GIN) {
        return Check::new(ID, Level::Ok, "this NCCL does nothing in windows of other hosts");
    }
    if is_before(OWN) {
        let text = "no GIN: in this NCCL it belongs to the network plugin, and this one has none";
        return Check::new(ID, Level::Ok, text);
    }
    if !reached {
        let text =
            "none between hosts, and no GIN: no adapter reaches GPU memory (line gpu); ncclPutSignal fails";
        return Check::new(ID, Level::Note, text);
    }
    let is_ours = !is_before(RMA) && number("MPIB_RMA") != Some(0);
    if !is_ours && number("NCCL_IB_DISABLE").is_some_and(|value| value != 0) {
        let text = "none between hosts, and no GIN: NCCL_IB_DISABLE turns NCCL's own InfiniBand code off, and this \
                    plugin has none of it; ncclPutSignal fails";
        return Check::new(ID, Level::Note, text);
    }
    let kernels = number("NCCL_SYM_GIN_KERNELS_ENABLE") != Some(0);
    if number("NCCL_GIN_ENABLE") == Some(0) && kernels {
        let text =
            "NCCL_GIN_ENABLE=0: ncclCommWindowRegister fails in jobs of several hosts (\"GIN is disabled\")";
        return Check::new(ID, Level::Warn, text)
            .remedy("unset it; NCCL_NUM_RMA_CTX=0 and NCCL_SYM_GIN_KERNELS_ENABLE=0 turn both networks off");
    }
    let active = |port: &&Port| port.selected && port.state.as_ref().is_some_and(|state| state.active);
    let ports: Vec<String> = ports.iter().filter(active).map(|port| port.name()).collect();
    // What turns ncclPutSignal off.
    let off = match number("NCCL_CROSS_NIC") {
        Some(0) if !is_before(ALONG_RAILS) => Some(CROSS_NIC),
        _ if is_before(RMA) => None,
        _ => (number("NCCL_NUM_RMA_CTX") == Some(0)).then_some("NCCL_NUM_RMA_CTX=0"),
    };
    if is_ours {
        return ours(off, number("NCCL_GIN_TYPE"));
    }
    if ports.is_empty() {
        let text = "none between hosts, and no GIN: NCCL's own InfiniBand code finds no active port, and this plugin \
                    has none of it";
        return Check::new(ID, Level::Note, text);
    }
    let gin = match number("NCCL_GIN_TYPE") {
        Some(2) => "by its proxy (NCCL_GIN_TYPE=2)".into(),
        Some(3) => "from the GPU (NCCL_GIN_TYPE=3)".into(),
        Some(kind) => format!("as NCCL_GIN_TYPE={kind}"),
        None => "from the GPU on mlx5 adapters, by its proxy on others".into(),
    };
    let network = format!("NCCL's own InfiniBand code on {}, not this plugin", ports.join(", "));
    let cables = if is_before(RMA) { CABLES_BEFORE } else { CABLES };
    match (off, kernels) {
        (Some(setting), false) => {
            let text = format!(
                "windows work inside a host ({setting}, NCCL_SYM_GIN_KERNELS_ENABLE=0); GIN that a program \
                 requests would use {network}, {gin}"
            );
            Check::new(ID, Level::Ok, text)
        }
        (Some(setting), true) => {
            let text = format!("no ncclPutSignal ({setting}); windows and GIN would use {network}, {gin}");
            Check::new(ID, Level::Note, text).remedy(cables)
        }
        (None, _) => {
            let text = format!(
                "ncclPutSignal, GIN and collectives in windows would use {network}: without its rails, shares and \
                 failover; GIN {gin}"
            );
            Check::new(ID, Level::Note, text).remedy(cables)
        }
    }
}

/// Returns the check of a release that uses this plugin's RMA table. `off`: what turns
/// `ncclPutSignal` off.
fn ours(off: Option<&str>, gin: Option<i64>) -> Check {
    if off == Some(CROSS_NIC) {
        let text = "no ncclPutSignal, and GIN only along rails (NCCL_CROSS_NIC=0), which fails in programs that need \
                    all ranks";
        return Check::new(ID, Level::Note, text)
            .remedy("unset NCCL_CROSS_NIC for programs with one-sided traffic");
    }
    let puts = match off {
        Some(setting) => format!("no ncclPutSignal ({setting}); collectives in windows"),
        None => "ncclPutSignal and collectives in windows".into(),
    };
    let gin = match gin {
        Some(2) => "GIN by its proxy, over this plugin, too (NCCL_GIN_TYPE=2)".into(),
        Some(kind) => format!("GIN as NCCL_GIN_TYPE={kind}, beside this plugin"),
        None => "GIN too, but from the GPU itself on mlx5 adapters, unless NCCL_GIN_TYPE=2".into(),
    };
    Check::new(ID, Level::Ok, format!("{puts} use this plugin, with its rails and failover; {gin}"))
}

/// What to do for hosts whose ports do not all reach each other.
const CABLES: &str = "if the hosts are joined by cables, set NCCL_NUM_RMA_CTX=0 and NCCL_SYM_GIN_KERNELS_ENABLE=0: \
                      ncclCommWindowRegister fails otherwise, or crashes";
/// The same before [`RMA`].
const CABLES_BEFORE: &str = "if the hosts are joined by cables, set NCCL_CROSS_NIC=0 and NCCL_SYM_GIN_KERNELS_ENABLE=0 until you have NCCL \
     2.30.7: ncclCommWindowRegister fails otherwise, or hangs";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::sysfs;

    fn found(release: Option<&str>, ports: &[Port], set: &[(&str, &str)]) -> (Level, String) {
        let value = |name: &str| set.iter().find(|(set, _)| *set == name).map(|(_, v)| (*v).to_owned());
        let check = check(release, ports, true, value);
        (check.level, check.text + " -> " + &check.remedy.unwrap_or_default())
    }

    //= doctor.md: which network NCCL would use for windows
    #[test]
    fn the_network_of_windows_follows_from_release_and_settings() {
        let port = |hca| sysfs::port(hca, 100_000, None);
        let mut two = [port("a"), port("b"), port("c"), port("d")];
        two[2].selected = false;
        two[3].state.as_mut().unwrap().active = false;
        let cables = ("NCCL_NUM_RMA_CTX", "0");
        let nic = ("NCCL_CROSS_NIC", "0");
        let kernels = ("NCCL_SYM_GIN_KERNELS_ENABLE", "0");
        type Case<'a> = (Option<&'a str>, &'a [(&'a str, &'a str)], Level, &'a [&'a str]);
        let own = ("MPIB_RMA", "0");
        let cases: [Case<'_>; 22] = [
            (Some("2.27.7"), &[], Level::Ok, &["does nothing in windows of other hosts"]),
            (Some("2.28.9"), &[], Level::Ok, &["no GIN"]),
            (Some("2.29.7"), &[cables], Level::Note, &["ncclPutSignal, GIN", "set NCCL_CROSS_NIC=0 and"]),
            (
                Some("2.30.4"),
                &[nic],
                Level::Note,
                &["no ncclPutSignal (NCCL_CROSS_NIC=0); windows and", "2.30.7"],
            ),
            (Some("2.30.4"), &[nic, kernels], Level::Ok, &["inside a host (NCCL_CROSS_NIC=0, NCCL_SYM"]),
            (Some("2.29.3"), &[nic, kernels], Level::Note, &["ncclPutSignal, GIN and collectives"]),
            (Some("2.32.3"), &[nic, cables], Level::Note, &["GIN only along rails", "unset NCCL_CROSS_NIC"]),
            (Some("2.32.3"), &[own, nic, kernels], Level::Ok, &["inside a host (NCCL_CROSS_NIC=0"]),
            (
                Some("2.32.3"),
                &[("NCCL_CROSS_NIC", "2")],
                Level::Ok,
                &["ncclPutSignal and", "use this plugin"],
            ),
            (Some("2.30.7"), &[], Level::Ok, &["ncclPutSignal and", "use this plugin", "NCCL_GIN_TYPE=2"]),
            (
                None,
                &[("NCCL_GIN_TYPE", "2"), ("NCCL_IB_DISABLE", "1")],
                Level::Ok,
                &["GIN by its proxy, over this"],
            ),
            (
                None,
                &[("NCCL_GIN_TYPE", "3"), cables],
                Level::Ok,
                &["no ncclPutSignal", "GIN as NCCL_GIN_TYPE=3"],
            ),
            (
                Some("2.30.7"),
                &[own, cables],
                Level::Note,
                &["no ncclPutSignal (NCCL_NUM_RMA_CTX=0)", "on a:1, b:1, not"],
            ),
            (
                None,
                &[own],
                Level::Note,
                &["InfiniBand code on a:1, b:1, not this plugin", "set NCCL_NUM_RMA_CTX=0 and"],
            ),
            (None, &[own], Level::Note, &["GIN from the GPU on mlx5 adapters, by its proxy on others"]),
            (None, &[own, ("NCCL_GIN_TYPE", "2")], Level::Note, &["GIN by its proxy (NCCL_GIN_TYPE=2)"]),
            (None, &[own, ("NCCL_GIN_TYPE", "4")], Level::Note, &["GIN as NCCL_GIN_TYPE=4"]),
            (
                None,
                &[own, cables, kernels],
                Level::Ok,
                &["windows work inside a host", "GIN that a program requests"],
            ),
            (
                None,
                &[own, ("NCCL_IB_DISABLE", "1")],
                Level::Note,
                &["none between hosts", "ncclPutSignal fails"],
            ),
            (None, &[own, ("NCCL_IB_DISABLE", "0")], Level::Note, &["NCCL's own InfiniBand code on a:1"]),
            (None, &[("NCCL_GIN_ENABLE", "0")], Level::Warn, &["\"GIN is disabled\"", "unset it"]),
            (
                None,
                &[own, ("NCCL_GIN_ENABLE", "0"), kernels, cables],
                Level::Ok,
                &["windows work inside a host"],
            ),
        ];
        for (release, set, level, words) in cases {
            let (is, text) = found(release, &two, set);
            assert!(
                is == level && words.iter().all(|word| text.contains(word)),
                "{release:?} {set:?}: {is:?} {text}"
            );
        }
        let check = check(None, &two, false, |_| None);
        assert!(
            check.level == Level::Note && check.text.contains("no adapter reaches GPU memory"),
            "{check:?}"
        );
        let (level, text) = found(None, &two[2..], &[("MPIB_RMA", "0")]);
        assert!(level == Level::Note && text.contains("finds no active port"), "{text}");
    }
}
