//! Reads the report that softverbs writes when a process ends (`SOFTVERBS_REPORT`).

/// A row of the report.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Row<'a> {
    pub(crate) device: &'a str,
    /// A number, or `all` for those of a device together.
    pub(crate) queue_pair: &'a str,
    pub(crate) value: u64,
}

/// Returns a column of the report. It is empty if the process has posted nothing.
pub(crate) fn column<'a>(report: &'a str, name: &str) -> Result<Vec<Row<'a>>, String> {
    let mut lines = report.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    let column = lines.by_ref().find_map(|cells| cells.iter().position(|cell| *cell == name));
    let row = |cells: Vec<&'a str>| {
        let (device, queue_pair, value) = (*cells.first()?, *cells.get(1)?, *cells.get(column?)?);
        Some((device, queue_pair, value))
    };
    let number = |(device, queue_pair, value): (&'a str, &'a str, &str)| match value.parse() {
        Ok(value) => Ok(Row { device, queue_pair, value }),
        Err(_) => Err(format!("softverbs has reported {value:?} in the column {name}")),
    };
    lines.filter_map(row).map(number).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_column_has_a_row_for_each_device_and_queue_pair() {
        let report = "\
softverbs: process 7 (collective-rank) posted, in all:
device    qp  write  bytes
  sout   all      1      4
  sout  0x11      1      3
";
        let row = |queue_pair, value| Row { device: "sout", queue_pair, value };
        assert_eq!(column(report, "bytes"), Ok(vec![row("all", 4), row("0x11", 3)]));
        assert_eq!(column("softverbs: process 7 (x) posted, in all:\nnothing\n", "bytes"), Ok(vec![]));
        assert!(column(&report.replace('4', "x"), "bytes").is_err());
    }
}
