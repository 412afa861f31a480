//! The text form of faults, for `SOFTVERBS_FAULTS`, [`run_faults`](crate::run_faults) and
//! `softverbs-ctl`.

use std::net::IpAddr;
use std::time::Duration;

use super::failure::{self, Failure};
use super::{CompletionStatus, CqOf, Direction, Fault, Only, Opcodes, Part, Then, names};
use crate::config::parse::{address, hex};
use crate::config::quantity;
use crate::error::Error;

/// Appended to every error.
pub(crate) const FORM: &str = "DEVICE:FAULT,KEY=VALUE,...;DEVICE:... with the faults link=down|up, \
     silence=in|out|both, lost_ack, late=20ms, partial=4096|50%, fatal, cq_err=send|recv, qp_err, srq_err, \
     status=11|IBV_WC_REM_OP_ERR, recv_status=2, errno=CALL:EIO[:COUNT], slow=CALL:20ms|never[:COUNT], addrs=10.0.0.1/24+none, rate=500MB, flap=SEED, heal, and the keys at=N, only=write|imm|remote (joined by +), \
     then=silent|down|alive, vendor=0x88, takes=20ms, event=off, down=1ms-5ms, up=10ms-50ms";

/// A device that goes down and up by itself, for [`flap`](crate::flap).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Flap {
    /// Determines the times: the same seed gives the same sequence.
    pub seed: u64,
    /// Shortest and longest time down.
    pub down: (Duration, Duration),
    /// Shortest and longest time up.
    pub up: (Duration, Duration),
}

/// Whether the adapter raises an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Seen {
    #[default]
    Event,
    Unseen,
}

/// What a statement does to its device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Action {
    /// Injects a fault: at once, or at a work request.
    Inject(Fault, Option<u64>, Only),
    /// Replaces the addresses.
    Addrs(Vec<Option<(IpAddr, u8)>>),
    /// Changes the rate, in bytes per second; 0 is the one of `SOFTVERBS_DEVICES`. With an event, unless
    /// it happens unseen.
    Rate(u64, Seen),
    /// Fails calls, or slows them down.
    Fail(Vec<Failure>),
    /// Lets the link flap.
    Flap(Flap),
    /// Ends all faults.
    Heal,
}

/// A statement of a script.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Statement {
    pub(crate) device: String,
    pub(crate) action: Action,
}

/// Parses statements separated by semicolons.
pub(crate) fn parse(text: &str) -> Result<Vec<Statement>, Error> {
    let parts = text.split(';').map(str::trim).filter(|part| !part.is_empty());
    let statements: Vec<_> = parts.map(statement).collect::<Result<_, _>>()?;
    if statements.is_empty() {
        return Err(Error(String::from("found no statement")));
    }
    Ok(statements)
}

fn statement(text: &str) -> Result<Statement, Error> {
    let (device, rest) = text
        .split_once(':')
        .ok_or_else(|| Error(format!("{}: expected DEVICE:FAULT", text.escape_debug())))?;
    Ok(Statement { device: device.trim().to_owned(), action: action(rest)? })
}

/// Parses what follows the device in a statement.
pub(crate) fn action(text: &str) -> Result<Action, Error> {
    let bad = |why: &str| Error(format!("{}: {why}", text.trim().escape_debug()));
    let mut words = text.split(',').map(|word| {
        let (key, value) = word.split_once('=').unwrap_or((word, ""));
        (key.trim(), value.trim())
    });
    let first = words.next().unwrap_or_default();
    let mut keys = Keys::default();
    for (key, value) in words {
        keys.set(key, value).map_err(|why| bad(&format!("{}: {why}", key.escape_debug())))?;
    }
    let action = keys.action(first).map_err(|why| bad(&why))?;
    keys.all_used().map_err(|why| bad(&why))?;
    Ok(action)
}

type Range = (Duration, Duration);

/// The keys of a statement. An action takes those that it knows.
#[derive(Default)]
struct Keys<'a> {
    at: Option<u64>,
    only: Option<Only>,
    then: Option<Then>,
    vendor: Option<u32>,
    takes: Option<&'a str>,
    seen: Option<Seen>,
    down: Option<Range>,
    up: Option<Range>,
}

impl<'a> Keys<'a> {
    fn set(&mut self, key: &str, value: &'a str) -> Result<(), String> {
        match key {
            "at" => once(&mut self.at, number(value).filter(|at| *at > 0).ok_or("expected a number from 1")?),
            "only" => once(&mut self.only, only(value)?),
            "then" => once(&mut self.then, then(value)?),
            "vendor" => once(&mut self.vendor, word32(value).ok_or("expected a number, like 136 or 0x88")?),
            "takes" => once(&mut self.takes, value),
            "event" => once(&mut self.seen, seen(value)?),
            "down" => once(&mut self.down, range(value)?),
            "up" => once(&mut self.up, range(value)?),
            _ => Err(String::from("expected one of the keys at, only, then, vendor, takes, event, down, up")),
        }
    }

    fn action(&mut self, (name, value): (&str, &str)) -> Result<Action, String> {
        let plain = |fault| match value {
            "" => Ok(fault),
            _ => Err(format!("{name} has no value")),
        };
        let fault = match (name, value) {
            ("heal", "") => return Ok(Action::Heal),
            ("addrs", _) => return addrs(value).map(Action::Addrs),
            ("rate", _) => {
                let rate = if value == "default" { 0 } else { quantity::rate(value)? };
                return Ok(Action::Rate(rate, self.seen.take().unwrap_or_default()));
            }
            ("flap", _) => return self.flap(value).map(Action::Flap),
            ("errno" | "slow", _) => {
                let failures = failure::failures(name, value, self.at.take(), self.takes.take());
                return failures.map(Action::Fail).map_err(|why| format!("{name}: {why}"));
            }
            ("link", "down") => Fault::LinkDown,
            ("link", "up") => Fault::LinkUp,
            ("link", _) => return Err(String::from("expected link=down or link=up")),
            ("silence", "in") => Fault::Silence(Direction::In),
            ("silence", "out") => Fault::Silence(Direction::Out),
            ("silence", "both" | "") => Fault::Silence(Direction::Both),
            ("silence", _) => return Err(String::from("expected silence=in, silence=out or silence=both")),
            ("lost_ack", _) => plain(Fault::LostAck(self.then.take().unwrap_or_default()))?,
            ("late", _) => {
                let after = quantity::nanoseconds(value).map_err(|why| format!("late: {why}"))?;
                Fault::Late(Duration::from_nanos(after), self.then.take().unwrap_or_default())
            }
            ("partial", _) => Fault::Partial(part(value)?, self.then.take().unwrap_or_default()),
            ("fatal", _) => plain(Fault::DeviceFatal)?,
            ("cq_err", "send" | "") => Fault::CqError(CqOf::Send),
            ("cq_err", "recv") => Fault::CqError(CqOf::Recv),
            ("cq_err", _) => return Err(String::from("expected cq_err=send or cq_err=recv")),
            ("qp_err", _) => plain(Fault::QpError)?,
            ("srq_err", _) => plain(Fault::SrqError)?,
            ("status", _) => Fault::Status(self.status(value)?),
            ("recv_status", _) => Fault::RecvStatus(self.status(value)?),
            _ => return Err(format!("{} is no fault", name.escape_debug())),
        };
        Ok(Action::Inject(fault, self.at.take(), self.only.take().unwrap_or_default()))
    }

    fn status(&mut self, status: &str) -> Result<CompletionStatus, String> {
        let status = word32(status).filter(|status| *status > 0).or_else(|| names::status(status));
        let status = status.ok_or(
            "expected the name or the number of a status (enum ibv_wc_status), like IBV_WC_REM_OP_ERR or 11",
        )?;
        Ok(CompletionStatus { status, vendor_err: self.vendor.take().unwrap_or(0) })
    }

    fn flap(&mut self, seed: &str) -> Result<Flap, String> {
        let seed = number(seed).ok_or("expected flap=SEED, a number")?;
        let short = (Duration::from_millis(1), Duration::from_millis(20));
        Ok(Flap { seed, down: self.down.take().unwrap_or(short), up: self.up.take().unwrap_or(short) })
    }

    /// Fails if there is a key that the action does not know.
    fn all_used(&self) -> Result<(), String> {
        let left = [
            ("at", self.at.is_some()),
            ("only", self.only.is_some()),
            ("then", self.then.is_some()),
            ("vendor", self.vendor.is_some()),
            ("takes", self.takes.is_some()),
            ("event", self.seen.is_some()),
            ("down", self.down.is_some()),
            ("up", self.up.is_some()),
        ];
        match left.iter().find(|(_, unused)| *unused) {
            Some((key, _)) => Err(format!("{key}= does not apply to this fault")),
            None => Ok(()),
        }
    }
}

fn once<T>(place: &mut Option<T>, value: T) -> Result<(), String> {
    match place.replace(value) {
        None => Ok(()),
        Some(_) => Err(String::from("found twice")),
    }
}

fn number(text: &str) -> Option<u64> {
    text.parse().ok()
}

fn word32(text: &str) -> Option<u32> {
    hex(text).or_else(|| number(text))?.try_into().ok()
}

fn only(text: &str) -> Result<Only, String> {
    let mut only = Only::ALL;
    for word in text.split('+') {
        match word.trim() {
            "write" => only.opcodes = Opcodes::Writes,
            "imm" => only.opcodes = Opcodes::WritesWithImm,
            "remote" => only.remote = true,
            _ => return Err(String::from("expected write, imm or remote, joined by +")),
        }
    }
    Ok(only)
}

fn seen(text: &str) -> Result<Seen, String> {
    match text {
        "on" => Ok(Seen::Event),
        "off" => Ok(Seen::Unseen),
        _ => Err(String::from("expected on or off")),
    }
}

fn then(text: &str) -> Result<Then, String> {
    match text {
        "silent" => Ok(Then::Silent),
        "down" => Ok(Then::Down),
        "alive" => Ok(Then::Alive),
        _ => Err(String::from("expected silent, down or alive")),
    }
}

fn range(text: &str) -> Result<Range, String> {
    let expected = || String::from("expected a range of times, like 1ms-20ms");
    let (from, to) = text.split_once('-').ok_or_else(expected)?;
    let time = |text: &str| quantity::nanoseconds(text.trim()).map(Duration::from_nanos);
    let range = (time(from)?, time(to)?);
    if range.0 > range.1 || range.0.is_zero() { Err(expected()) } else { Ok(range) }
}

fn part(text: &str) -> Result<Part, String> {
    let percent = text.strip_suffix('%').map(|n| number(n).filter(|n| *n <= 100));
    let part = match percent {
        Some(percent) => percent.and_then(|n| u8::try_from(n).ok()).map(Part::Percent),
        None => number(text).map(Part::Bytes),
    };
    part.ok_or_else(|| String::from("expected partial=BYTES, or partial=50%"))
}

fn addrs(text: &str) -> Result<Vec<Option<(IpAddr, u8)>>, String> {
    let one = |word: &str| if word.trim() == "none" { Ok(None) } else { address(word).map(Some) };
    text.split('+').map(one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::call::Call;

    fn one(text: &str) -> Action {
        let mut all = parse(text).expect(text);
        assert_eq!((all.len(), all[0].device.as_str()), (1, "a"));
        all.remove(0).action
    }

    #[test]
    fn each_fault_has_its_text() {
        let inject = |fault| Action::Inject(fault, None, Only::ALL);
        let ms = Duration::from_millis;
        let silent = Then::Silent;
        for (text, action) in [
            ("a:link=down", inject(Fault::LinkDown)),
            ("a: link = up ;", inject(Fault::LinkUp)),
            ("a:silence=out", inject(Fault::Silence(Direction::Out))),
            ("a:silence,at=3", Action::Inject(Fault::Silence(Direction::Both), Some(3), Only::ALL)),
            ("a:lost_ack,then=down", inject(Fault::LostAck(Then::Down))),
            ("a:late=20ms", inject(Fault::Late(ms(20), silent))),
            ("a:partial=50%", inject(Fault::Partial(Part::Percent(50), silent))),
            (
                "a:partial=8,at=2,only=imm+remote",
                Action::Inject(
                    Fault::Partial(Part::Bytes(8), silent),
                    Some(2),
                    Only::WRITES_WITH_IMM.remote(),
                ),
            ),
            ("a:fatal", inject(Fault::DeviceFatal)),
            ("a:cq_err=recv", inject(Fault::CqError(CqOf::Recv))),
            ("a:qp_err,at=2", Action::Inject(Fault::QpError, Some(2), Only::ALL)),
            ("a:srq_err", inject(Fault::SrqError)),
            ("a:status=11", inject(Fault::Status(11.into()))),
            (
                "a:status=4294967295,vendor=0x88,at=2",
                Action::Inject(
                    Fault::Status(CompletionStatus { status: u32::MAX, vendor_err: 0x88 }),
                    Some(2),
                    Only::ALL,
                ),
            ),
            (
                "a:recv_status=2,vendor=7",
                inject(Fault::RecvStatus(CompletionStatus { status: 2, vendor_err: 7 })),
            ),
            ("a:status=IBV_WC_REM_OP_ERR", inject(Fault::Status(11.into()))),
            ("a:errno=create_qp:EIO", Action::Fail(vec![Call::CreateQp.fails(libc::EIO)])),
            (
                "a:errno=modify_rtr:110:always,takes=20ms,at=3",
                Action::Fail(vec![
                    Call::ModifyRtr.fails(libc::ETIMEDOUT).times(u32::MAX).takes(ms(20)).after(2),
                ]),
            ),
            ("a:slow=reg_mr:never:2", Action::Fail(vec![Call::RegMr.fails(0).times(2).takes(Duration::MAX)])),
            ("a:heal", Action::Heal),
            ("a:rate=2.5GB", Action::Rate(2_500_000_000, Seen::Event)),
            ("a:rate=1GB,event=off", Action::Rate(1_000_000_000, Seen::Unseen)),
            ("a:rate=default", Action::Rate(0, Seen::Event)),
            ("a:addrs=none+10.0.0.1/24", Action::Addrs(vec![None, Some(([10, 0, 0, 1].into(), 24))])),
            (
                "a:flap=7,down=1ms-2ms,up=3ms-4ms",
                Action::Flap(Flap { seed: 7, down: (ms(1), ms(2)), up: (ms(3), ms(4)) }),
            ),
        ] {
            assert_eq!(one(text), action, "{text}");
        }
        assert_eq!(parse("a:fatal;b:heal").expect("two").len(), 2);
    }

    #[test]
    fn wrong_text_is_named() {
        for (text, word) in [
            ("", "no statement"),
            ("a", "DEVICE:FAULT"),
            ("a:dead", "dead"),
            ("a:link=left", "link=down"),
            ("a:lost_ack=3", "no value"),
            ("a:srq_err=1", "no value"),
            ("a:late=20", "time"),
            ("a:partial=101%", "partial="),
            ("a:fatal,at=0", "at"),
            ("a:fatal,at=1,at=2", "twice"),
            ("a:fatal,then=alive", "then="),
            ("a:silence,only=reads", "write, imm"),
            ("a:flap", "SEED"),
            ("a:flap=1,down=5ms-1ms", "range"),
            ("a:addrs=10.0.0.1", "prefix"),
            ("a:rate=0GB", "rate"),
            ("a:status", "number of a status"),
            ("a:status=0", "number of a status"),
            ("a:recv_status=4294967296", "number of a status"),
            ("a:status=2,vendor=-1", "vendor: expected a number"),
            ("a:fatal,vendor=1", "vendor="),
            ("a:status=REM_OP_ERR", "IBV_WC_REM_OP_ERR"),
            ("a:errno=create_qp", "CALL:ERRNO"),
            ("a:errno=req_cq:EIO", "found \"req_cq\", expected one of the calls modify_qp, open_device"),
            ("a:errno=create_qp:EWHAT", "found \"EWHAT\", expected the name or the number of an errno"),
            ("a:errno=create_qp:EIO:-1", "number of calls"),
            ("a:errno=create_qp:EIO:1:2", "no more than"),
            ("a:errno=post_send:EIO,takes=1ms", "take no time"),
            ("a:errno=create_qp:EIO,takes=1", "expected a time"),
            ("a:slow=create_qp:EIO", "or never"),
            ("a:slow=create_qp:1ms,takes=1ms", "takes="),
            ("a:fatal,takes=1ms", "takes="),
            ("a:rate=1GB,event=no", "on or off"),
            ("a:fatal,event=off", "event="),
        ] {
            let error = parse(text).expect_err(text).to_string();
            assert!(error.contains(word), "{text}: {error}");
        }
    }
}
