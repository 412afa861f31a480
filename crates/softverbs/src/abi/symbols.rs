//! The symbols of the shared library `libibverbs.so.1` that `build-libibverbs.sh` builds. With this
//! list a tool can determine whether a program would load.

const LIST: &str = include_str!("../../ibverbs.symbols");
/// The symbols that the library exports in addition to those of rdma-core.
pub const OWN: [&str; 3] = ["softverbs_complete_at_once", "softverbs_counters_json", "softverbs_run_faults"];
/// Version of [`OWN`].
pub const OWN_VERSION: &str = "SOFTVERBS";

/// A symbol that both rdma-core's library and this one export.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Symbol {
    /// Name in C.
    pub name: &'static str,
    /// Version, like `IBVERBS_1.1`.
    pub version: &'static str,
    /// Whether this is the default version (`@@`), to which programs are linked today.
    pub default: bool,
    /// Whether the function is implemented. Otherwise it fails with EOPNOTSUPP.
    pub supported: bool,
}

/// Returns all symbols, as listed in `ibverbs.symbols`.
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
