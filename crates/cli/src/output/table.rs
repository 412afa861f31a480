//! Tables with aligned columns. On a terminal they are wrapped to its width; in a file a row is one
//! line.

use comfy_table::{
    CellAlignment, ColumnConstraint, ContentArrangement, TableComponent, Width, presets::NOTHING,
};

/// Columns are this far from each other.
const GAP: u16 = 2;
/// Drawn between rows, to find their ends among the lines. No cell has it: it is a control
/// character.
const BETWEEN_ROWS: char = '\u{1}';

/// A column.
#[derive(Debug, Clone)]
pub struct Column {
    name: String,
    alignment: CellAlignment,
    least: u16,
}

/// Makes a column of text.
pub fn left(name: impl Into<String>) -> Column {
    Column { name: name.into(), alignment: CellAlignment::Left, least: 0 }
}

/// Makes a column of numbers.
pub fn right(name: impl Into<String>) -> Column {
    Column { alignment: CellAlignment::Right, ..left(name) }
}

impl Column {
    /// Sets the least width.
    pub fn least(self, least: u16) -> Self {
        Self { least, ..self }
    }
}

/// Rows of cells, each with notes below it.
#[derive(Debug, Clone)]
pub struct Table {
    columns: Vec<Column>,
    rows: Vec<(Vec<String>, Vec<String>)>,
    indent: u16,
}

impl Table {
    /// Makes a table without rows.
    pub fn new(columns: impl IntoIterator<Item = Column>) -> Self {
        Self { columns: columns.into_iter().collect(), rows: Vec::new(), indent: 0 }
    }

    /// Sets the number of spaces in front of each line.
    pub fn indent(self, indent: u16) -> Self {
        Self { indent, ..self }
    }

    /// Adds a row.
    pub fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        self.rows.push((cells.into_iter().collect(), Vec::new()));
    }

    /// Adds a text below the last row, two columns further to the right.
    pub fn note(&mut self, text: impl Into<String>) {
        if let Some((_, notes)) = self.rows.last_mut() {
            notes.push(text.into());
        }
    }

    /// Formats the names of the columns, unless all are empty, and all rows.
    pub fn text(&self) -> String {
        let head = Some(self.names()).filter(|names| names.iter().any(|name| !name.is_empty()));
        let is_headed = head.is_some();
        let cells = head.into_iter().chain(self.rows.iter().map(|(cells, _)| cells.clone())).collect();
        let mut blocks = self.blocks(cells).into_iter();
        let mut out = if is_headed { blocks.next().unwrap_or_default() } else { String::new() };
        for (block, (_, notes)) in blocks.zip(&self.rows) {
            out += &block;
            out.extend(notes.iter().map(|note| paragraph(self.indent + GAP, note)));
        }
        out
    }

    /// Formats the table as Markdown, on lines of any length.
    pub fn markdown(&self) -> String {
        let line = |cells: &[String]| format!("| {} |\n", cells.join(" | "));
        let rules = self.columns.iter().map(|column| match column.alignment {
            CellAlignment::Right => "|---:",
            _ => "|---",
        });
        let mut out = line(&self.names());
        out += &format!("{}|\n", rules.collect::<String>());
        out.extend(self.rows.iter().map(|(cells, _)| line(cells)));
        out
    }

    fn names(&self) -> Vec<String> {
        self.columns.iter().map(|column| column.name.clone()).collect()
    }

    /// Formats rows together; returns the lines of each.
    fn blocks(&self, rows: Vec<Vec<String>>) -> Vec<String> {
        let mut table = plain();
        table.set_style(TableComponent::HorizontalLines, BETWEEN_ROWS);
        table.add_rows(rows);
        let last = self.columns.len().saturating_sub(1);
        for (i, (of, column)) in self.columns.iter().zip(table.column_iter_mut()).enumerate() {
            let before = if i == 0 { self.indent } else { 0 };
            let after = if i == last { 0 } else { GAP };
            column.set_padding((before, after)).set_cell_alignment(of.alignment);
            column.set_constraint(ColumnConstraint::LowerBoundary(Width::Fixed(before + of.least + after)));
        }
        let mut blocks = vec![String::new()];
        for line in table.lines() {
            if line.contains(BETWEEN_ROWS) {
                blocks.push(String::new());
            } else if let Some(block) = blocks.last_mut() {
                *block += line.trim_end();
                block.push('\n');
            }
        }
        blocks
    }
}

/// Formats a text with spaces in front of each line.
pub fn paragraph(indent: u16, text: &str) -> String {
    let mut table = plain();
    table.add_row([text]);
    if let Some(column) = table.column_mut(0) {
        column.set_padding((indent, 0));
    }
    table.trim_fmt() + "\n"
}

/// Makes an empty table without lines that fits the terminal.
fn plain() -> comfy_table::Table {
    let mut table = comfy_table::Table::new();
    table.load_preset(NOTHING).set_content_arrangement(ContentArrangement::Dynamic);
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cells<const N: usize>(cells: [&str; N]) -> [String; N] {
        cells.map(str::to_owned)
    }

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let mut table = Table::new([left("a"), left("bb"), left("")]);
        table.row(cells(["ccc", "d", "é"]));
        assert_eq!(table.text(), "a    bb\nccc  d   é\n");
    }

    #[test]
    fn numbers_are_aligned_to_the_right_and_notes_stand_below_their_row() {
        let mut table = Table::new([left("port"), right("sent")]).indent(2);
        table.row(cells(["sout:1", "7"]));
        table.note("is down");
        table.row(cells(["sup:1", "12345"]));
        assert_eq!(table.text(), "  port     sent\n  sout:1      7\n    is down\n  sup:1   12345\n");
        assert_eq!(table.markdown(), "| port | sent |\n|---|---:|\n| sout:1 | 7 |\n| sup:1 | 12345 |\n");
    }

    #[test]
    fn colours_have_no_width_and_names_that_are_empty_no_line() {
        let mut table = Table::new([left(""), left("")]);
        table.row(["\x1b[31mfail\x1b[0m".to_owned(), "one\n-> two".into()]);
        table.row(cells(["ok", "three"]));
        assert_eq!(table.text(), "\x1b[31mfail\x1b[0m  one\n      -> two\nok    three\n");
    }
}
