//! The documents of `--json`.

use std::process::ExitCode;

use schemars::{JsonSchema, schema_for};
use serde::Serialize;

use crate::failure::{Context, Failure, Kind, ended};

/// A failure with its exit code.
#[derive(Debug, Serialize, JsonSchema)]
pub struct ErrorReport {
    #[serde(flatten)]
    pub(crate) failure: Failure,
    pub(crate) exit_code: u8,
}

/// The document of a command that has failed.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Failed {
    /// This tool's version.
    mpib: &'static str,
    /// Always false.
    ok: bool,
    error: ErrorReport,
}

/// Returns the text of a document.
pub fn text<T: Serialize>(document: &T) -> Result<String, Failure> {
    Ok(serde_json::to_string_pretty(document).tool("encode the document")? + "\n")
}

/// Prints a document.
pub fn print<T: Serialize>(document: &T) -> Result<(), Failure> {
    super::print(&text(document)?)
}

/// Returns the schema of a document.
pub fn schema<T: JsonSchema>() -> String {
    // Serialising a JSON value cannot fail.
    serde_json::to_string_pretty(&schema_for!(T)).unwrap_or_default() + "\n"
}

/// Prints the schema of a document; returns the exit code.
pub fn show_schema<T: JsonSchema>() -> ExitCode {
    ended(super::print(&schema::<T>()))
}

/// Reports a failure on stderr, and with `json` on stdout as well; returns the exit code.
pub fn failed(json: bool, failure: Failure, exit_code: u8) -> ExitCode {
    failure.print();
    if failure.kind == Kind::Closed {
        return failure.exit_code();
    }
    if json { self::failure(failure, exit_code) } else { ExitCode::from(exit_code) }
}

/// Prints the document of a failure, in one line: it may follow others that have one each. Returns
/// the exit code.
pub fn failure(failure: Failure, exit_code: u8) -> ExitCode {
    let error = ErrorReport { failure, exit_code };
    let document = Failed { mpib: env!("CARGO_PKG_VERSION"), ok: false, error };
    let text = serde_json::to_string(&document).tool("encode the document");
    if let Err(second) = text.and_then(|text| super::print(&(text + "\n"))) {
        second.print();
    }
    ExitCode::from(exit_code)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_guide_has_the_schema_of_failures() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/guide/failure.schema.json");
        let schema = schema::<Failed>();
        if std::env::var_os("WRITE_MANUAL").is_some() {
            std::fs::write(path, &schema).unwrap();
        }
        let hint = "docs/guide/failure.schema.json differs: WRITE_MANUAL=1 cargo test -p mpib";
        assert!(std::fs::read_to_string(path).unwrap() == schema, "{hint}");
    }
}
