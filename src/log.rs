//! Passes lines of `tracing` to NCCL's logger.
//!
//! WARN means that a call failed, once per failure: NCCL keeps it as its last error. INFO is for an
//! operator who set `NCCL_DEBUG=INFO`. DEBUG and TRACE are both NCCL's TRACE. The target of both is
//! the subsystem: `init`, `env` or `net`.

mod output;

use std::ffi::{CString, c_int, c_ulong};
use std::fmt::{self, Write};
use std::sync::Once;

use nccl_net_abi::{NCCL_ENV, NCCL_INIT, NCCL_NET};
use nccl_net_mpib_agent_iface::codes::Code;
use nccl_net_versions::{Level, Logger};
use tracing::field::{Field, Visit};
use tracing::{Event, Metadata, Subscriber};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};

pub(crate) use output::Hold;
use output::Record;
pub use output::flush;
pub(crate) use output::{keep_logger, leave};

/// Sends lines to `logger` from now on. Lines before the first call are dropped.
pub fn install(logger: Logger) {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // An error means that the process is a test with its own subscriber. A plugin file links
        // its own copy of `tracing`, which has none.
        let _ = tracing::subscriber::set_global_default(tracing_subscriber::registry().with(ToNccl));
    });
    output::set_logger(logger);
}

struct ToNccl;

impl<S: Subscriber> Layer<S> for ToNccl {
    /// Passes this project's lines, not those of its libraries.
    fn enabled(&self, meta: &Metadata<'_>, _: Context<'_, S>) -> bool {
        let target = meta.target();
        matches!(target, "init" | "env" | "net") || target.starts_with("nccl_net_")
    }

    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let meta = event.metadata();
        let mut message = Line(String::new());
        event.record(&mut message);
        let level = level(*meta.level(), meta.target());
        let code = (level == Level::Warn).then(|| Code::of_log(&message.0));
        let record = Record {
            level,
            file: c_string(meta.file().unwrap_or("?")),
            number: c_int::try_from(meta.line().unwrap_or(0)).unwrap_or(0),
            lines: lines(&bounded(message.0), code),
        };
        record.send();
    }
}

/// Cuts a message into lines. A warning ends in its code.
fn lines(message: &str, code: Option<Code>) -> Vec<CString> {
    let line = |text: &str| c_string(&format!("NET/MPIB : {text}"));
    let end = code.map_or_else(String::new, |code| format!(" [{code}]"));
    let message = format!("{message}{end}");
    let (head, mut rest) = cut(&message);
    if rest.is_empty() {
        return vec![line(head)];
    }
    let mut lines = vec![line(&format!("{head} …"))];
    while !rest.is_empty() {
        let (piece, more) = cut(rest);
        lines.push(line(&format!("… {piece}{}", if more.is_empty() { "" } else { " …" })));
        rest = more;
    }
    // NCCL keeps the last warning as its last error: the cause, not the end of the advice.
    if code.is_some() {
        lines.push(line(&format!("{AGAIN}{}{end}", sentence(head))));
    }
    lines
}

/// Returns the first sentence of a text, or its first part before a semicolon; all of a text without
/// an end of either kind.
fn sentence(head: &str) -> String {
    let end = ["; ", ". "].iter().filter_map(|end| head.find(end)).min();
    end.map_or_else(|| format!("{head} …"), |end| head[..end].to_owned())
}

/// Begins the last line of a warning of several lines.
const AGAIN: &str = "in short: ";

/// Most bytes of a message in one line: many releases of NCCL cut a line, with their prefix, at
/// 1023.
const LINE: usize = 800;

/// Most bytes of a message in all. A peer has a say in the length of some.
const MESSAGE: usize = 32 << 10;

/// Cuts a message that is too long for the log.
fn bounded(mut text: String) -> String {
    let left = text.len() - mpib_proto::head(&text, MESSAGE).len();
    if left > 0 {
        text.truncate(text.len() - left);
        text.push_str(&format!(" … and {left} more bytes"));
    }
    text
}

/// Splits `text` into what one line has room for, up to a space if there is one, and the rest.
fn cut(text: &str) -> (&str, &str) {
    if text.len() <= LINE {
        return (text, "");
    }
    let head = mpib_proto::head(text, LINE);
    match head.rfind(' ').filter(|at| *at > 0) {
        Some(at) => (&text[..at], &text[at + 1..]),
        None => text.split_at(head.len()),
    }
}

fn level(level: tracing::Level, target: &str) -> Level {
    match level {
        tracing::Level::ERROR | tracing::Level::WARN => Level::Warn,
        tracing::Level::INFO => Level::Info(subsystems(target)),
        tracing::Level::DEBUG | tracing::Level::TRACE => Level::Trace(subsystems(target)),
    }
}

fn subsystems(target: &str) -> c_ulong {
    match target {
        "init" => NCCL_INIT | NCCL_NET,
        "env" => NCCL_ENV,
        _ => NCCL_NET,
    }
}

/// Makes one line of text: characters that would end the string or the line are replaced.
fn c_string(text: &str) -> CString {
    CString::new(mpib_proto::printable(text)).unwrap_or_default()
}

/// The message, followed by the fields as ` name=value`.
struct Line(String);

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        // Writing to a String cannot fail.
        let _ = match field.name() {
            "message" => write!(self.0, "{value:?}"),
            name => write!(self.0, " {name}={value:?}"),
        };
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::CStr;
    use std::sync::Mutex;

    use super::*;

    type Seen = (Level, String, String);
    static FIRST: Mutex<Vec<Seen>> = Mutex::new(Vec::new());
    static SECOND: Mutex<Vec<Seen>> = Mutex::new(Vec::new());

    fn keep(list: &Mutex<Vec<Seen>>, level: Level, file: &CStr, text: &CStr) {
        let line = (level, file.to_string_lossy().into_owned(), text.to_string_lossy().into_owned());
        // Other tests of this process log as well.
        if line.2.contains("log test") {
            list.lock().unwrap().push(line);
        }
    }

    #[test]
    fn long_messages_are_cut_at_spaces_and_nothing_is_lost() {
        let words: Vec<String> = (0..1000).map(|i| format!("wörd{i}")).collect();
        let text = words.join(" ");
        let (mut rest, mut pieces) = (text.as_str(), Vec::new());
        while !rest.is_empty() {
            let (piece, more) = cut(rest);
            assert!((1..=LINE).contains(&piece.len()), "{} bytes", piece.len());
            pieces.push(piece);
            rest = more;
        }
        assert_eq!(pieces.join(" "), text);
        assert!(pieces.len() <= text.len() / LINE + 2);
        // Without a space: between any two characters.
        let accents = "é".repeat(1000);
        let (piece, more) = cut(&accents);
        assert_eq!((piece.len(), more.len()), (LINE, 2000 - LINE));
        assert_eq!(cut("short"), ("short", ""));
        assert_eq!(cut(&"x".repeat(LINE)), ("x".repeat(LINE).as_str(), ""));
    }

    #[test]
    fn a_message_has_a_bound() {
        assert_eq!(bounded("x".repeat(MESSAGE)), "x".repeat(MESSAGE));
        // Between characters.
        let long = bounded(format!("x{}", "é".repeat(MESSAGE)));
        assert_eq!(long.len(), MESSAGE - 1 + " … and 32770 more bytes".len(), "{}", long.len());
        assert!(long.ends_with("é … and 32770 more bytes"), "{}", &long[MESSAGE - 10..]);
    }

    #[test]
    fn lines_reach_the_logger_of_the_last_init() {
        tracing::warn!(target: "net", "log test: before init");
        install(Logger::from_fn(|level, file, _, text| keep(&FIRST, level, file, text)));
        tracing::warn!(target: "net", "log test: {} %s %n", 1);
        tracing::info!(target: "init", rail = 1, "log test: two\nlines\0");
        tracing::debug!("log test: three");
        tracing::info!(target: "env", "log test: four");
        tracing::error!(target: "mio", "log test: of a library");
        flush();
        install(Logger::from_fn(|level, file, _, text| keep(&SECOND, level, file, text)));
        tracing::warn!(target: "net", "log test: five");
        flush();
        let texts = |list: &Mutex<Vec<Seen>>| {
            let seen = list.lock().unwrap();
            assert!(seen.iter().all(|s| s.1.ends_with("src/log.rs")));
            seen.iter().map(|s| (s.0, s.2.clone())).collect::<Vec<_>>()
        };
        assert_eq!(
            texts(&FIRST),
            [
                (Level::Warn, "NET/MPIB : log test: 1 %s %n [MPIB-100]".into()),
                (Level::Info(NCCL_INIT | NCCL_NET), "NET/MPIB : log test: two?lines? rail=1".into()),
                (Level::Trace(NCCL_NET), "NET/MPIB : log test: three".into()),
                (Level::Info(NCCL_ENV), "NET/MPIB : log test: four".into()),
            ]
        );
        assert_eq!(texts(&SECOND), [(Level::Warn, "NET/MPIB : log test: five [MPIB-100]".into())]);
        the_last_line_of_a_long_warning_is_its_beginning();
    }

    /// A part of the test above: there is one logger.
    fn the_last_line_of_a_long_warning_is_its_beginning() {
        static LONG: Mutex<Vec<Seen>> = Mutex::new(Vec::new());
        install(Logger::from_fn(|level, file, _, text| keep(&LONG, level, file, text)));
        let filler = "log test ".repeat(200);
        tracing::warn!(target: "net", "the cause, {filler}and the advice of a log test");
        tracing::info!(target: "net", "no warning, {filler}and more of a log test");
        flush();
        let seen = LONG.lock().unwrap();
        let texts = |of: Level| -> Vec<&str> { seen.iter().filter(|s| s.0 == of).map(|s| &*s.2).collect() };
        let [first, _, end, last] = texts(Level::Warn)[..] else { panic!("{seen:?}") };
        assert!(first.starts_with("NET/MPIB : the cause, log test ") && first.ends_with(" …"), "{first}");
        assert!(
            end.starts_with("NET/MPIB : … ") && end.ends_with("the advice of a log test [MPIB-100]"),
            "{end}"
        );
        assert_eq!(last, first.replace("NET/MPIB : ", "NET/MPIB : in short: ") + " [MPIB-100]");
        assert_eq!(sentence("a: b 10.0.0.1; c. d"), "a: b 10.0.0.1");
        assert_eq!(sentence("a: b (c). d; e"), "a: b (c)");
        assert!(texts(Level::Info(NCCL_NET)).last().unwrap().ends_with("and more of a log test"), "{seen:?}");
    }
}
