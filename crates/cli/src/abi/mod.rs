//! `mpib abi`: reads from two files which table a libnccl will take from a plugin. No code of
//! either file runs.

pub(crate) mod find;
mod library;

use std::{path::PathBuf, process::ExitCode};

use clap::Args;
pub(crate) use library::{Library, exports, is_library};
use schemars::JsonSchema;
use serde::Serialize;

use crate::failure::{Failure, Kind};
use crate::output::{self, document};
use crate::plugin;

/// Exit codes for `--help`.
const EXIT_CODES: &str = "\
Exit codes:
  0  they fit
  2  invalid options, or no libnccl was found
  3  they do not fit, or a file is not of the expected kind";

/// Prints which table a libnccl looks for, which ones a plugin exports, and whether they fit
#[derive(Debug, Clone, Args)]
#[command(after_help = EXIT_CODES)]
pub(crate) struct AbiArgs {
    /// libnccl.so.2, or another file that has NCCL in it [default: the one that the dynamic linker
    /// would load here]
    #[arg(value_name = "LIBNCCL")]
    library: Option<PathBuf>,

    /// The plugin's file [default: libnccl-net-mpib.so next to mpib or in ../lib]
    #[arg(long, value_name = "PATH")]
    plugin: Option<PathBuf>,

    /// Print one JSON document instead of three lines
    #[arg(long)]
    json: bool,

    /// Print the JSON schema of that document
    #[arg(long, exclusive = true)]
    schema: bool,
}

/// Both files and the table that they have in common.
#[derive(Debug, Serialize, JsonSchema)]
struct Report {
    library: Library,
    plugin: Plugin,
    /// The newest table that NCCL looks for and the plugin exports. NCCL takes this one.
    picked: Option<u32>,
}

#[derive(Debug, Serialize, JsonSchema)]
struct Plugin {
    path: PathBuf,
    /// Versions, newest first.
    exports: Vec<u32>,
}

/// Runs the command and prints failures.
pub(crate) fn main(args: &AbiArgs) -> ExitCode {
    if args.schema {
        return document::show_schema::<Report>();
    }
    match run(args) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(Kind::Load.exit_code()),
        Err(failure) => {
            let exit_code = failure.kind.exit_code();
            document::failed(args.json, failure, exit_code)
        }
    }
}

/// Returns whether the files fit.
fn run(args: &AbiArgs) -> Result<bool, Failure> {
    let library = args.library.clone().map_or_else(find::library, Ok)?;
    let library = Library::read(&library)?;
    let path = args.plugin.clone().map_or_else(plugin::default_path, Ok)?;
    let plugin = Plugin { exports: exports(&path)?, path };
    let picked = library.looks_up.iter().copied().find(|v| plugin.exports.contains(v));
    let report = Report { library, plugin, picked };
    if args.json {
        document::print(&report)?;
    } else {
        output::print(&(report.lines() + "\n"))?;
    }
    Ok(picked.is_some())
}

impl Report {
    fn lines(&self) -> String {
        let Self { library, plugin, picked } = self;
        let release = library.release.as_deref().unwrap_or("of an unknown release");
        let verdict = match picked {
            Some(version) => format!("they fit: this NCCL takes v{version}"),
            None => "they do not fit: this NCCL knows none of the plugin's tables and continues without the plugin"
                .into(),
        };
        format!(
            "NCCL {release} ({}) looks for {}\n{} exports {}\n{verdict}",
            library.path.display(),
            list(&library.looks_up),
            plugin.path.display(),
            list(&plugin.exports),
        )
    }
}

/// Joins versions as in `v12, v11, v8`.
fn list(versions: &[u32]) -> String {
    versions.iter().map(|v| format!("v{v}")).collect::<Vec<_>>().join(", ")
}
