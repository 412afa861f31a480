//! Names and filters of devices and interfaces, in NCCL's notation.

use std::fmt;
use std::str::FromStr;

use super::form::{Described, NotOfThisForm, items, number, shown};

/// Planes are below it: NCCL marks the planes of fused devices with this bit.
pub(crate) const PLANE_END: i16 = 1 << 14;

/// An HCA, or one port of an HCA.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HcaName {
    /// As `ibv_devices` lists it.
    pub(crate) name: String,
    /// From 1; `None` if the text names none.
    pub(crate) port: Option<u8>,
}

impl HcaName {
    /// Whether both mean the same port, or may mean it: a name without a port means the HCA's first
    /// active port.
    pub(crate) fn same_port(&self, other: &Self) -> bool {
        self.name == other.name && (self.port.is_none() || other.port.is_none() || self.port == other.port)
    }
}

impl Described for HcaName {
    const EXPECTED: &'static str = "`name[:port]`, as ibv_devices lists it";
}

impl FromStr for HcaName {
    type Err = NotOfThisForm;

    fn from_str(text: &str) -> Result<Self, NotOfThisForm> {
        let (name, port) = match text.split_once(':') {
            None => (text, None),
            Some((name, port)) => {
                let digits = port.bytes().all(|b| b.is_ascii_digit());
                let port =
                    port.parse().ok().filter(|p| *p >= 1u8 && digits).ok_or_else(NotOfThisForm::default)?;
                (name, Some(port))
            }
        };
        Ok(Self {
            name: plain_name(name).filter(|n| !n.contains(':')).ok_or_else(NotOfThisForm::default)?.into(),
            port,
        })
    }
}

impl fmt::Display for HcaName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)?;
        self.port.map_or(Ok(()), |port| write!(f, ":{port}"))
    }
}

/// Parses a list of `name[:port]:value` in which no port is named twice.
pub(super) fn per_port<T>(
    text: &str,
    value: impl Fn(&str) -> Option<T>,
) -> Result<Vec<(HcaName, T)>, NotOfThisForm> {
    let mut list: Vec<(HcaName, T)> = Vec::new();
    for item in items(text)? {
        let parsed = item.rsplit_once(':').and_then(|(name, of)| Some((name.parse().ok()?, value(of)?)));
        let (name, value): (HcaName, T) = parsed.ok_or_else(|| NotOfThisForm::of(item))?;
        if let Some((earlier, _)) = list.iter().find(|(earlier, _)| earlier.same_port(&name)) {
            let why = format!("its item {} names {earlier} a second time", shown(item));
            return Err(NotOfThisForm { item: Some(why) });
        }
        list.push((name, value));
    }
    Ok(list)
}

/// Returns the value of such a list for port `port` of this HCA.
pub(super) fn of_port<T: Copy>(list: &[(HcaName, T)], hca: &str, port: u8) -> Option<T> {
    let meant = |name: &HcaName| name.name == hca && name.port.is_none_or(|p| p == port);
    list.iter().find(|(name, _)| meant(name)).map(|(_, value)| *value)
}

/// Writes such a list.
pub(super) fn write_list<T: fmt::Display>(list: &[(HcaName, T)], f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let items: Vec<_> = list.iter().map(|(name, value)| format!("{name}:{value}")).collect();
    f.write_str(&items.join(","))
}

/// Accepts a device or interface name that the kernel may assign, without the filter's own signs and
/// without quotes, which no shell has removed.
fn plain_name(text: &str) -> Option<&str> {
    let good = |c: char| c.is_ascii_graphic() && !matches!(c, '/' | ',' | '^' | '=' | '"' | '\'');
    (!text.is_empty() && text.len() < 64 && text.chars().all(good)).then_some(text)
}

/// The common part of both kinds of filter: `[^][=]item,item…`
#[derive(Debug, Clone, PartialEq, Eq)]
struct Filter<T> {
    exclude: bool,
    exact: bool,
    items: Vec<T>,
}

impl<T> Filter<T> {
    fn parse(text: &str, item: impl Fn(&str) -> Option<T>) -> Result<Self, NotOfThisForm> {
        let (exclude, text) = text.strip_prefix('^').map_or((false, text), |rest| (true, rest));
        let (exact, text) = text.strip_prefix('=').map_or((false, text), |rest| (true, rest));
        let parsed = |text: &str| item(text).ok_or_else(|| NotOfThisForm::of(text));
        let items = items(text)?.into_iter().map(parsed).collect::<Result<_, _>>()?;
        Ok(Self { exclude, exact, items })
    }

    fn same(&self, pattern: &str, name: &str) -> bool {
        if self.exact { pattern == name } else { name.starts_with(pattern) }
    }

    /// Returns each item that is a whole name and the beginning of names that no item spells out, with
    /// all names that it hits. `hit` returns these, in any order.
    fn broad<'a>(&self, hit: impl Fn(&T) -> Vec<&'a str>) -> Vec<Broad<'a>>
    where
        T: AsRef<str> + fmt::Display,
    {
        let is_item = |name: &&str| self.items.iter().any(|item| item.as_ref() == *name);
        let of = |item: &T| {
            let mut names = hit(item);
            names.sort_unstable();
            names.dedup();
            let whole = names.iter().copied().find(|name| *name == item.as_ref())?;
            let others = names.iter().any(|name| !is_item(name));
            others.then(|| Broad { item: item.to_string(), whole, names })
        };
        self.items.iter().filter_map(of).collect()
    }

    /// Returns the place of the first item that `hit`s, 0 for what an excluding filter leaves, and
    /// `None` for what the filter does not select.
    fn rank(&self, hit: impl Fn(&T) -> bool) -> Option<usize> {
        let found = self.items.iter().position(hit);
        if self.exclude { found.is_none().then_some(0) } else { found }
    }
}

/// An item of a filter that hits more names than the one that it spells out.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Broad<'a> {
    /// Its text.
    pub(crate) item: String,
    /// The name that it spells out.
    pub(crate) whole: &'a str,
    /// All that it hits, sorted.
    pub(crate) names: Vec<&'a str>,
}

impl<T: fmt::Display> fmt::Display for Filter<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let signs = [if self.exclude { "^" } else { "" }, if self.exact { "=" } else { "" }];
        let items: Vec<String> = self.items.iter().map(ToString::to_string).collect();
        write!(f, "{}{}{}", signs[0], signs[1], items.join(","))
    }
}

/// An item of `NCCL_IB_HCA`: an HCA, and the rail and plane of the network of its port.
#[derive(Debug, Clone, PartialEq, Eq)]
struct HcaItem {
    hca: HcaName,
    rail: Option<i16>,
    plane: Option<i16>,
}

impl FromStr for HcaItem {
    type Err = NotOfThisForm;

    fn from_str(text: &str) -> Result<Self, NotOfThisForm> {
        let mut fields = text.splitn(3, ':');
        let ends = [fields.next(), fields.next()].into_iter().flatten().map(str::len).sum::<usize>();
        let Some(ids) = fields.next() else {
            return Ok(Self { hca: text.parse()?, rail: None, plane: None });
        };
        let id = |text: &str| {
            number(text).and_then(|n| i16::try_from(n).ok()).map(Some).ok_or_else(NotOfThisForm::default)
        };
        let (rail, plane) = match ids.split_once(':') {
            None => (id(ids)?, None),
            Some((rail, plane)) => (
                id(rail)?,
                Some(id(plane)?.filter(|plane| *plane < PLANE_END).ok_or_else(NotOfThisForm::default)?),
            ),
        };
        Ok(Self { hca: text[..=ends].parse()?, rail, plane })
    }
}

impl AsRef<str> for HcaItem {
    fn as_ref(&self) -> &str {
        &self.hca.name
    }
}

impl fmt::Display for HcaItem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.hca.fmt(f)?;
        [self.rail, self.plane].into_iter().flatten().try_for_each(|id| write!(f, ":{id}"))
    }
}

/// `NCCL_IB_HCA`
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HcaFilter(Filter<HcaItem>);

impl HcaFilter {
    /// Whether the filter selects port `port` of HCA `name`. An item without a port selects all
    /// ports.
    pub(crate) fn matches(&self, name: &str, port: u8) -> bool {
        self.0.rank(|i| self.hits(i, name, port)).is_some()
    }

    /// Returns rail and plane of the first item for this port. An excluding filter has none.
    pub(crate) fn ids(&self, name: &str, port: u8) -> (Option<i16>, Option<i16>) {
        let item = self.0.items.iter().find(|i| self.names() && self.hits(i, name, port));
        item.map_or((None, None), |i| (i.rail, i.plane))
    }

    /// Returns the items that select none of these ports.
    pub(crate) fn unmatched(&self, ports: &[(&str, u8)]) -> Vec<&HcaName> {
        let missed = |i: &&HcaItem| !ports.iter().any(|(name, port)| self.hits(i, name, *port));
        self.0.items.iter().filter(missed).map(|i| &i.hca).collect()
    }

    /// Returns the items that hit adapters of more names than the one that they spell out.
    pub(crate) fn broad<'a>(&self, ports: &[(&'a str, u8)]) -> Vec<Broad<'a>> {
        let hit = |item: &HcaItem| {
            ports.iter().filter(|(name, port)| self.hits(item, name, *port)).map(|(name, _)| *name).collect()
        };
        self.0.broad(hit)
    }

    /// Returns the filter with the same items as whole names.
    pub(crate) fn exact(&self) -> Self {
        Self(Filter { exact: true, ..self.0.clone() })
    }

    /// Makes the filter that selects these ports alone, with their rails and planes in `before`.
    pub(crate) fn only(ports: &[(&str, u8)], before: Option<&Self>) -> Self {
        let item = |&(name, port): &(&str, u8)| {
            let (rail, plane) = before.map_or((None, None), |filter| filter.ids(name, port));
            HcaItem { hca: HcaName { name: name.into(), port: Some(port) }, rail, plane }
        };
        Self(Filter { exclude: false, exact: true, items: ports.iter().map(item).collect() })
    }

    fn hits(&self, item: &HcaItem, name: &str, port: u8) -> bool {
        self.0.same(&item.hca.name, name) && item.hca.port.is_none_or(|p| p == port)
    }

    /// Whether the filter names what to use, not what to exclude.
    pub(crate) fn names(&self) -> bool {
        !self.0.exclude
    }
}

impl Described for HcaFilter {
    const LIST: bool = true;
    const EXPECTED: &'static str = "`[^][=]name[:port[:rail[:plane]]],…` (^: all but these, =: whole names, else beginnings of names; planes are below 16384)";
}

impl FromStr for HcaFilter {
    type Err = NotOfThisForm;
    fn from_str(text: &str) -> Result<Self, NotOfThisForm> {
        Filter::parse(text, |item| item.parse().ok()).map(Self)
    }
}

impl fmt::Display for HcaFilter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// `NCCL_SOCKET_IFNAME`
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NameFilter(Filter<String>);

impl NameFilter {
    /// Returns the place of the first item that selects interface `name`; `None` if none does.
    pub(crate) fn rank(&self, name: &str) -> Option<usize> {
        self.0.rank(|i| self.0.same(i, name))
    }

    /// Returns the items that hit interfaces of more names than the one that they spell out.
    pub(crate) fn broad<'a>(&self, names: &[&'a str]) -> Vec<Broad<'a>> {
        self.0.broad(|item| names.iter().copied().filter(|name| self.0.same(item, name)).collect())
    }

    /// Returns the filter with the same items as whole names.
    pub(crate) fn exact(&self) -> Self {
        Self(Filter { exact: true, ..self.0.clone() })
    }

    /// Whether the filter names what to use, not what to exclude.
    pub(crate) fn names(&self) -> bool {
        !self.0.exclude
    }
}

impl Described for NameFilter {
    const LIST: bool = true;
    const EXPECTED: &'static str =
        "`[^][=]interface,…` (^: all but these, =: whole names, else beginnings of names)";
}

impl FromStr for NameFilter {
    type Err = NotOfThisForm;
    fn from_str(text: &str) -> Result<Self, NotOfThisForm> {
        Filter::parse(text, |item| plain_name(item).map(Into::into)).map(Self)
    }
}

impl fmt::Display for NameFilter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// `NCCL_SOCKET_FAMILY`
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Family {
    /// `AF_INET`
    V4,
    /// `AF_INET6`
    V6,
}

impl Described for Family {
    const EXPECTED: &'static str = "AF_INET or AF_INET6";
}

impl FromStr for Family {
    type Err = NotOfThisForm;
    fn from_str(text: &str) -> Result<Self, NotOfThisForm> {
        match text {
            "AF_INET" => Ok(Self::V4),
            "AF_INET6" => Ok(Self::V6),
            _ => Err(NotOfThisForm::default()),
        }
    }
}

impl fmt::Display for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::V4 => "AF_INET",
            Self::V6 => "AF_INET6",
        })
    }
}

/// `MPIB_RAIL_SPEED`: Mb/s of some ports, each named once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RailSpeeds(Vec<(HcaName, u32)>);

impl RailSpeeds {
    /// Returns the speed that is set for this port of this HCA.
    pub(crate) fn of(&self, hca: &str, port: u8) -> Option<u32> {
        of_port(&self.0, hca, port)
    }

    /// Returns the HCAs and ports that it names.
    pub(crate) fn names(&self) -> impl Iterator<Item = &HcaName> {
        self.0.iter().map(|(name, _)| name)
    }
}

impl Described for RailSpeeds {
    const LIST: bool = true;
    const EXPECTED: &'static str =
        "`name[:port]:number,…` with each port named once and numbers from 1 to 100000000 (Mb/s)";
}

impl FromStr for RailSpeeds {
    type Err = NotOfThisForm;

    fn from_str(text: &str) -> Result<Self, NotOfThisForm> {
        let speed = |text: &str| number(text).filter(|n| (1..=100_000_000).contains(n)).map(|n| n as u32);
        per_port(text, speed).map(Self)
    }
}

impl fmt::Display for RailSpeeds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_list(&self.0, f)
    }
}

#[cfg(test)]
#[path = "filter_tests.rs"]
mod tests;
