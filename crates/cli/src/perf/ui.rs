//! What is shown while a run goes on: the table line by line on stdout, log lines and progress on stderr.

use std::{
    io::{self, Write},
    time::Duration,
};

use indicatif::{ProgressBar, ProgressStyle};

use super::{
    args::Plan,
    report::{self, Connections, SizeResult},
};
use crate::failure::{Context, Failure};
use mpib::device::Device;
use nccl_net_host::logger;

/// The terminal, or what stands in its place.
pub(super) struct Ui {
    bar: ProgressBar,
    json: bool,
    silent: bool,
}

impl Ui {
    /// With `json` nothing but the document goes to stdout. The bar hides itself where stderr is no terminal.
    pub(super) fn new(json: bool) -> Self {
        let bar = ProgressBar::new(0);
        if let Ok(style) =
            ProgressStyle::with_template("{spinner} {msg} [{bar:30}] {pos}/{len} sizes {elapsed}")
        {
            bar.set_style(style.progress_chars("=> "));
        }
        Self { bar, json, silent: false }
    }

    /// Shows nothing at all.
    pub(super) fn silent() -> Self {
        Self { silent: true, ..Self::new(true) }
    }

    /// So many sizes are to come in all.
    pub(super) fn expect(&self, sizes: usize) {
        self.bar.set_length(sizes as u64);
        self.bar.enable_steady_tick(Duration::from_millis(200));
    }

    /// A line for who watches.
    pub(super) fn note(&self, text: &str) {
        if !self.silent {
            self.bar.suspend(|| eprintln!("{text}"));
        }
    }

    /// A line that the plugin logged.
    pub(super) fn log(&self, who: &str, level: i32, text: &str) {
        let level = match level {
            logger::WARN => "WARN".into(),
            logger::INFO => "INFO".into(),
            logger::TRACE => "TRACE".into(),
            other => format!("level {other}"),
        };
        self.note(&format!("{who}: plugin {level}: {text}"));
    }

    fn print(&self, text: &str) -> Result<(), Failure> {
        if self.json {
            return Ok(());
        }
        self.bar.suspend(|| writeln!(io::stdout(), "{text}")).tool("write to stdout")
    }

    /// The head of a table.
    pub(super) fn begin(&self, abi: u32, net: &str, device: &Device, plan: &Plan) -> Result<(), Failure> {
        self.bar.set_message(format!("v{abi}"));
        self.print(&report::title(abi, net, Some(device), plan))?;
        // The line on connections comes before the table of sizes.
        if plan.connections > 0 { Ok(()) } else { self.print(&report::head()) }
    }

    /// The further connections are made.
    pub(super) fn connections(&self, connections: &Connections) -> Result<(), Failure> {
        self.print(&report::connections(connections))?;
        self.print(&report::head())
    }

    /// A size is measured.
    pub(super) fn row(&self, result: &SizeResult) -> Result<(), Failure> {
        self.bar.inc(1);
        self.print(&report::row(result))
    }

    /// A table is complete.
    pub(super) fn total(&self, results: &[SizeResult]) -> Result<(), Failure> {
        if results.len() > 1 {
            self.print(&report::total(results))?;
        }
        self.print("")
    }

    /// Nothing more will come.
    pub(super) fn finish(&self) {
        self.bar.finish_and_clear();
    }
}
