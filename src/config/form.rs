//! Forms of values: how they parse, how an error describes them, how they are written.

use std::ffi::OsStr;
use std::fmt::Display;
use std::marker::PhantomData;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use super::items::{self, NotOfThisForm, shown};
use crate::error::BadSetting;
use crate::proto::{Mode, RoutePolicy};

/// The form of one setting.
pub(super) trait Form {
    /// The parsed value.
    type Value;
    /// Returns `None` for a text that is not of this form. `text` has no space around it.
    fn parse(&self, text: &str) -> Option<Self::Value>;
    /// Describes valid values.
    fn expected(&self) -> String;
    /// Writes the value as a user would.
    fn show(&self, value: &Self::Value) -> String;
    /// Names the item of a list that does not fit. `None` if the value is no list of several items.
    fn misfit(&self, _text: &str) -> Option<String> {
        None
    }
    /// Whether a value is a list, in which empty items are skipped.
    fn is_list(&self) -> bool {
        false
    }
    /// Returns the value that is used, with a warning, for a text that does not parse. `None`: the
    /// text is an error.
    fn substitute(&self, _text: &str) -> Option<Self::Value> {
        None
    }
}

/// Parses the text of one variable.
pub(super) fn parse<F: Form>(form: &F, variable: &'static str, text: &OsStr) -> Result<F::Value, BadSetting> {
    let trimmed = text.to_str().map(str::trim);
    trimmed.and_then(|t| form.parse(t)).ok_or_else(|| {
        let found = shown(&text.to_string_lossy());
        let misfit = trimmed.and_then(|t| form.misfit(t)).map(|why| format!("; {why}"));
        BadSetting { variable, found, expected: form.expected() + ", or unset" + &misfit.unwrap_or_default() }
    })
}

/// Whether the value is a list with empty items, which are skipped.
pub(super) fn has_empty_items<F: Form>(form: &F, text: &OsStr) -> bool {
    form.is_list() && text.to_str().is_some_and(items::has_empty_items)
}

/// Returns the value that is used for a text that does not parse, and how a warning names it.
pub(super) fn substitute<F: Form>(form: &F, text: &OsStr) -> Option<(F::Value, String)> {
    let value = form.substitute(text.to_str()?.trim())?;
    let shown = form.show(&value);
    Some((value, shown))
}

/// The header of the manual's table.
pub(super) const HEAD: &str =
    "| variable | value | default | meaning | beside NCCL 2.32 |\n|---|---|---|---|---|\n";

/// Makes one line of the manual's table.
pub(super) fn row<F: Form>(
    variable: &str,
    form: &F,
    default: &F::Value,
    doc: &[&str],
    differs: &[&str],
) -> String {
    let doc: Vec<&str> = doc.iter().map(|d| d.trim()).collect();
    let value = form.expected().replace('|', "\\|");
    let beside = match differs.first() {
        Some(how) => how,
        None if variable.starts_with("NCCL_") => "the same",
        None => "",
    };
    format!("| `{variable}` | {value} | {} | {} | {beside} |\n", form.show(default), doc.join(" "))
}

/// 0 or 1.
#[derive(Debug)]
pub(super) struct Flag;

impl Form for Flag {
    type Value = bool;
    fn parse(&self, text: &str) -> Option<bool> {
        match text {
            "0" => Some(false),
            "1" => Some(true),
            _ => None,
        }
    }
    fn expected(&self) -> String {
        "0 or 1".into()
    }
    fn show(&self, value: &bool) -> String {
        u8::from(*value).to_string()
    }
}

/// Parses a decimal number, or a hexadecimal one after `0x`, which NCCL reads too.
pub(super) fn number(text: &str) -> Option<u64> {
    let (digits, radix) = match text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
        Some(hex) => (hex, 16),
        None => (text, 10),
    };
    // `from_str_radix` alone would accept a sign.
    digits.bytes().all(|b| b.is_ascii_hexdigit()).then(|| u64::from_str_radix(digits, radix).ok())?
}

/// A whole number within bounds.
#[derive(Debug)]
pub(super) struct Whole<T> {
    low: T,
    high: T,
}

impl<T> Whole<T> {
    pub(super) const fn new(low: T, high: T) -> Self {
        Self { low, high }
    }
}

impl<T: TryFrom<u64> + PartialOrd + Display> Form for Whole<T> {
    type Value = T;
    fn parse(&self, text: &str) -> Option<T> {
        number(text).and_then(|n| T::try_from(n).ok()).filter(|n| (&self.low..=&self.high).contains(&n))
    }
    fn expected(&self) -> String {
        format!("a whole number from {} to {}", self.low, self.high)
    }
    fn show(&self, value: &T) -> String {
        value.to_string()
    }
}

/// A whole number within bounds. The largest one is used, with a warning, for any number out of
/// bounds: verbs keeps a few bits of such a number, or takes 0 for no limit.
#[derive(Debug)]
pub(super) struct WholeOrLargest<T>(Whole<T>);

impl<T> WholeOrLargest<T> {
    pub(super) const fn new(low: T, high: T) -> Self {
        Self(Whole::new(low, high))
    }
}

impl<T: TryFrom<u64> + PartialOrd + Display + Copy> Form for WholeOrLargest<T> {
    type Value = T;
    fn parse(&self, text: &str) -> Option<T> {
        self.0.parse(text)
    }
    fn expected(&self) -> String {
        self.0.expected()
    }
    fn show(&self, value: &T) -> String {
        self.0.show(value)
    }
    fn substitute(&self, text: &str) -> Option<T> {
        number(text).map(|_| self.0.high)
    }
}

/// A value that may be unset.
#[derive(Debug)]
pub(super) struct Optional<F>(pub(super) F);

impl<F: Form> Form for Optional<F> {
    type Value = Option<F::Value>;
    fn parse(&self, text: &str) -> Option<Self::Value> {
        self.0.parse(text).map(Some)
    }
    fn expected(&self) -> String {
        self.0.expected()
    }
    fn show(&self, value: &Self::Value) -> String {
        value.as_ref().map_or("unset".into(), |value| self.0.show(value))
    }
}

/// `MPIB_MODE`
#[derive(Debug)]
pub(super) struct ModeNumber;

impl Form for ModeNumber {
    type Value = Mode;
    fn parse(&self, text: &str) -> Option<Mode> {
        match text {
            "0" => Some(Mode::Vanilla),
            "1" => Some(Mode::Advanced),
            _ => None,
        }
    }
    fn expected(&self) -> String {
        "0 or 1".into()
    }
    fn show(&self, value: &Mode) -> String {
        (*value as u8).to_string()
    }
}

/// A number, or -1 for "choose".
#[derive(Debug)]
pub(super) struct WholeOrAuto<T>(Whole<T>);

impl<T> WholeOrAuto<T> {
    pub(super) const fn new(low: T, high: T) -> Self {
        Self(Whole::new(low, high))
    }
}

impl<T: TryFrom<u64> + PartialOrd + Display> Form for WholeOrAuto<T> {
    type Value = Option<T>;
    fn parse(&self, text: &str) -> Option<Option<T>> {
        if text == "-1" { Some(None) } else { self.0.parse(text).map(Some) }
    }
    fn expected(&self) -> String {
        format!("-1 or {}", self.0.expected())
    }
    fn show(&self, value: &Option<T>) -> String {
        value.as_ref().map_or("-1".into(), ToString::to_string)
    }
}

/// Another form, or -2 for NCCL's default.
#[derive(Debug)]
pub(super) struct OrDefault<F>(pub(super) F);

impl<F: Form> Form for OrDefault<F> {
    type Value = Option<F::Value>;
    fn parse(&self, text: &str) -> Option<Option<F::Value>> {
        if text == "-2" { Some(None) } else { self.0.parse(text).map(Some) }
    }
    fn expected(&self) -> String {
        format!("-2 or {}", self.0.expected())
    }
    fn show(&self, value: &Option<F::Value>) -> String {
        value.as_ref().map_or("-2".into(), |v| self.0.show(v))
    }
}

/// A whole number within bounds, or nothing.
#[derive(Debug)]
pub(super) struct WholeOrUnset<T>(Whole<T>);

impl<T> WholeOrUnset<T> {
    pub(super) const fn new(low: T, high: T) -> Self {
        Self(Whole::new(low, high))
    }
}

impl<T: TryFrom<u64> + PartialOrd + Display> Form for WholeOrUnset<T> {
    type Value = Option<T>;
    fn parse(&self, text: &str) -> Option<Option<T>> {
        self.0.parse(text).map(Some)
    }
    fn expected(&self) -> String {
        self.0.expected()
    }
    fn show(&self, value: &Option<T>) -> String {
        value.as_ref().map_or("unset".into(), ToString::to_string)
    }
}

/// An absolute path with a maximum length in bytes.
#[derive(Debug)]
pub(super) struct AbsolutePath(usize);

impl AbsolutePath {
    pub(super) const fn new(longest: usize) -> Self {
        Self(longest)
    }
}

impl Form for AbsolutePath {
    type Value = PathBuf;
    fn parse(&self, text: &str) -> Option<PathBuf> {
        let good = text.starts_with('/') && !text.ends_with('/') && text.len() <= self.0;
        good.then(|| text.into())
    }
    fn expected(&self) -> String {
        format!("an absolute path of a file, at most {} bytes", self.0)
    }
    fn show(&self, value: &PathBuf) -> String {
        value.display().to_string()
    }
}

/// A time as a whole number of a unit.
#[derive(Debug)]
pub(super) struct Time {
    number: Whole<u64>,
    /// The unit in milliseconds.
    unit: u64,
    symbol: &'static str,
}

impl Time {
    pub(super) const fn millis(low: u64, high: u64) -> Self {
        Self { number: Whole::new(low, high), unit: 1, symbol: "ms" }
    }

    pub(super) const fn seconds(low: u64, high: u64) -> Self {
        Self { number: Whole::new(low, high), unit: 1000, symbol: "s" }
    }
}

impl Form for Time {
    type Value = Duration;
    fn parse(&self, text: &str) -> Option<Duration> {
        self.number.parse(text).map(|n| Duration::from_millis(n * self.unit))
    }
    fn expected(&self) -> String {
        format!("{} ({})", self.number.expected(), self.symbol)
    }
    fn show(&self, value: &Duration) -> String {
        (value.as_millis() / u128::from(self.unit)).to_string()
    }
}

/// A type that parses itself.
pub(super) trait Described: FromStr<Err: Into<NotOfThisForm>> + Display {
    /// Describes valid values.
    const EXPECTED: &'static str;
    /// Whether its values are lists.
    const LIST: bool = false;
}

/// Returns what is wrong with which of several items.
fn misfit<T: Described>(text: &str) -> Option<String> {
    let several = T::LIST && text.contains(',');
    text.parse::<T>().err().filter(|_| several).and_then(|e| e.into().item)
}

impl Described for RoutePolicy {
    const EXPECTED: &'static str = "any, strict, prefer-subnet or subnet";
}

/// An optional value of a type that parses itself.
#[derive(Debug)]
pub(super) struct Parsed<T>(PhantomData<T>);

impl<T> Parsed<T> {
    pub(super) const OPTIONAL: Self = Self(PhantomData);
}

impl<T: Described> Form for Parsed<T> {
    type Value = Option<T>;
    fn parse(&self, text: &str) -> Option<Option<T>> {
        text.parse().ok().map(Some)
    }
    fn expected(&self) -> String {
        T::EXPECTED.into()
    }
    fn misfit(&self, text: &str) -> Option<String> {
        misfit::<T>(text)
    }
    fn is_list(&self) -> bool {
        T::LIST
    }
    fn show(&self, value: &Option<T>) -> String {
        value.as_ref().map_or("unset".into(), ToString::to_string)
    }
}

/// Like [`Parsed`], for a type that has a default.
#[derive(Debug)]
pub(super) struct Text<T>(PhantomData<T>);

impl<T> Text<T> {
    pub(super) const NEW: Self = Self(PhantomData);
}

impl<T: Described> Form for Text<T> {
    type Value = T;
    fn parse(&self, text: &str) -> Option<T> {
        text.parse().ok()
    }
    fn expected(&self) -> String {
        T::EXPECTED.into()
    }
    fn misfit(&self, text: &str) -> Option<String> {
        misfit::<T>(text)
    }
    fn is_list(&self) -> bool {
        T::LIST
    }
    fn show(&self, value: &T) -> String {
        value.to_string()
    }
}
