//! The results as comma-separated values, one line for each size of each table.

use serde::Serialize;

use super::report::{AbiReport, SizeResult};
use crate::failure::{Context, Failure};

/// A line. The names of the members are the first line of the output.
#[derive(Debug, Serialize)]
struct Line<'a> {
    abi: u32,
    net: &'a str,
    device: &'a str,
    size: usize,
    depth: usize,
    messages: u64,
    bytes: u64,
    seconds: f64,
    min_ns: u64,
    median_ns: u64,
    p90_ns: u64,
    p99_ns: u64,
    max_ns: u64,
    gigabytes_per_second: f64,
    gigabits_per_second: f64,
    bus_gigabytes_per_second: f64,
    messages_per_second: f64,
    checked: bool,
    /// `sout=67,sup=33` in bytes; empty if nothing counts them.
    rails: String,
}

impl<'a> Line<'a> {
    fn new(table: &'a AbiReport, result: &SizeResult) -> Self {
        let rails = result.rails.iter().flatten().map(|rail| format!("{}={}", rail.name, rail.bytes));
        Self {
            abi: table.abi,
            net: &table.net,
            device: table.device.as_ref().map_or("", |device| &device.name),
            size: result.size,
            depth: result.depth,
            messages: result.messages,
            bytes: result.bytes,
            seconds: result.seconds,
            min_ns: result.time_ns.min,
            median_ns: result.time_ns.median,
            p90_ns: result.time_ns.p90,
            p99_ns: result.time_ns.p99,
            max_ns: result.time_ns.max,
            gigabytes_per_second: result.gigabytes_per_second,
            gigabits_per_second: result.gigabytes_per_second * 8.0,
            bus_gigabytes_per_second: result.bus_gigabytes_per_second,
            messages_per_second: result.messages_per_second,
            checked: result.checked,
            rails: rails.collect::<Vec<_>>().join(","),
        }
    }
}

/// Formats the results of all tables.
pub(super) fn text(tables: &[AbiReport]) -> Result<String, Failure> {
    let mut out = csv::Writer::from_writer(Vec::new());
    for table in tables {
        for result in &table.results {
            out.serialize(Line::new(table, result)).tool("encode the results")?;
        }
    }
    let bytes = out.into_inner().tool("encode the results")?;
    String::from_utf8(bytes).tool("encode the results")
}
