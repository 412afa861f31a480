//! `NCCL_IB_HCA`: which ports may be used.

/// A parsed `NCCL_IB_HCA`: `[^][=]name[:port[:rail[:plane]]],…`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct HcaFilter {
    exclude: bool,
    exact: bool,
    entries: Vec<Entry>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Entry {
    name: String,
    port: Option<u8>,
    rail: Option<i16>,
    plane: Option<i16>,
}

/// What the filter says of a port that it lets through: rail and plane, -1 where it says nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// `railId` of the device's properties.
    pub rail: i16,
    /// `planeId`
    pub plane: i16,
}

impl HcaFilter {
    /// An empty text lets everything through.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let text = text.trim();
        let (exclude, rest) = text.strip_prefix('^').map_or((false, text), |r| (true, r));
        let (exact, rest) = rest.strip_prefix('=').map_or((false, rest), |r| (true, r));
        let entries = rest
            .split(',')
            .map(str::trim)
            .filter(|e| !e.is_empty())
            .map(|e| {
                Entry::parse(e)
                    .ok_or_else(|| format!("NCCL_IB_HCA={text:?}: {e:?} is not name[:port[:rail[:plane]]]"))
            })
            .collect::<Result<Vec<_>, _>>()?;
        if exclude && entries.is_empty() {
            return Err(format!("NCCL_IB_HCA={text:?} names no device to leave out"));
        }
        Ok(Self { exclude, exact, entries })
    }

    /// `None` where the port is filtered out.
    pub(super) fn place(&self, hca: &str, port: u8) -> Option<Place> {
        const NOWHERE: Place = Place { rail: -1, plane: -1 };
        let hit = self.entries.iter().find(|e| {
            let named = if self.exact { hca == e.name } else { hca.starts_with(&e.name) };
            named && e.port.is_none_or(|p| p == port)
        });
        match (hit, self.exclude) {
            _ if self.entries.is_empty() => Some(NOWHERE),
            (Some(_), true) | (None, false) => None,
            (None, true) => Some(NOWHERE),
            (Some(e), false) => Some(Place { rail: e.rail.unwrap_or(-1), plane: e.plane.unwrap_or(-1) }),
        }
    }
}

impl Entry {
    fn parse(text: &str) -> Option<Self> {
        let mut parts = text.split(':');
        let name = parts.next().filter(|n| !n.is_empty())?.to_owned();
        let port = parts.next().map(str::parse).transpose().ok()?;
        let rail = parts.next().map(str::parse).transpose().ok()?;
        let plane = parts.next().map(str::parse).transpose().ok()?;
        parts.next().is_none().then_some(Self { name, port, rail, plane })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lets(text: &str, hca: &str, port: u8) -> bool {
        HcaFilter::parse(text).unwrap().place(hca, port).is_some()
    }

    #[test]
    fn prefixes_exact_names_and_exclusion() {
        assert!(lets("", "mlx5_0", 1));
        assert!(lets("mlx5", "mlx5_0", 1) && !lets("mlx5", "bnxt_re0", 1));
        assert!(lets("mlx5_1", "mlx5_10", 1) && !lets("=mlx5_1", "mlx5_10", 1));
        assert!(!lets("^mlx5_1", "mlx5_10", 1) && lets("^=mlx5_1", "mlx5_10", 1));
        assert!(lets("=mlx5_1, mlx5_3", "mlx5_3", 2));
    }

    #[test]
    fn ports_rails_and_planes() {
        assert!(lets("mlx5_0:2", "mlx5_0", 2) && !lets("mlx5_0:2", "mlx5_0", 1));
        assert!(lets("^mlx5_0:2", "mlx5_0", 1) && !lets("^mlx5_0:2", "mlx5_0", 2));
        let filter = HcaFilter::parse("=mlx5_0:1:3:7").unwrap();
        assert_eq!(filter.place("mlx5_0", 1), Some(Place { rail: 3, plane: 7 }));
    }

    #[test]
    fn nonsense_is_named() {
        for bad in ["mlx5_0:x", ":1", "mlx5_0:1:2:3:4", "mlx5_0:300", "^"] {
            let said = HcaFilter::parse(bad).unwrap_err();
            assert!(said.contains("NCCL_IB_HCA"), "{said}");
        }
    }
}
