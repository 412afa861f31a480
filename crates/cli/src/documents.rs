//! Documents that come from the definitions of the options: completions for shells, and man pages.

use std::{fs, path::PathBuf};

use clap::{Args, Command};
use clap_complete::{Shell, generate};

use crate::{
    failure::{Context, Failure},
    output,
};

/// Prints the completions of a shell: source <(mpib completions bash)
#[derive(Debug, Args)]
pub(crate) struct CompletionsArgs {
    shell: Shell,
}

#[derive(Debug, Args)]
pub(crate) struct ManPagesArgs {
    /// Where to write mpib.1 and a page for each command
    folder: PathBuf,
}

pub(crate) fn completions(args: &CompletionsArgs, mut command: Command) -> Result<(), Failure> {
    let mut text = Vec::new();
    generate(args.shell, &mut command, "mpib", &mut text);
    output::print(&String::from_utf8_lossy(&text))
}

pub(crate) fn man_pages(args: &ManPagesArgs, command: Command) -> Result<(), Failure> {
    fs::create_dir_all(&args.folder).tool(format!("make {}", args.folder.display()))?;
    clap_mangen::generate_to(command, &args.folder)
        .tool(format!("write man pages to {}", args.folder.display()))
}
