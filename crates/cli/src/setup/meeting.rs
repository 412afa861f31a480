//! Which ends of two hosts a cable joins: a machine without sockets and clocks. Both hosts run it, and
//! both find the same cables.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::announcement::{Announcement, End, Host};
use super::net::Mac;

/// An end that has said nothing for this long is away.
const SILENCE: Duration = Duration::from_secs(3);
/// Most ends that are heard at a time: who sends on a cable can invent any number.
const MOST: usize = 256;
/// How long both hosts must know the same cables.
const SETTLE: Duration = Duration::from_secs(2);

/// The state of one host. Times count from its start.
#[derive(Debug)]
pub(super) struct Meeting {
    host: Host,
    own: Vec<End>,
    /// By the own end's place and the other end's address.
    heard: BTreeMap<(usize, Mac), (Duration, Announcement)>,
    /// The cables that both hosts know, and since when.
    agreed: Option<(Vec<[Mac; 2]>, Duration)>,
}

/// A cable, or a function's share of one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Cable {
    pub(super) ours: End,
    pub(super) theirs: Announcement,
}

impl Cable {
    /// Returns its name, the same at both hosts.
    fn name(&self) -> [Mac; 2] {
        let mut ends = [self.ours.mac, self.theirs.end.mac];
        ends.sort_unstable();
        ends
    }
}

/// What joins the ends, if these are not two hosts with cables between them.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum Confusion {
    #[error(
        "{0} and {1} of this host hear each other: they are joined, or both are in one network. Join one of them with the \
         other host"
    )]
    Loop(String, String),
    #[error(
        "mpib setup also runs on {}: it sets up two hosts. For more, give each cable a network as docs/guide/direct-cables.md \
         says",
        .0.join(", ")
    )]
    Hosts(Vec<String>),
    #[error(
        "{} hear {} of {host}, so a switch or bridge joins them: give the ports of both hosts addresses in one network for each \
         pair, as docs/guide/roce.md says",
        .ours.join(", "), .theirs.join(", ")
    )]
    Switch { ours: Vec<String>, theirs: Vec<String>, host: String },
}

impl Meeting {
    pub(super) fn new(host: Host, own: Vec<End>) -> Self {
        Self { host, own, heard: BTreeMap::new(), agreed: None }
    }

    /// Takes in an announcement that has come in at an own end.
    pub(super) fn hear(&mut self, now: Duration, own: usize, announcement: Announcement) {
        let end = (own, announcement.end.mac);
        if self.heard.len() < MOST || self.heard.contains_key(&end) {
            self.heard.insert(end, (now, announcement));
        }
    }

    /// Forgets ends that are silent, and compares what both hosts know. Called after what has come was
    /// heard.
    pub(super) fn settle(&mut self, now: Duration) {
        self.heard.retain(|_, (at, _)| now.saturating_sub(*at) < SILENCE);
        let cables = self.cables().unwrap_or_default();
        let names: Vec<[Mac; 2]> = cables.iter().map(Cable::name).collect();
        let is_known = !cables.is_empty() && cables.iter().all(|cable| cable.theirs.cables == names);
        self.agreed = match self.agreed.take() {
            _ if !is_known => None,
            Some((before, since)) if before == names => Some((before, since)),
            _ => Some((names, now)),
        };
    }

    /// Returns the cables once both hosts know the same ones.
    pub(super) fn agreed(&self, now: Duration) -> Option<Vec<Cable>> {
        let (_, since) = self.agreed.as_ref()?;
        let cables = || self.cables().unwrap_or_default();
        (now.saturating_sub(*since) >= SETTLE).then(cables)
    }

    /// Returns what an own end announces.
    pub(super) fn announcement(&self, own: usize) -> Announcement {
        let heard = self.heard.keys().filter(|(place, _)| *place == own).map(|(_, mac)| *mac).collect();
        let cables = self.cables().unwrap_or_default().iter().map(Cable::name).collect();
        Announcement::new(&self.host, &self.own[own], heard, cables)
    }

    /// Returns the interfaces that hear another host, with its name, for the case that nothing is agreed.
    pub(super) fn one_way(&self) -> Vec<String> {
        let line = |((own, _), (_, it)): (&(usize, Mac), &(Duration, Announcement))| {
            let back = if it.heard.contains(&self.own[*own].mac) {
                "which hears it"
            } else {
                "which does not hear it"
            };
            format!("{} hears {} of {}, {back}", self.own[*own].interface, it.end.interface, it.host)
        };
        self.heard.iter().map(line).collect()
    }

    /// Returns the cables whose ends hear each other, in the order of their names.
    pub(super) fn cables(&self) -> Result<Vec<Cable>, Confusion> {
        let mut hosts: BTreeMap<u64, &str> = BTreeMap::new();
        for ((own, _), (_, it)) in &self.heard {
            if it.id == self.host.id {
                return Err(Confusion::Loop(self.own[*own].interface.clone(), it.end.interface.clone()));
            }
            hosts.insert(it.id, &it.host);
        }
        if hosts.len() > 1 {
            return Err(Confusion::Hosts(hosts.into_values().map(str::to_owned).collect()));
        }
        let mut cables = Vec::new();
        let mut left: BTreeSet<usize> = (0..self.own.len()).collect();
        while let Some(first) = left.pop_first() {
            let (ours, theirs) = self.joined(first);
            left.retain(|own| !ours.contains(own));
            cables.extend(self.pair(&ours, &theirs)?);
        }
        cables.sort_by_key(Cable::name);
        Ok(cables)
    }

    /// Returns the other ends that hear an own one and are heard by it.
    fn peers(&self, own: usize) -> impl Iterator<Item = &Announcement> {
        let mac = self.own[own].mac;
        let of = self.heard.range((own, Mac([0; 6]))..=(own, Mac([u8::MAX; 6])));
        of.map(|(_, (_, it))| it).filter(move |it| it.heard.contains(&mac))
    }

    /// Returns the own ends that share other ends with one, and these.
    fn joined(&self, first: usize) -> (BTreeSet<usize>, BTreeSet<Mac>) {
        let (mut ours, mut theirs) = (BTreeSet::from([first]), BTreeSet::new());
        loop {
            let before = (ours.len(), theirs.len());
            theirs.extend(ours.iter().flat_map(|own| self.peers(*own)).map(|it| it.end.mac));
            let shares = |own: &usize| self.peers(*own).any(|it| theirs.contains(&it.end.mac));
            ours.extend((0..self.own.len()).filter(shares));
            if before == (ours.len(), theirs.len()) {
                return (ours, theirs);
            }
        }
    }

    /// Pairs ends that hear each other. Several on one wire are its functions: in the order of their
    /// addresses each has its partner, and one without a partner is left out.
    fn pair(&self, ours: &BTreeSet<usize>, theirs: &BTreeSet<Mac>) -> Result<Vec<Cable>, Confusion> {
        let known: BTreeMap<Mac, &Announcement> =
            ours.iter().flat_map(|own| self.peers(*own)).map(|it| (it.end.mac, it)).collect();
        let one_wire = |wires: BTreeSet<Option<usize>>| wires.len() == 1 && !wires.contains(&None);
        let is_wire = (ours.len() == 1 || one_wire(ours.iter().map(|own| self.own[*own].wire).collect()))
            && (theirs.len() < 2 || one_wire(known.values().map(|it| it.end.wire).collect()));
        if !is_wire {
            let host = known.values().next().map_or_else(String::new, |it| it.host.clone());
            return Err(Confusion::Switch {
                ours: ours.iter().map(|own| self.own[*own].interface.clone()).collect(),
                theirs: known.values().map(|it| it.end.interface.clone()).collect(),
                host,
            });
        }
        let mut own: Vec<&End> = ours.iter().map(|own| &self.own[*own]).collect();
        own.sort_by_key(|end| end.mac);
        let pairs = own.into_iter().zip(known.into_values());
        Ok(pairs.map(|(ours, theirs)| Cable { ours: ours.clone(), theirs: theirs.clone() }).collect())
    }
}

#[cfg(test)]
#[path = "meeting_tests.rs"]
mod tests;
