//! The pairs of ports that carry no data, by cause: one finding for each, with what to do. The code of
//! the plugin's sentence is the cause.

use nccl_net_mpib_agent_iface::codes::{Code, Of};
use nccl_net_mpib_agent_iface::doctor::{Check, Level, Verdict};

use super::{head::short, peer::Row};
use crate::explain::plain;
use crate::output::units::counted;

const ID: &str = "routes";

/// The pairs with one cause.
struct Fault {
    code: Code,
    /// Both ports of each pair.
    pairs: Vec<String>,
    /// The cause in few words.
    why: String,
}

/// Judges the measurements. `here`, `there`: names of the two hosts.
pub(super) fn checks(rows: &[Row], here: &str, there: &str) -> Vec<Check> {
    let first = || rows.iter().filter(|row| row.pair.verdict == Verdict::First);
    let works = rows.iter().filter(|row| row.works()).count();
    if works == 0 {
        let what = match first().next() {
            None => "no port of this host can be joined to one of the other",
            Some(_) => "no way to the other host works",
        };
        return vec![nothing_works(what, &by_cause(rows, here, there), here, there)];
    }
    let failed: Vec<Row> = first().filter(|row| row.error().is_some()).cloned().collect();
    let check = |fault: &Fault| {
        let verb = if fault.pairs.len() == 1 { "does" } else { "do" };
        let text = format!("{} {verb} not work: {} [{}]", fault.pairs.join(", "), fault.why, fault.code);
        Check::new(ID, Level::Warn, text).remedy(fault.remedy(here, there))
    };
    let mut checks: Vec<Check> = by_cause(&failed, here, there).iter().map(check).collect();
    checks.push(Check::new(ID, Level::Ok, format!("data goes out and back on {}", counted(works, "way"))));
    checks
}

fn nothing_works(what: &str, faults: &[Fault], here: &str, there: &str) -> Check {
    let Some(first) = faults.first() else { return Check::new(ID, Level::Fail, what) };
    let each = |fault: &Fault| match fault.pairs.len() {
        1 => format!("{}: {}", fault.pairs[0], fault.why),
        n => format!("{} and {} more: {}", fault.pairs[0], n - 1, fault.why),
    };
    let causes: Vec<String> = faults.iter().map(each).collect();
    let remedies: Vec<String> = faults.iter().map(|fault| fault.remedy(here, there)).collect();
    let text = format!("{what}: {} [{}]", causes.join("; "), first.code);
    Check::new(ID, Level::Fail, text).remedy(remedies.join("; "))
}

/// Groups the pairs that do not work, in the order of the first of each group. Pairs of SOUT with SUP
/// are none: no connection joins them.
fn by_cause(rows: &[Row], here: &str, there: &str) -> Vec<Fault> {
    let mut faults: Vec<Fault> = Vec::new();
    let is_joined = |row: &&Row| ![" is SOUT, ", " is SUP, "].iter().any(|role| row.pair.why.contains(role));
    for row in rows.iter().filter(is_joined) {
        let code = Code::of_log(row.why());
        match faults.iter_mut().find(|fault| fault.code == code) {
            Some(fault) => fault.pairs.push(row.name()),
            None => faults.push(Fault { code, pairs: vec![row.name()], why: why(row, here, there) }),
        }
    }
    faults
}

/// Returns why a pair does not work, in few words.
fn why(row: &Row, here: &str, there: &str) -> String {
    match row.error() {
        Some(error) => in_short(error),
        None => with_hosts(&row.pair.why, (&row.pair.ours, here), (&row.pair.theirs, there)),
    }
}

/// Returns the cause of the plugin's sentence if it has a code of a cause, else its beginning.
pub(super) fn in_short(sentence: &str) -> String {
    match Code::of_log(sentence) {
        code if code.of == Of::Others => short(Code::take(sentence).0),
        code => plain(code.why),
    }
}

/// Adds the hosts to the first names of both ports: adapters of different hosts often have one name.
fn with_hosts(why: &str, ours: (&str, &str), theirs: (&str, &str)) -> String {
    let mut out = String::new();
    let mut rest = why;
    for (port, host) in [ours, theirs] {
        if let Some((before, after)) = rest.split_once(port) {
            out += &format!("{before}{port} of {host}");
            rest = after;
        }
    }
    out + rest
}

impl Fault {
    fn remedy(&self, here: &str, there: &str) -> String {
        let what = match self.code.of {
            Of::Others => {
                "cable, VLAN and MTU of the two ports, and the addresses of their interfaces".into()
            }
            _ => plain(self.code.what),
        };
        format!("on {here} and {there}: {what}")
    }
}

#[cfg(test)]
mod tests {
    use nccl_net_mpib_agent_iface::doctor::Pair;

    use super::*;
    use crate::doctor::peer::Measured;

    fn row(verdict: Verdict, out: Option<Result<f64, &str>>) -> Row {
        let pair =
            Pair { ours: "a:1".into(), theirs: "b:1".into(), verdict, way: None, why: "because".into() };
        let out = out.map(|outcome| Measured {
            gigabytes_per_second: outcome.ok(),
            error: outcome.err().map(str::to_owned),
        });
        let back = out.clone().filter(|m| m.error.is_none());
        Row { pair, out, back }
    }

    #[test]
    fn the_verdict_is_that_of_the_ways_that_are_tried_first() {
        use Verdict::{First, Later, Refused};
        let good = || row(First, Some(Ok(1.0)));
        let bad = || row(First, Some(Err("lost")));
        for (rows, levels) in [
            (vec![good(), row(Later, None)], &[Level::Ok][..]),
            (vec![good(), bad(), row(Refused, None)], &[Level::Warn, Level::Ok]),
            (vec![bad(), row(Later, Some(Ok(1.0)))], &[Level::Warn, Level::Ok]),
            (vec![bad(), row(Later, Some(Err("lost too")))], &[Level::Fail]),
            (vec![row(Refused, None)], &[Level::Fail]),
            (vec![], &[Level::Fail]),
        ] {
            let found: Vec<_> = checks(&rows, "node1", "node2").iter().map(|c| c.level).collect();
            assert_eq!(found, levels, "{rows:?}");
        }
    }

    /// Each cause has what to do for it, and both hosts.
    //= doctor.md: pairs that do not work are grouped by cause, with what to do at both hosts
    #[test]
    fn pairs_of_one_cause_are_one_finding_that_names_both_hosts() {
        use Verdict::First;
        let lost = "connect: no rail works to 192.0.2.7: a:1 to b:1: the probe did not complete in time (MPIB_PROBE) [MPIB-317]";
        let mtu = "no rail works to …: empty packets arrive, and those of 4096 bytes do not: is the peer's process alive?";
        let rows = [
            row(First, Some(Ok(1.0))),
            row(First, Some(Err(lost))),
            row(First, Some(Err(mtu))),
            row(First, Some(Err(lost))),
            row(First, Some(Err("of no known cause"))),
        ];
        let found = checks(&rows, "node1", "node2");
        let seen: Vec<_> = found
            .iter()
            .map(|c| (&*c.text, c.code.as_deref(), c.remedy.as_deref().unwrap_or_default()))
            .collect();
        assert_eq!(
            seen,
            [
                (
                    "a:1 to b:1, a:1 to b:1 do not work: nothing came through: a wrong network, VLAN or cable",
                    Some("MPIB-317"),
                    "on node1 and node2: ping -I from port to port; address, VLAN and cable of both"
                ),
                (
                    "a:1 to b:1 does not work: a smaller MTU on the way",
                    Some("MPIB-316"),
                    "on node1 and node2: MTU of switches and interfaces"
                ),
                (
                    "a:1 to b:1 does not work: of no known cause",
                    Some("MPIB-100"),
                    "on node1 and node2: cable, VLAN and MTU of the two ports, and the addresses of their interfaces"
                ),
                ("data goes out and back on 1 way", None, ""),
            ]
        );
    }

    #[test]
    fn ports_of_one_name_have_their_hosts() {
        let why = "m:1 speaks RoCE v2, m:1 speaks RoCE v1";
        let named = with_hosts(why, ("m:1", "node1"), ("m:1", "node2"));
        assert_eq!(named, "m:1 of node1 speaks RoCE v2, m:1 of node2 speaks RoCE v1");
        let pair = Pair {
            ours: "m:1".into(),
            theirs: "m:1".into(),
            verdict: Verdict::Refused,
            way: None,
            why: why.into(),
        };
        let found = checks(&[Row { pair, out: None, back: None }], "node1", "node2");
        assert_eq!(found[0].code.as_deref(), Some("MPIB-329"));
        assert!(found[0].text.ends_with(&named), "{found:?}");
        assert!(
            found[0].remedy.as_ref().unwrap().starts_with("on node1 and node2: the same NCCL_IB_ROCE"),
            "{found:?}"
        );
    }
}
