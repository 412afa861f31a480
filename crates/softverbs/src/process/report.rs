//! The report: with `SOFTVERBS_REPORT`, the counters are written as a table when the process exits.

use std::ffi::OsStr;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::sync::OnceLock;

use crate::log::{fault, write_always};
use crate::process::counters::{Counters, DeviceCounters, counters};

/// Names the target of the report.
const REPORT_VAR: &str = "SOFTVERBS_REPORT";

/// Target of the report.
#[derive(Debug)]
enum Target {
    Stderr,
    File(File),
}

/// The process that reports, and the target. A forked child must not report the work of its parent.
static REQUESTED: OnceLock<(u32, Target)> = OnceLock::new();

/// Reads the variable and installs the exit handler. Called once, before anything is counted.
pub(crate) fn arrange() {
    let Some(value) = std::env::var_os(REPORT_VAR) else { return };
    match target(&value) {
        Ok(target) => {
            // SAFETY: a function that lives as long as the library, which is never unloaded.
            if REQUESTED.set((std::process::id(), target)).is_ok() && unsafe { libc::atexit(at_exit) } != 0 {
                fault!("{REPORT_VAR}={value:?}: atexit failed; there will be no report");
            }
        }
        Err(line) => write_always(format_args!("{line}")),
    }
}

/// Parses the variable and opens the file. Opening it early reports a wrong path at the start of
/// the run. The file is appended to, which lets processes share it.
fn target(value: &OsStr) -> Result<Target, String> {
    if value == "stderr" {
        return Ok(Target::Stderr);
    }
    let expected = "expected stderr or a path that can be written; there will be no report";
    if value.is_empty() {
        return Err(format!("{REPORT_VAR}={value:?}: {expected}"));
    }
    let file = OpenOptions::new().append(true).create(true).open(value);
    file.map(Target::File).map_err(|e| format!("{REPORT_VAR}={value:?}: {e}; {expected}"))
}

extern "C" fn at_exit() {
    let Some((process, target)) = REQUESTED.get() else { return };
    if *process != std::process::id() {
        return;
    }
    // A panic must not cross into the C library.
    let text = std::panic::catch_unwind(|| report(&counters())).unwrap_or_default();
    let written = match target {
        Target::Stderr => io::stderr().write_all(text.as_bytes()),
        Target::File(file) => { file }.write_all(text.as_bytes()),
    };
    if let Err(e) = written {
        fault!("{REPORT_VAR}: the report could not be written: {e}");
    }
}

/// Title and value of a column.
type Column = (&'static str, fn(&Counters) -> u64);
const COLUMNS: [Column; 15] = [
    ("write", |c| c.writes),
    ("write_imm", |c| c.writes_with_imm),
    ("send", |c| c.sends),
    ("send_imm", |c| c.sends_with_imm),
    ("read", |c| c.reads),
    ("cmp_swap", |c| c.compare_swaps),
    ("fetch_add", |c| c.fetch_adds),
    ("inline", |c| c.inlines),
    ("bytes", |c| c.bytes),
    ("doorbells", |c| c.doorbells),
    ("receives", |c| c.receives),
    ("send_cqe", |c| c.send_cqes),
    ("recv_cqe", |c| c.recv_cqes),
    ("rnr", |c| c.rnr),
    ("errors", |c| c.errors),
];

/// Formats a headline and a table with a row for each active device, followed by a row for each of
/// its QPs.
fn report(devices: &[DeviceCounters]) -> String {
    let name = std::fs::read_to_string("/proc/self/comm").unwrap_or_default();
    let mut text =
        format!("softverbs: process {} ({}) posted, in all:\n", std::process::id(), name.trim_end());
    let mut rows =
        vec![["device", "qp"].into_iter().chain(COLUMNS.map(|c| c.0)).map(str::to_owned).collect()];
    for device in devices.iter().filter(|d| !d.qps.is_empty() || d.total != Counters::default()) {
        rows.push(row(&device.name, "all", &device.total));
        rows.extend(device.qps.iter().map(|qp| row(&device.name, &format!("{:#x}", qp.qpn), &qp.counters)));
    }
    if rows.len() == 1 {
        text += "nothing\n";
        return text;
    }
    for row in &rows {
        let cells = row.iter().enumerate().map(|(i, cell)| {
            let width = rows.iter().map(|row: &Vec<String>| row[i].len()).max().unwrap_or(0);
            format!("{cell:>width$}")
        });
        text += &cells.collect::<Vec<_>>().join("  ");
        text.push('\n');
    }
    text
}

fn row(device: &str, qp: &str, counters: &Counters) -> Vec<String> {
    let numbers = COLUMNS.map(|(_, of)| of(counters).to_string());
    [device.to_owned(), qp.to_owned()].into_iter().chain(numbers).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::counters::QpCounters;

    fn counted(sends: u64) -> Counters {
        let mut counters = Counters::default();
        (counters.sends, counters.bytes) = (sends, sends * 4096);
        counters
    }

    #[test]
    fn a_table_has_a_row_for_each_device_and_qp() {
        let qp = |qpn, sends| QpCounters { qpn, counters: counted(sends) };
        let busy =
            DeviceCounters { name: "soft0".into(), total: counted(77), qps: vec![qp(17, 70), qp(18, 7)] };
        let idle = DeviceCounters { name: "soft1".into(), total: Counters::default(), qps: Vec::new() };
        let text = report(&[busy, idle]);
        let lines: Vec<Vec<&str>> = text.lines().skip(1).map(|l| l.split_whitespace().collect()).collect();
        let send = lines[0].iter().position(|t| *t == "send").unwrap();
        let bytes = lines[0].iter().position(|t| *t == "bytes").unwrap();
        assert!(lines.iter().all(|l| l.len() == 2 + COLUMNS.len()), "{text}");
        let seen: Vec<_> = lines[1..].iter().map(|l| (l[0], l[1], l[send], l[bytes])).collect();
        let expected = [
            ("soft0", "all", "77", "315392"),
            ("soft0", "0x11", "70", "286720"),
            ("soft0", "0x12", "7", "28672"),
        ];
        assert_eq!(seen, expected, "{text}");
        let widths: Vec<_> = text.lines().skip(1).map(str::len).collect();
        assert!(widths.windows(2).all(|w| w[0] == w[1]), "{text}");
    }

    #[test]
    fn an_idle_process_reports_nothing() {
        assert!(report(&[]).ends_with("nothing\n"));
    }

    #[test]
    fn a_bad_target_is_one_line() {
        for bad in ["", "/no/such/folder/report", "/"] {
            let line = target(OsStr::new(bad)).expect_err(bad);
            assert!(line.starts_with(&format!("SOFTVERBS_REPORT={bad:?}: ")), "{line}");
            assert!(line.contains("expected stderr or a path"), "{line}");
            assert_eq!(line.lines().count(), 1);
        }
        assert!(matches!(target(OsStr::new("stderr")), Ok(Target::Stderr)));
    }
}
