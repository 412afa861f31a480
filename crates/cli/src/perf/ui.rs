//! Output during a run: the table line by line on stdout, log lines and progress on stderr.

use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

use super::{
    plan::Plan,
    report::{self, AbiReport, Connections, SizeResult},
};
use crate::failure::Failure;
use crate::output::{self, columns::terminal_width};
use nccl_net_host::logger;

/// The terminal or its replacement.
pub(super) struct Ui {
    bar: ProgressBar,
    document: bool,
    silent: bool,
}

impl Ui {
    /// With `document`, no table goes to stdout. The bar is hidden if stderr is not a terminal.
    pub(super) fn new(document: bool) -> Self {
        let bar = ProgressBar::new(0);
        if let Ok(style) =
            ProgressStyle::with_template("{spinner} {msg} [{bar:30}] {pos}/{len} sizes {elapsed}")
        {
            bar.set_style(style.progress_chars("=> "));
        }
        Self { bar, document, silent: false }
    }

    /// Makes one that shows nothing.
    pub(super) fn silent() -> Self {
        Self { silent: true, ..Self::new(true) }
    }

    /// Announces the number of sizes.
    pub(super) fn expect(&self, sizes: usize) {
        self.bar.set_length(sizes as u64);
        self.bar.enable_steady_tick(Duration::from_millis(200));
    }

    /// Shows a line on stderr.
    pub(super) fn note(&self, text: &str) {
        if !self.silent {
            self.bar.suspend(|| eprintln!("{text}"));
        }
    }

    /// Shows a line that the plugin logged.
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
        if self.document {
            return Ok(());
        }
        self.bar.suspend(|| output::print(text))
    }

    /// Shows the header of a table.
    pub(super) fn begin(&self, table: &AbiReport, plan: &Plan) -> Result<(), Failure> {
        self.bar.set_message(format!("v{}", table.abi));
        self.print(&report::title(table, plan))?;
        // The line about connections precedes the table of sizes.
        if plan.connections > 0 { Ok(()) } else { self.head(plan) }
    }

    /// Shows the names of the columns.
    fn head(&self, plan: &Plan) -> Result<(), Failure> {
        self.print(&report::head(plan, terminal_width()))
    }

    /// Shows the result for further connections.
    pub(super) fn connections(&self, connections: &Connections, plan: &Plan) -> Result<(), Failure> {
        self.print(&report::connections(connections))?;
        self.head(plan)
    }

    /// Shows a size's result.
    pub(super) fn row(&self, result: &SizeResult, plan: &Plan) -> Result<(), Failure> {
        self.bar.inc(1);
        let width = terminal_width();
        match &plan.fault {
            Some(fault) => {
                let line = |stage| report::stage(stage, &fault.device, width);
                result.stages.iter().try_for_each(|stage| self.print(&line(stage)))
            }
            None => self.print(&report::row(result, width)),
        }
    }

    /// Ends a table.
    pub(super) fn total(&self, table: &AbiReport, plan: &Plan) -> Result<(), Failure> {
        if table.results.len() > 1 {
            self.print(&report::total(&table.results, terminal_width()))?;
        }
        self.print(&report::reached(table, plan))?;
        self.print("\n")
    }

    /// Ends the output.
    pub(super) fn finish(&self) {
        self.bar.finish_and_clear();
    }
}
