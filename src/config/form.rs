//! Forms of values: how they parse, how an error describes them, how they are written.

use std::ffi::OsStr;
use std::fmt::{self, Display};
use std::marker::PhantomData;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use mpib_proto::{Mode, RoutePolicy};
#[cfg(test)]
use nccl_net_mpib_agent_iface::doctor::Alike;
use nccl_net_mpib_agent_iface::environment::unquoted;

use crate::error::BadSetting;

/// The form of one setting.
pub(super) trait Form {
    /// The parsed value.
    type Value;
    /// Parses a text without space around it.
    fn parse(&self, text: &str) -> Result<Self::Value, NotOfThisForm>;
    /// Describes valid values.
    fn expected(&self) -> String;
    /// Writes the value as a user would.
    fn show(&self, value: &Self::Value) -> String;
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

/// What is wrong with the settings that were read.
#[derive(Debug, Default)]
pub(super) struct Faults {
    pub(super) bad: Vec<BadSetting>,
    /// Each with the value that is used in its place.
    pub(super) substituted: Vec<(BadSetting, String)>,
    pub(super) with_empty_items: Vec<&'static str>,
}

impl Faults {
    /// Reads the text of one variable into `value`.
    pub(super) fn read<F: Form>(
        &mut self,
        form: &F,
        variable: &'static str,
        text: &OsStr,
        value: &mut F::Value,
    ) {
        let trimmed = text.to_str().map(str::trim);
        let misfit = match trimmed.map(|text| (text, form.parse(text))) {
            Some((text, Ok(parsed))) => {
                *value = parsed;
                if form.is_list() && has_empty_items(text) {
                    self.with_empty_items.push(variable);
                }
                return;
            }
            // An item is named only among several.
            Some((text, Err(e))) => e.item.filter(|_| text.contains(',')),
            None => None,
        };
        let mut misfit = misfit.map(|why| format!("; {why}")).unwrap_or_default();
        if let Some(meant) = trimmed.and_then(unquoted) {
            misfit += &format!("; its quotes are part of the value: write {variable}={meant}");
        }
        let expected = form.expected() + ", or unset" + &misfit;
        let bad = BadSetting { variable, found: shown(&text.to_string_lossy()), expected };
        match trimmed.and_then(|text| form.substitute(text)) {
            Some(used) => {
                self.substituted.push((bad, form.show(&used)));
                *value = used;
            }
            None => self.bad.push(bad),
        }
    }
}

/// Makes the manual's section of one setting.
#[cfg(test)]
pub(super) fn section<F: Form>(
    variable: &str,
    form: &F,
    default: &F::Value,
    doc: &[&str],
    differs: &[&str],
    alike: &[Alike],
) -> String {
    let doc: Vec<&str> = doc.iter().map(|d| d.trim()).collect();
    let mut out = format!("### {variable}\n\n");
    out += &paragraph(&format!("{}; default {}.", form.expected(), form.show(default)));
    out += &paragraph(&doc.join(" "));
    let beside = differs.first().copied().or_else(|| variable.starts_with("NCCL_").then_some("the same"));
    if let Some(how) = beside {
        out += &paragraph(&format!("Beside NCCL 2.32: {how}."));
    }
    if let Some(Alike { why, by_presence, .. }) = alike.first() {
        let what = if *by_presence { "Set it on all hosts or on none" } else { "Set it alike on all hosts" };
        out += &paragraph(&format!("{what}: otherwise {why}."));
    }
    out
}

/// Breaks a text into lines of at most 100 columns.
#[cfg(test)]
fn paragraph(text: &str) -> String {
    let (mut out, mut column) = (String::new(), 0);
    for word in text.split(' ') {
        let length = word.chars().count();
        let is_full = column + 1 + length > 100;
        out += match column {
            0 => "",
            _ if is_full => "\n",
            _ => " ",
        };
        column = if is_full || column == 0 { length } else { column + 1 + length };
        out += word;
    }
    out + "\n\n"
}

/// 0 or 1.
#[derive(Debug)]
pub(super) struct Flag;

impl Form for Flag {
    type Value = bool;
    fn parse(&self, text: &str) -> Result<bool, NotOfThisForm> {
        match text {
            "0" => Ok(false),
            "1" => Ok(true),
            _ => Err(NotOfThisForm::default()),
        }
    }
    fn expected(&self) -> String {
        "0 or 1".into()
    }
    fn show(&self, value: &bool) -> String {
        u8::from(*value).to_string()
    }
}

/// `MPIB_MODE`
#[derive(Debug)]
pub(super) struct ModeNumber;

impl Form for ModeNumber {
    type Value = Mode;
    fn parse(&self, text: &str) -> Result<Mode, NotOfThisForm> {
        Ok(if Flag.parse(text)? { Mode::Advanced } else { Mode::Vanilla })
    }
    fn expected(&self) -> String {
        Flag.expected()
    }
    fn show(&self, value: &Mode) -> String {
        (*value as u8).to_string()
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
    or_largest: bool,
}

impl<T> Whole<T> {
    pub(super) const fn new(low: T, high: T) -> Self {
        Self { low, high, or_largest: false }
    }

    /// Uses the largest number, with a warning, for any number out of bounds: verbs keeps a few bits of
    /// such a number, or takes 0 for no limit.
    pub(super) fn or_largest(self) -> Self {
        Self { or_largest: true, ..self }
    }
}

impl<T: TryFrom<u64> + PartialOrd + Display + Copy> Form for Whole<T> {
    type Value = T;
    fn parse(&self, text: &str) -> Result<T, NotOfThisForm> {
        let number = number(text).and_then(|n| T::try_from(n).ok());
        number.filter(|n| (self.low..=self.high).contains(n)).ok_or_else(NotOfThisForm::default)
    }
    fn expected(&self) -> String {
        format!("a whole number from {} to {}", self.low, self.high)
    }
    fn show(&self, value: &T) -> String {
        value.to_string()
    }
    fn substitute(&self, text: &str) -> Option<T> {
        number(text).filter(|_| self.or_largest).map(|_| self.high)
    }
}

/// A value that may be unset.
#[derive(Debug)]
pub(super) struct Optional<F>(pub(super) F);

impl<F: Form> Form for Optional<F> {
    type Value = Option<F::Value>;
    fn parse(&self, text: &str) -> Result<Self::Value, NotOfThisForm> {
        self.0.parse(text).map(Some)
    }
    fn expected(&self) -> String {
        self.0.expected()
    }
    fn show(&self, value: &Self::Value) -> String {
        value.as_ref().map_or("unset".into(), |value| self.0.show(value))
    }
    fn is_list(&self) -> bool {
        self.0.is_list()
    }
}

/// Another form, or a number that stands for no value: -1 for "choose", -2 for NCCL's default.
#[derive(Debug)]
pub(super) struct Or<F>(pub(super) &'static str, pub(super) F);

impl<F: Form> Form for Or<F> {
    type Value = Option<F::Value>;
    fn parse(&self, text: &str) -> Result<Self::Value, NotOfThisForm> {
        if text == self.0 { Ok(None) } else { self.1.parse(text).map(Some) }
    }
    fn expected(&self) -> String {
        format!("{} or {}", self.0, self.1.expected())
    }
    fn show(&self, value: &Self::Value) -> String {
        value.as_ref().map_or(self.0.into(), |value| self.1.show(value))
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
    fn parse(&self, text: &str) -> Result<PathBuf, NotOfThisForm> {
        let good = text.starts_with('/') && !text.ends_with('/') && text.len() <= self.0;
        good.then(|| text.into()).ok_or_else(NotOfThisForm::default)
    }
    fn expected(&self) -> String {
        format!("an absolute path of a file, at most {} bytes", self.0)
    }
    fn show(&self, value: &PathBuf) -> String {
        value.display().to_string()
    }
}

/// A name with a maximum length in bytes.
#[derive(Debug)]
pub(super) struct Name(usize);

impl Name {
    pub(super) const fn new(longest: usize) -> Self {
        Self(longest)
    }
}

impl Form for Name {
    type Value = String;
    fn parse(&self, text: &str) -> Result<String, NotOfThisForm> {
        let is_blank = |c: char| c.is_whitespace() || c.is_control();
        let good =
            text.starts_with(char::is_alphanumeric) && text.len() <= self.0 && !text.contains(is_blank);
        good.then(|| text.into()).ok_or_else(NotOfThisForm::default)
    }
    fn expected(&self) -> String {
        format!("a name without blanks that begins with a letter or a digit, at most {} bytes", self.0)
    }
    fn show(&self, value: &String) -> String {
        value.clone()
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
    fn parse(&self, text: &str) -> Result<Duration, NotOfThisForm> {
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

impl Described for RoutePolicy {
    const EXPECTED: &'static str = "any, strict, prefer-subnet or subnet";
}

/// A value of a type that parses itself.
#[derive(Debug)]
pub(super) struct Text<T>(PhantomData<T>);

impl<T> Text<T> {
    pub(super) const NEW: Self = Self(PhantomData);
}

impl<T: Described> Form for Text<T> {
    type Value = T;
    fn parse(&self, text: &str) -> Result<T, NotOfThisForm> {
        text.parse().map_err(Into::into)
    }
    fn expected(&self) -> String {
        T::EXPECTED.into()
    }
    fn is_list(&self) -> bool {
        T::LIST
    }
    fn show(&self, value: &T) -> String {
        value.to_string()
    }
}

/// `MPIB_SPLIT`
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SplitBy {
    /// By the speeds that the ports report.
    Speed,
    /// By the goodput that is measured.
    Measured,
    /// By the share for SUP alone.
    Share,
}

impl SplitBy {
    const ALL: [Self; 3] = [Self::Speed, Self::Measured, Self::Share];
}

/// The value of the setting.
impl Display for SplitBy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Speed => "speed",
            Self::Measured => "measured",
            Self::Share => "share",
        })
    }
}

impl FromStr for SplitBy {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        Self::ALL.into_iter().find(|by| by.to_string() == text).ok_or(())
    }
}

impl Described for SplitBy {
    const EXPECTED: &'static str = "speed, measured or share";
}

/// Most characters of a value that an error repeats.
const SHOWN: usize = 120;

/// Quotes a value, and cuts a long one.
pub(super) fn shown(text: &str) -> String {
    let mut found: String = text.chars().take(SHOWN).collect();
    if found.len() < text.len() {
        found.push('…');
    }
    format!("{found:?}")
}

/// The text is not of the form. The caller describes the form.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NotOfThisForm {
    /// What is wrong with which item of a list.
    pub(crate) item: Option<String>,
}

impl From<()> for NotOfThisForm {
    fn from((): ()) -> Self {
        Self::default()
    }
}

impl NotOfThisForm {
    /// Names the item of a list that does not fit.
    pub(super) fn of(item: &str) -> Self {
        Self { item: Some(format!("its item {} does not fit", shown(item))) }
    }
}

/// Returns the items of a list. Empty ones are skipped, as NCCL does it: scripts that join names
/// leave commas at the ends.
///
/// # Errors
/// The list has no item.
pub(super) fn items(list: &str) -> Result<Vec<&str>, NotOfThisForm> {
    let items: Vec<&str> = list.split(',').map(str::trim).filter(|item| !item.is_empty()).collect();
    if items.is_empty() { Err(NotOfThisForm { item: Some("it has no item".into()) }) } else { Ok(items) }
}

/// Whether a list has empty items, which are skipped.
pub(super) fn has_empty_items(list: &str) -> bool {
    let list = list.trim_start_matches(['^', '=']);
    list.split(',').any(|item| item.trim().is_empty())
}
