//! Draws a frame: the host in three lines, its ports, its connections, and the keys.

use std::convert::Infallible;

use mpib_host_view::{Connection, Host, Port, Process};
use ratatui::backend::TestBackend;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Text};
use ratatui::widgets::Paragraph;
use ratatui::{Frame, Terminal};

use super::text::{clock, episodes, percent, rate, shares, short, time, waited};
use super::view::View;
use crate::output::columns::{Column, Kind, cut_words, fit, fit_parts, peer};

/// Columns of a frame that is printed as text.
const COLUMNS: u16 = 80;
/// Columns that a frame needs: for the columns of its tables that are never left out.
const LEAST: u16 = 40;

/// Draws one frame.
pub(super) fn draw(frame: &mut Frame<'_>, host: &Host, view: &mut View) {
    let width = frame.area().width;
    if width < LEAST {
        let lines = ["mpib top".to_owned(), format!("needs {LEAST}"), "columns".to_owned()];
        frame.render_widget(Paragraph::new(lines.map(Line::from).to_vec()), frame.area());
        return;
    }
    let ports: Vec<&Port> = host.ports.iter().filter(|port| port.state != "unused").collect();
    let rows = port_rows(&ports);
    // Ports get at most half of the screen.
    let height = frame.area().height;
    let of_ports = (rows.len() as u16 + 1).min(height.saturating_sub(5) / 2);
    let [first, second, gap, last] = [3, of_ports, 1, 1].map(Constraint::Length);
    let areas = [first, second, gap, Constraint::Min(0), last];
    let [head, top, _, middle, bottom] = Layout::vertical(areas).areas(frame.area());
    frame.render_widget(head_lines(host, view, width.into()), head);
    frame.render_widget(port_table(rows, width.into()), top);
    connections(frame, middle, host, view);
    frame.render_widget(Paragraph::new(keys(view, width.into())), bottom);
}

/// Returns a frame of 80 columns with all ports and connections, as text.
pub(super) fn frame_as_text(host: &Host, view: &View) -> String {
    let mut view = View::new(view.sort, &view.filter);
    let height = wanted_size(host, &view);
    let backend = TestBackend::new(COLUMNS, height);
    let drawn = Terminal::new(backend).and_then(|mut terminal| {
        terminal.draw(|frame| draw(frame, host, &mut view))?;
        Ok::<_, Infallible>(terminal.backend().buffer().clone())
    });
    let Ok(buffer) = drawn;
    let lines = buffer.content().chunks(usize::from(COLUMNS));
    // Without the line of the keys.
    let lines = lines.take(usize::from(height) - 1);
    let line = |cells: &[ratatui::buffer::Cell]| cells.iter().map(|cell| cell.symbol()).collect::<String>();
    lines.map(|cells| line(cells).trim_end().to_owned() + "\n").collect()
}

/// Returns the lines of a frame that shows everything.
pub(super) fn wanted_size(host: &Host, view: &View) -> u16 {
    // Half of the lines are for ports, and each may have a line for its cause.
    let ports = 2 * host.ports.len() + 1;
    let connections = view.connections(host).len().max(1) + 1;
    u16::try_from(5 + ports + ports.max(connections)).unwrap_or(u16::MAX)
}

/// Returns a style, or none if the user wants no colours: <https://no-color.org>.
fn styled(style: Style) -> Style {
    let is_plain = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    if is_plain { Style::new() } else { style }
}

fn bold() -> Style {
    Style::new().add_modifier(Modifier::BOLD)
}

fn head_lines(host: &Host, view: &View, width: usize) -> Paragraph<'static> {
    let open: u64 = host.processes.iter().map(|process| u64::from(process.open)).sum();
    let hidden = match host.not_permitted + host.not_inspected + host.unreadable.len() {
        0 => String::new(),
        n => format!("{n} processes not read"),
    };
    let paused = if view.is_paused() { "PAUSED" } else { "" };
    let first = [
        (4, "mpib top".to_owned()),
        (2, host.hostname.clone()),
        (3, format!("{} UTC", clock(host.at_ms))),
        (1, format!("processes {}, connections {open}", host.processes.len())),
        (5, hidden),
        (0, paused.to_owned()),
    ];
    let (totals, f) = (&host.totals, &host.failover);
    let second = [
        (0, format!("send {}", rate(totals.send.bytes_per_second))),
        (0, format!("recv {}", rate(totals.recv.bytes_per_second))),
        (1, format!("episodes {}", f.episodes.0)),
        (2, format!("stalls {}", time(f.stalled_ms))),
        (3, format!("sent again {}B", short(f.bytes_sent_again.0 as f64))),
    ];
    let [first, second] = [&first[..], &second].map(|parts| fit_parts(parts, width));
    let verdict = styled(match host.verdict.level.as_str() {
        "bad" => Style::new().fg(Color::Red),
        "drained" => Style::new().fg(Color::Yellow),
        _ => Style::new(),
    });
    let state = Line::styled(cut_words(&host.verdict.text, width), verdict);
    Paragraph::new(Text::from(vec![state, Line::styled(first, bold()), Line::from(second)]))
}

/// A row of the table of ports.
enum PortRow {
    Figures([String; 9], Style),
    Cause(String, Style),
}

impl PortRow {
    fn figures(&self) -> Option<&[String; 9]> {
        if let Self::Figures(cells, _) = self { Some(cells) } else { None }
    }
}

fn port_rows(ports: &[&Port]) -> Vec<PortRow> {
    let whole: f64 = ports.iter().filter_map(|port| port.bytes_sent_per_second).sum();
    let mut rows = Vec::new();
    for port in ports {
        let style = styled(match port.state.as_str() {
            "healthy" => Style::new(),
            "down" => Style::new().fg(Color::Red),
            _ => Style::new().fg(Color::Yellow),
        });
        let (episodes, stall) = episodes(port);
        let figures = [
            port.name.clone(),
            port.state.clone(),
            port.connections.to_string(),
            rate(port.bytes_sent_per_second),
            port.bytes_sent_per_second.map_or("-".into(), |sent| percent(sent, whole)),
            rate(port.goodput.map(|goodput| goodput.0 as f64)),
            percent(port.scale.into(), 1024.0),
            episodes,
            stall,
        ];
        rows.push(PortRow::Figures(figures, style));
        if let Some(cause) = &port.cause {
            rows.push(PortRow::Cause(format!("  since {}: {cause}", clock(port.since_ms)), style));
        }
    }
    rows
}

const PORT_COLUMNS: [Column; 9] = [
    Column::new("PORT", 0, Kind::Name(12, 14)),
    Column::new("STATE", 0, Kind::Word(8)),
    Column::new("CONNS", 6, Kind::Number(5)),
    Column::new("SENT", 0, Kind::Number(10)),
    Column::new("SHARE", 3, Kind::Number(5)),
    Column::new("GOODPUT", 1, Kind::Number(10)),
    Column::new("SCALE", 2, Kind::Number(5)),
    Column::new("EPISODES", 4, Kind::Number(8)),
    Column::new("STALL", 5, Kind::Number(6)),
];

/// A table, and lines across it.
fn port_table(rows: Vec<PortRow>, width: usize) -> Paragraph<'static> {
    let figures: Vec<_> = rows.iter().filter_map(PortRow::figures).collect();
    let fitted = fit(&PORT_COLUMNS, &figures, width, 1);
    let mut lines = vec![Line::styled(fitted.head(), bold())];
    lines.extend(rows.iter().map(|row| match row {
        PortRow::Figures(cells, style) => Line::styled(fitted.row(cells), *style),
        PortRow::Cause(text, style) => Line::styled(cut_words(text, width), *style),
    }));
    Paragraph::new(lines)
}

const CONNECTION_COLUMNS: [Column; 9] = [
    Column::new("PID", 3, Kind::Number(7)),
    Column::new("COMMAND", 7, Kind::Name(7, 10)),
    Column::new("WAY", 1, Kind::Word(4)),
    Column::new("PEER", 0, Kind::Rest(12)),
    Column::new("RATE", 0, Kind::Number(9)),
    Column::new("FLIGHT", 2, Kind::Number(6)),
    Column::new("SHARES", 4, Kind::Word(6)),
    Column::new("WAITS", 6, Kind::Number(6)),
    Column::new("ERR", 5, Kind::Number(4)),
];

fn connections(frame: &mut Frame<'_>, area: Rect, host: &Host, view: &mut View) {
    let all = view.connections(host);
    let room = usize::from(area.height.saturating_sub(1));
    view.scrolled = view.scrolled.min(all.len().saturating_sub(room));
    let rows: Vec<_> = all.iter().map(|(p, c)| (cells(p, c, host.at_ms), style(c, host.at_ms))).collect();
    // Of all rows, and not of those that are shown: columns keep their places while a user scrolls.
    let texts: Vec<_> = rows.iter().map(|(cells, _)| cells).collect();
    let fitted = fit(&CONNECTION_COLUMNS, &texts, area.width.into(), 1);
    let mut lines = vec![Line::styled(fitted.head(), bold())];
    let shown = rows.iter().skip(view.scrolled).take(room);
    lines.extend(shown.map(|(cells, style)| Line::styled(fitted.row(cells), *style)));
    if all.is_empty() {
        lines.push(Line::from(match (host.processes.is_empty(), view.filter.is_empty()) {
            (true, _) => "no process has a statistics page",
            (_, true) => "no connection is open",
            (_, false) => "no connection fits the filter",
        }));
    }
    frame.render_widget(Paragraph::new(lines), area);
}

fn cells(p: &Process, c: &Connection, at_ms: u64) -> [String; 9] {
    let errors = c.errors + c.rails.iter().map(|rail| rail.errors).sum();
    [
        p.pid.to_string(),
        p.command.clone(),
        c.direction.clone(),
        peer(&c.peer),
        rate(c.bytes_per_second),
        short(c.in_flight.0 as f64),
        shares(c),
        waited(c.waited_ms(at_ms)),
        short(errors.0 as f64),
    ]
}

fn style(c: &Connection, at_ms: u64) -> Style {
    match c.state.as_str() {
        "failed" => styled(Style::new().fg(Color::Red)),
        _ if c.is_troubled(at_ms) => styled(Style::new().fg(Color::Yellow)),
        _ => Style::new(),
    }
}

fn keys(view: &View, width: usize) -> Line<'static> {
    let (order, filter) = (if view.is_reversed { ", reversed" } else { "" }, &view.filter);
    if view.is_typing {
        let parts = [(0, format!("filter: {filter}_ ")), (1, "Enter: keep, Esc: remove".to_owned())];
        return Line::styled(fit_parts(&parts, width), bold());
    }
    let filter = if filter.is_empty() { "none".into() } else { format!("{filter:?}") };
    let sort = view.sort.word();
    let parts = [
        (0, "q quit".to_owned()),
        (1, format!("s sort: {sort}{order}")),
        (3, "r reverse".to_owned()),
        (2, format!("/ filter: {filter}")),
        (4, "p pause".to_owned()),
    ];
    Line::from(fit_parts(&parts, width))
}
