//! What `mpib setup` prints: the cables, the commands for their addresses, and the job's settings.

use std::fmt::Write as _;

use super::plan::{JUMBO, Plan, Row};
use crate::output::units::giga;

/// The form of the commands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Form {
    /// A file for netplan
    Netplan,
    /// Commands of ip, whose effect ends with the next boot
    Ip,
}

/// Returns the cables, one in a line.
pub(super) fn cables(plan: &Plan) -> String {
    let count = plan.rows.len();
    let mut out = format!("{count} {} to {}\n", if count == 1 { "link" } else { "links" }, plan.peer);
    for Row { ours, theirs, here, there, is_new } in &plan.rows {
        let speed = if ours.speed == 0 {
            String::new()
        } else {
            format!(", {} Gb/s", giga(f64::from(ours.speed) / 1e3))
        };
        let state = if *is_new { "proposed" } else { "present" };
        let _ = writeln!(
            out,
            "  {} ({}{speed}) to {} ({}): {here} here and {there} there, {state}",
            ours.interface, ours.port, theirs.interface, theirs.port
        );
        let is_known = ours.mtu > 0 && theirs.mtu > 0;
        if !is_new && is_known && ours.mtu != theirs.mtu {
            let _ = writeln!(
                out,
                "    the MTU is {} here and {} there, so the smaller one counts: set {JUMBO} at both ends",
                ours.mtu, theirs.mtu
            );
        }
    }
    out
}

/// Returns how this host gets its addresses.
pub(super) fn addresses(plan: &Plan, form: Form) -> String {
    let new = plan.rows.iter().filter(|row| row.is_new);
    let mut out = String::new();
    match form {
        Form::Netplan => {
            out += "# This host: put this into /etc/netplan/60-mpib.yaml, then: netplan apply\n";
            out += "network:\n  version: 2\n  ethernets:\n";
            for row in new {
                let name = &row.ours.interface;
                let _ = writeln!(out, "    {name}:\n      addresses: [{}]\n      mtu: {JUMBO}", row.here);
            }
        }
        Form::Ip => {
            out += "# This host, until the next boot:\n";
            for row in new {
                let name = &row.ours.interface;
                let _ =
                    writeln!(out, "ip addr add {} dev {name}\nip link set {name} mtu {JUMBO} up", row.here);
            }
        }
    }
    out
}

/// Returns the settings of a job.
pub(super) fn settings(plan: &Plan) -> String {
    let all = plan.settings().into_iter().map(|(name, value)| format!("export {name}={value}\n"));
    all.fold("# Each job, on this host; the other one prints its own:\n".into(), |out, line| out + &line)
}
