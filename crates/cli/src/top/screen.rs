//! The terminal: raw, with the alternate screen, and restored however the program ends.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use ratatui::crossterm::event::{self, Event, KeyEvent, KeyEventKind};
use ratatui::{DefaultTerminal, Frame};
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};
use signal_hook::low_level::emulate_default_handler;

/// How soon a signal is noticed.
const LOOK: Duration = Duration::from_millis(50);

/// The terminal while the screen is shown.
pub(super) struct Screen {
    terminal: DefaultTerminal,
    /// The signal that ends the program; 0 before.
    signal: Arc<AtomicUsize>,
}

/// What a person or the system has done.
pub(super) enum Input {
    Nothing,
    Key(KeyEvent),
    Resized,
    Signal,
}

impl Screen {
    /// Takes the terminal. A panic restores it, too.
    pub(super) fn open() -> io::Result<Self> {
        let signal = Arc::new(AtomicUsize::new(0));
        for number in [SIGHUP, SIGINT, SIGQUIT, SIGTERM] {
            signal_hook::flag::register_usize(number, Arc::clone(&signal), number as usize)?;
        }
        // A failure may leave the terminal half prepared.
        let terminal = ratatui::try_init().inspect_err(|_| ratatui::restore())?;
        Ok(Self { terminal, signal })
    }

    pub(super) fn draw(&mut self, draw: impl FnOnce(&mut Frame<'_>)) -> io::Result<()> {
        self.terminal.draw(draw).map(|_| ())
    }

    /// Waits for input, up to `wait`.
    pub(super) fn input(&self, wait: Duration) -> io::Result<Input> {
        let until = Instant::now() + wait;
        loop {
            if self.signal.load(Ordering::Relaxed) != 0 {
                return Ok(Input::Signal);
            }
            let rest = until.saturating_duration_since(Instant::now());
            if event::poll(rest.min(LOOK))? {
                match event::read()? {
                    Event::Key(key) if key.kind != KeyEventKind::Release => return Ok(Input::Key(key)),
                    Event::Resize(..) => return Ok(Input::Resized),
                    _ => {}
                }
            } else if rest.is_zero() {
                return Ok(Input::Nothing);
            }
        }
    }

    /// Restores the terminal. If a signal ends the program, the program ends by that signal.
    pub(super) fn close(self) {
        let signal = self.signal.load(Ordering::Relaxed);
        drop(self);
        if let Ok(number) = i32::try_from(signal)
            && number != 0
        {
            // Returns only if the signal is none that ends a program.
            let _ = emulate_default_handler(number);
        }
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        // The hook of `try_init` has restored the terminal before the panic's message. A second time
        // would move the cursor back over the message.
        if !std::thread::panicking() {
            ratatui::restore();
        }
    }
}
