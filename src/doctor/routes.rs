//! Which port of this host reaches which of another host, by the code that both ends of a
//! connection run.

use mpib_proto::{Ends, Hello, MAX_FRAME_BYTES, Message};
use nccl_net_mpib_agent_iface::doctor::{FORMAT, Pair, Routes, Verdict};

use crate::route::{Choice, Class, End, Route};
use crate::split::Plan;

/// Compares the `hello` fields of two reports. This host is the one that connects.
pub(crate) fn routes(ours: &[u8], theirs: &[u8]) -> Routes {
    let empty = Routes { format: FORMAT, error: None, differences: Vec::new(), pairs: Vec::new() };
    let read =
        |whose: &str, text| hello(text).map_err(|e| format!("the hello field of {whose} host's report: {e}"));
    match read("this", ours).and_then(|ours| Ok((ours, read("the other", theirs)?))) {
        Ok((ours, theirs)) => {
            let differences = ours.terms.differences(&theirs.terms);
            Routes { differences, pairs: pairs(&ours, &theirs), ..empty }
        }
        Err(e) => Routes { error: Some(e), ..empty },
    }
}

fn hello(text: &[u8]) -> Result<Hello, String> {
    let digit = |b: &u8| char::from(*b).to_digit(16).and_then(|d| u8::try_from(d).ok());
    let (whole, rest) = text.as_chunks::<2>();
    if !rest.is_empty() || whole.is_empty() || whole.len() > MAX_FRAME_BYTES {
        return Err(format!("{} digits, expected an even number up to {}", text.len(), 2 * MAX_FRAME_BYTES));
    }
    let byte = |[high, low]: &[u8; 2]| Some(digit(high)? << 4 | digit(low)?);
    let bytes: Option<Vec<u8>> = whole.iter().map(byte).collect();
    match Message::decode(&bytes.ok_or("not hexadecimal")?).map_err(|e| e.to_string())? {
        Message::Hello(hello) => Ok(hello),
        other => Err(format!("{}, expected HELLO", other.name())),
    }
}

/// Returns why a rail of a vanilla connection is kept in reserve.
const fn reserve(plan: Plan) -> &'static str {
    match plan {
        Plan::Isolated(Class::Intra) => "kept in reserve: within an island SUP carries all data",
        _ => "kept in reserve: the hosts are of two islands, which SOUT joins",
    }
}

fn pairs(ours: &Hello, theirs: &Hello) -> Vec<Pair> {
    let plan = Plan::new(&ours.terms, &theirs.terms, &ours.rails, &theirs.rails);
    let Choice { first, rest, refused, .. } = plan.choose(ours.terms.route, ours, theirs, 0);
    let ends = Ends { connector: ours, acceptor: theirs }.map(End::from);
    let pair = |rails: Ends<usize>, verdict, way, why| Pair {
        ours: ours.rails[rails.connector].name.clone(),
        theirs: theirs.rails[rails.acceptor].name.clone(),
        verdict,
        way,
        why,
    };
    let all: Vec<Route> = [&first[..], &rest].concat();
    let joined = |verdict: Verdict, route: &Route| {
        let more = all.iter().filter(|r| r.rails == route.rails).count() - 1;
        let role = ours.rails[route.rails.connector].role;
        let (verdict, why) = match (plan.joins(role), plan.requires(role)) {
            (true, true) => (verdict, route.why(&ends)),
            (true, false) => (verdict, format!("stands in while SUP does not work; {}", route.why(&ends))),
            (false, _) => (Verdict::Later, reserve(plan).to_owned()),
        };
        let why = match more {
            0 => why,
            _ => format!("{why}; pairs of their addresses that follow: {more}"),
        };
        pair(route.rails, verdict, Some(route.describe(&ends)), why)
    };
    // A pair of ports is listed once, with the addresses that are tried first.
    let first = first.iter().map(|route| joined(Verdict::First, route));
    let rest = rest.iter().filter(|route| route.alternate == 0).map(|route| joined(Verdict::Later, route));
    let refused = refused.iter().map(|r| pair(r.rails, Verdict::Refused, None, r.why.clone()));
    first.chain(rest).chain(refused).collect()
}

#[cfg(test)]
mod tests {
    use mpib_proto::{Claim, RailInfo};

    use super::*;
    use crate::config::Config;
    use crate::route::tests::with;
    use crate::split;

    fn hello_of(rails: Vec<RailInfo>) -> Hello {
        Hello {
            claim: Claim::default(),
            pid: 1,
            host: "node".into(),
            terms: split::terms(&Config::default(), false),
            rotation: 0,
            others: false,
            wiring_follows: false,
            rails,
            unusable: Vec::new(),
        }
    }

    /// Each pair of ports is one row, in the order of the attempts, with the addresses that are
    /// tried first.
    #[test]
    fn a_pair_with_several_pairs_of_addresses_is_one_row() {
        let dual = |name: &str, n: u8| {
            with(name, &[(&format!("10.{n}.0.1"), 31), (&format!("fd00::{n}"), 64)], true)
        };
        let (ours, theirs) = (hello_of(vec![dual("a", 1)]), hello_of(vec![dual("b", 2), dual("c", 3)]));
        let rows = pairs(&ours, &theirs);
        let text = |pair: &Pair| (pair.theirs.clone(), pair.verdict, pair.way.clone().unwrap());
        assert_eq!(
            rows.iter().map(text).collect::<Vec<_>>(),
            [
                ("b".into(), Verdict::First, "a (10.1.0.1/31) to b (10.2.0.1/31)".into()),
                ("c".into(), Verdict::Later, "a (10.1.0.1/31) to c (10.3.0.1/31)".into()),
            ]
        );
        assert!(rows.iter().all(|pair| pair.why.ends_with("; pairs of their addresses that follow: 1")));
    }

    //= doctor.md: routers are named only between networks that are known to differ
    #[test]
    fn routers_are_named_only_if_the_networks_are_known_to_differ() {
        for (ours, theirs, expected) in [
            (("10.0.0.1", 24), ("10.0.0.2", 24), "both rails were requested and share a subnet"),
            (("10.0.0.1", 24), ("10.0.1.2", 24), "share no subnet, and routers must join them"),
            (("10.0.0.1", 24), ("10.0.1.2", 0), "share no subnet, and routers must join them"),
            (("172.16.0.1", 0), ("172.16.0.2", 0), "may share a subnet: no network interface of one"),
            (("172.16.0.1", 24), ("172.16.0.2", 0), "may share a subnet: no network interface of one"),
            (("169.254.11.1", 16), ("169.254.21.2", 16), "link-local addresses, which reach each other on"),
            (("fe80::1", 0), ("fe80::2", 64), "link-local addresses, which reach each other on one link"),
        ] {
            let hello = |name: &str, addr: (&str, u8)| hello_of(vec![with(name, &[addr], false)]);
            let rows = pairs(&hello("a", ours), &hello("b", theirs));
            assert_eq!(rows.len(), 1);
            assert!(rows[0].why.contains(expected), "{ours:?} {theirs:?}: {}", rows[0].why);
        }
    }

    #[test]
    fn what_is_no_hello_is_an_error_that_says_whose() {
        for (text, expected) in [
            (&b""[..], "0 digits"),
            (b"abc", "3 digits"),
            (b"zz", "not hexadecimal"),
            (b"ff00", "the hello field of this host's report: "),
        ] {
            let routes = routes(text, b"");
            assert!(routes.error.as_ref().is_some_and(|e| e.contains(expected)), "{routes:?}");
            assert!(routes.pairs.is_empty());
        }
    }
}
