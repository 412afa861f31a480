//! Reads the documents of `mpib perf --json`.

use serde::Deserialize;
use serde_json::Value;

use mpib::failure::{Failure, Kind};

pub(super) fn unread(what: &str) -> Failure {
    Failure::new(Kind::Tool, format!("cannot read the result of a run: {what}"))
}

/// Returns the only table of a report.
fn table(report: &Value) -> Result<&Value, Failure> {
    report.get("tables").and_then(|t| t.get(0)).ok_or_else(|| unread("no table"))
}

/// Returns the result for `--connections`.
pub(super) fn connections_of(report: &Value) -> Result<&Value, Failure> {
    table(report)?.get("connections").ok_or_else(|| unread("no connections"))
}

/// Returns the n-th size of a report.
pub(super) fn result(report: &Value, n: usize) -> Result<&Value, Failure> {
    table(report)?.get("results").and_then(|r| r.get(n)).ok_or_else(|| unread("a size is missing"))
}

pub(super) fn number(value: &Value, path: &[&str]) -> Result<f64, Failure> {
    let found = path.iter().try_fold(value, |value, name| value.get(name));
    found
        .and_then(|v| f64::deserialize(v).ok())
        .ok_or_else(|| unread(&format!("no number {}", path.join("."))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_found_or_named() {
        let value = serde_json::json!({"tables": [{"results": [{"time_ns": {"p99": 7}}]}]});
        assert_eq!(number(result(&value, 0).unwrap(), &["time_ns", "p99"]), Ok(7.0));
        let failure = number(&value, &["time_ns", "p50"]).unwrap_err();
        assert!(failure.message.ends_with("no number time_ns.p50"), "{failure}");
        assert!(result(&value, 1).is_err());
    }
}
