//! Draws a frame: the host in two lines, its ports, its connections, and the keys.

use std::convert::Infallible;

use mpib_host_view::{Connection, Host, Port, Process};
use ratatui::backend::TestBackend;
use ratatui::layout::{Alignment, Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Text};
use ratatui::widgets::{Cell, Paragraph, Row, Table};
use ratatui::{Frame, Terminal};

use super::text::{clock, episodes, peer, percent, rate, shares, short, time};
use super::view::View;

/// Columns of a frame that is printed as text.
const COLUMNS: u16 = 80;

/// Draws one frame.
pub(super) fn draw(frame: &mut Frame<'_>, host: &Host, view: &mut View) {
    let ports: Vec<&Port> = host.ports.iter().filter(|port| port.state != "unused").collect();
    let rows = port_rows(&ports);
    // Ports get at most half of the screen.
    let height = frame.area().height;
    let of_ports = (rows.len() as u16 + 1).min(height.saturating_sub(4) / 2);
    let [first, second, gap, last] = [2, of_ports, 1, 1].map(Constraint::Length);
    let areas = [first, second, gap, Constraint::Min(0), last];
    let [head, top, _, middle, bottom] = Layout::vertical(areas).areas(frame.area());
    frame.render_widget(head_lines(host, view), head);
    frame.render_widget(port_table(rows), top);
    connections(frame, middle, host, view);
    frame.render_widget(Paragraph::new(keys(view)), bottom);
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
    u16::try_from(4 + ports + ports.max(connections)).unwrap_or(u16::MAX)
}

/// Returns a style, or none if the user wants no colours: <https://no-color.org>.
fn styled(style: Style) -> Style {
    let is_plain = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    if is_plain { Style::new() } else { style }
}

fn bold() -> Style {
    Style::new().add_modifier(Modifier::BOLD)
}

fn head_lines(host: &Host, view: &View) -> Paragraph<'static> {
    let open: u64 = host.processes.iter().map(|process| u64::from(process.open)).sum();
    let hidden = match host.not_permitted + host.not_inspected + host.unreadable.len() {
        0 => String::new(),
        n => format!(", {n} processes not read"),
    };
    let paused = if view.is_paused() { "  PAUSED" } else { "" };
    let (name, clock, processes) = (&host.hostname, clock(host.at_ms), host.processes.len());
    let first =
        format!("mpib top  {name}  {clock} UTC  processes {processes}, connections {open}{hidden}{paused}");
    let (totals, f) = (&host.totals, &host.failover);
    let [send, recv] = [&totals.send, &totals.recv].map(|way| rate(way.bytes_per_second));
    let (episodes, stalls, again) = (f.episodes.0, time(f.stalled_ms), short(f.bytes_sent_again.0 as f64));
    let second =
        format!("send {send}  recv {recv}  episodes {episodes}  stalls {stalls}  sent again {again}B");
    Paragraph::new(Text::from(vec![Line::styled(first, bold()), Line::from(second)]))
}

/// A row of the table of ports.
enum PortRow {
    Figures([String; 9], Style),
    Cause(String, Style),
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

/// A table, and lines across it.
fn port_table(rows: Vec<PortRow>) -> Paragraph<'static> {
    const HEAD: [&str; 9] =
        ["PORT", "STATE", "CONNS", "SENT", "SHARE", "GOODPUT", "SCALE", "EPISODES", "STALL"];
    const WIDTHS: [usize; 9] = [14, 8, 5, 10, 5, 10, 5, 8, 6];
    let line = |cells: &[String; 9]| {
        let cell = |(i, (text, width)): (usize, (&String, usize))| match i {
            0 | 1 => format!("{text:<width$}"),
            _ => format!("{text:>width$}"),
        };
        cells.iter().zip(WIDTHS).enumerate().map(cell).collect::<Vec<_>>().join(" ")
    };
    let mut lines = vec![Line::styled(line(&HEAD.map(str::to_owned)), bold())];
    lines.extend(rows.into_iter().map(|row| match row {
        PortRow::Figures(cells, style) => Line::styled(line(&cells), style),
        PortRow::Cause(text, style) => Line::styled(text, style),
    }));
    Paragraph::new(lines)
}

fn connections(frame: &mut Frame<'_>, area: Rect, host: &Host, view: &mut View) {
    let all = view.connections(host);
    let room = usize::from(area.height.saturating_sub(1));
    view.scrolled = view.scrolled.min(all.len().saturating_sub(room));
    let head = ["PID", "COMMAND", "WAY", "PEER", "RATE", "FLIGHT", "SHARES", "WAITS", "ERR"];
    let cell = |(i, text): (usize, &str)| Cell::new(Line::from(text.to_owned()).alignment(side(i)));
    let head = Row::new(head.into_iter().enumerate().map(cell)).style(bold());
    let shown = all.iter().skip(view.scrolled).take(room).map(|(p, c)| connection(p, c));
    let widths = [
        Constraint::Length(7),
        Constraint::Length(10),
        Constraint::Length(4),
        Constraint::Fill(1),
        Constraint::Length(9),
        Constraint::Length(6),
        Constraint::Length(shares_width(&all)),
        Constraint::Length(6),
        Constraint::Length(4),
    ];
    frame.render_widget(Table::new(shown, widths).header(head), area);
    if all.is_empty() && area.height > 1 {
        let why = match (host.processes.is_empty(), view.filter.is_empty()) {
            (true, _) => "no process has a statistics page",
            (_, true) => "no connection is open",
            (_, false) => "no connection fits the filter",
        };
        let below = Rect { y: area.y + 1, height: 1, ..area };
        frame.render_widget(Paragraph::new(why), below);
    }
}

/// Columns for the shares: as many as the longest has, within limits.
fn shares_width(all: &[(&Process, &Connection)]) -> u16 {
    let longest = all.iter().map(|(_, c)| shares(c).len()).max().unwrap_or(0);
    u16::try_from(longest.clamp(6, 24)).unwrap_or(6)
}

/// Texts stand left, numbers right.
fn side(column: usize) -> Alignment {
    if matches!(column, 1..=3 | 6) { Alignment::Left } else { Alignment::Right }
}

fn connection(p: &Process, c: &Connection) -> Row<'static> {
    let errors = c.errors + c.rails.iter().map(|rail| rail.errors).sum();
    let cells = [
        p.pid.to_string(),
        p.command.clone(),
        c.direction.clone(),
        peer(&c.peer),
        rate(c.bytes_per_second),
        short(c.in_flight.0 as f64),
        shares(c),
        short((c.waits_for_peer + c.waits_for_queue).0 as f64),
        short(errors.0 as f64),
    ];
    let lost = c.rails.iter().any(|rail| rail.given_up_at_ms.is_some());
    let style = match (c.state.as_str(), lost) {
        ("failed", _) => styled(Style::new().fg(Color::Red)),
        (_, true) => styled(Style::new().fg(Color::Yellow)),
        _ => Style::new(),
    };
    let cell = |(i, text): (usize, String)| Cell::new(Line::from(text).alignment(side(i)));
    Row::new(cells.into_iter().enumerate().map(cell)).style(style)
}

fn keys(view: &View) -> Line<'static> {
    let (order, filter) = (if view.is_reversed { ", reversed" } else { "" }, &view.filter);
    if view.is_typing {
        return Line::styled(format!("filter: {filter}_   Enter: keep, Esc: remove"), bold());
    }
    let filter = if filter.is_empty() { "none".into() } else { format!("{filter:?}") };
    let sort = view.sort.word();
    Line::from(format!("q quit  s sort: {sort}{order}  r reverse  / filter: {filter}  p pause"))
}
