//! `mpib top`: rails and connections of this host, on a screen that follows the traffic.

mod draw;
mod screen;
mod text;
mod view;

#[cfg(test)]
mod tests;

use std::io::{self, IsTerminal};
use std::process::ExitCode;
use std::thread::sleep;
use std::time::{Duration, Instant};

use clap::Args;
use mpib_host_view::{Host, Ledger, Source};
use nccl_net_mpib_agent_iface::stats::NoPage;

use crate::failure::{Failure, Kind};
use crate::output;
use crate::quantity::{interval, pid};
use crate::stats::Failed;
use draw::frame_as_text;
use screen::{Input, Screen};
use view::{Command, Sort, View};

const EXIT_CODES: &str = "\
Keys:
  s, S       sort connections by the next or previous column
  r          reverse the order
  /          enter a filter; Enter keeps it, Esc removes it
  p, space   pause
  arrows     scroll
  q, Ctrl-C  quit

Exit codes: those of \"mpib stats\"";

/// Shows rails, connections, shares, goodput and stalls of this host on a screen that follows the
/// traffic
#[derive(Debug, Clone, Args)]
#[command(after_help = EXIT_CODES)]
pub(crate) struct TopArgs {
    /// The process [default: all that this user may inspect]
    #[arg(value_parser = pid)]
    pid: Option<u32>,

    /// Time between two readings
    #[arg(long, value_name = "TIME", value_parser = interval, default_value = "1")]
    interval: Duration,

    /// Order of the connections
    #[arg(long, value_enum, default_value = "rate")]
    sort: Sort,

    /// Show only connections whose line or process contains this text
    #[arg(long, value_name = "TEXT", default_value = "")]
    filter: String,

    /// Print one frame as text; this is also what happens if the output is not a terminal
    #[arg(long)]
    once: bool,
}

/// Readings of the host, one after the other.
#[derive(Debug, Default)]
struct Readings {
    pid: Option<u32>,
    source: Source,
    ledger: Ledger,
    last: Option<Host>,
}

impl Readings {
    /// Returns the next reading, with the rates since the one before.
    fn next(&mut self) -> Result<Host, NoPage> {
        let mut now = match self.pid {
            Some(pid) => self.source.process(pid)?,
            None => self.source.host()?,
        };
        self.ledger.update(&mut now, &self.source.ports());
        if let Some(last) = self.last.replace(now.clone()) {
            now.rates(&last);
        }
        Ok(now)
    }
}

/// Runs the command and prints failures.
pub(crate) fn main(args: &TopArgs) -> ExitCode {
    let mut readings = Readings { pid: args.pid, ..Readings::default() };
    let view = View::new(args.sort, &args.filter);
    let done = if args.once || !io::stdout().is_terminal() || !io::stdin().is_terminal() {
        once(&mut readings, &view, args.interval)
    } else {
        follow(&mut readings, view, args.interval)
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(failed) => failed.print(),
    }
}

fn trouble(e: io::Error) -> Failed {
    Failure::new(Kind::Tool, format!("cannot use the terminal: {e}")).into()
}

/// Prints one frame, with the rates over one interval.
fn once(readings: &mut Readings, view: &View, interval: Duration) -> Result<(), Failed> {
    let read = |readings: &mut Readings| readings.next().map_err(|e| Failed::page(readings.pid, &e));
    read(readings)?;
    sleep(interval);
    let host = read(readings)?;
    Ok(output::print(&frame_as_text(&host, view))?)
}

/// Follows the traffic until a key or a signal ends it.
fn follow(readings: &mut Readings, mut view: View, interval: Duration) -> Result<(), Failed> {
    let mut host = readings.next().map_err(|e| Failed::page(readings.pid, &e))?;
    let mut screen = Screen::open().map_err(trouble)?;
    let ended = loop {
        screen.draw(|frame| draw::draw(frame, &host, &mut view)).map_err(trouble)?;
        let due = Instant::now() + interval;
        match handle_keys(&screen, &mut view, due).map_err(trouble)? {
            Next::Quit => break Ok(()),
            Next::Draw => {}
            Next::Read if view.is_paused() => {}
            Next::Read => match readings.next() {
                Ok(now) => host = now,
                Err(e) => break Err(Failed::page(readings.pid, &e)),
            },
        }
    };
    screen.close();
    ended
}

/// What follows the keys of an interval.
enum Next {
    Read,
    Draw,
    Quit,
}

fn handle_keys(screen: &Screen, view: &mut View, due: Instant) -> io::Result<Next> {
    loop {
        match screen.input(due.saturating_duration_since(Instant::now()))? {
            Input::Nothing => return Ok(Next::Read),
            Input::Resized => return Ok(Next::Draw),
            Input::Signal => return Ok(Next::Quit),
            Input::Key(key) => match view.key(key) {
                Command::Quit => return Ok(Next::Quit),
                Command::Draw => return Ok(Next::Draw),
                Command::None => {}
            },
        }
    }
}
