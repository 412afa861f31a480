//! The symbols of the stand-in library, for whoever wants to know whether a program would load on it.

const LIST: &str = include_str!("../../ibverbs.symbols");
/// What the stand-in library exports besides libibverbs.
pub const OWN: &str = "softverbs_counters_json";
/// The version of [`OWN`].
pub const OWN_VERSION: &str = "SOFTVERBS";

/// A symbol that rdma-core's library exports, and so does ours.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Symbol {
    /// Name in C.
    pub name: &'static str,
    /// Version, like `IBVERBS_1.1`.
    pub version: &'static str,
    /// Whether programs are linked with this version today (`@@`), not only old ones (`@`).
    pub default: bool,
    /// Whether it does what it should, not only fail with EOPNOTSUPP.
    pub supported: bool,
}

/// The list `ibverbs.symbols`.
pub fn symbols() -> impl Iterator<Item = Symbol> {
    LIST.lines().filter(|line| !line.starts_with('#')).filter_map(|line| {
        let mut words = line.split_whitespace();
        let (symbol, kind) = (words.next()?, words.next()?);
        let (name, version) = symbol.split_once('@')?;
        let (version, default) = version.strip_prefix('@').map_or((version, false), |v| (v, true));
        Some(Symbol { name, version, default, supported: kind == "defined" })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_line_of_the_list_is_a_symbol() {
        let lines = LIST.lines().filter(|l| !l.starts_with('#')).count();
        assert_eq!(symbols().count(), lines);
        let of =
            |name| symbols().filter(move |s| s.name == name).map(|s| (s.version, s.default, s.supported));
        let open = [("IBVERBS_1.0", false, false), ("IBVERBS_1.1", true, true)];
        assert_eq!(of("ibv_open_device").collect::<Vec<_>>(), open);
    }
}
