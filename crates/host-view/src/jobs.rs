//! The jobs of a host: sums over the processes of one user that name the same job.

use std::collections::BTreeMap;

use crate::model::{Connection, Host, Job, Process, TwoWays};

/// The most users, by number, and jobs of each user, by name, that have a row: a process may invent
/// names.
pub(crate) const USERS: usize = 16;
pub(crate) const JOBS: usize = 8;
/// The name of all further ones.
pub(crate) const OTHERS: &str = "other";

/// The number of a user, and the name of a job.
pub(crate) type Key = (u32, String);

/// Returns the key of a process's job, if it names one.
pub(crate) fn key(process: &Process) -> Option<Key> {
    Some((process.uid, process.job.clone()?))
}

/// Sums up the jobs of a reading, with what processes of each that have ended have counted.
pub(crate) fn of(host: &Host, ended: &BTreeMap<Key, TwoWays>) -> Vec<Job> {
    let mut users: BTreeMap<u32, BTreeMap<String, Job>> = BTreeMap::new();
    for process in &host.processes {
        let Some((uid, name)) = key(process) else { continue };
        let job = users.entry(uid).or_default().entry(name.clone()).or_insert_with(|| {
            let user = process.user.clone().unwrap_or_else(|| uid.to_string());
            let totals = ended.get(&(uid, name.clone())).copied().unwrap_or_default();
            Job { user, job: name, totals, ..Job::default() }
        });
        job.add(&Job::of(process, host.at_ms));
    }
    let mut jobs: Vec<Job> = Vec::new();
    for (user, of_user) in users.into_values().enumerate() {
        for (n, mut job) in of_user.into_values().enumerate() {
            if user >= USERS {
                OTHERS.clone_into(&mut job.user);
            }
            if user >= USERS || n >= JOBS {
                OTHERS.clone_into(&mut job.job);
            }
            // A user may have given a job that name.
            match jobs.iter_mut().find(|known| (&known.user, &known.job) == (&job.user, &job.job)) {
                Some(known) => known.add(&job),
                None => jobs.push(job),
            }
        }
    }
    jobs
}

impl Job {
    /// Returns what one process does, without names.
    fn of(process: &Process, at_ms: u64) -> Self {
        let count = |is: fn(&Connection) -> bool| {
            let n = process.connections.iter().filter(|connection| is(connection)).count();
            u32::try_from(n).unwrap_or(u32::MAX)
        };
        let mut waits_ms = BTreeMap::new();
        for connection in &process.connections {
            let (Some(wait), Some(ms)) = (&connection.wait, connection.waited_ms(at_ms)) else { continue };
            raise(&mut waits_ms, &wait.r#for, ms);
        }
        Self {
            processes: 1,
            connections: process.open,
            failed: count(|connection| connection.state == "failed"),
            degraded: count(Connection::is_degraded),
            totals: process.totals,
            waits_ms,
            ..Self::default()
        }
    }

    fn add(&mut self, other: &Self) {
        self.processes += other.processes;
        self.connections = self.connections.saturating_add(other.connections);
        self.failed = self.failed.saturating_add(other.failed);
        self.degraded = self.degraded.saturating_add(other.degraded);
        self.totals.add(&other.totals);
        other.waits_ms.iter().for_each(|(what, ms)| raise(&mut self.waits_ms, what, *ms));
    }
}

/// Keeps the longest wait of a kind.
fn raise(waits: &mut BTreeMap<String, u64>, what: &str, ms: u64) {
    let longest = waits.entry(what.to_owned()).or_default();
    *longest = ms.max(*longest);
}
