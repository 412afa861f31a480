//! The text of a value, and the items of a list, as errors name them.

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
    pub item: Option<String>,
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
