//! The live table: draws the state in a terminal of any size.

use ratatui::Frame;
use ratatui::layout::{Alignment, Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style, Stylize as _};
use ratatui::text::{Line, Span, Text};
use ratatui::widgets::{Cell, Paragraph, Row, Table as Widget, Wrap};

use super::state::State;
use super::tables::{self, Table};

/// From this saturation on, a pool is shown as full.
const FULL: f64 = 1.0;
/// From this saturation on, a pool is shown as busy.
const BUSY: f64 = 0.8;
/// The smallest number of rows for flows.
const FLOWS_MIN: u16 = 4;
const KEYS: &str = " q quit   \u{2191}\u{2193} tab pool   PgUp PgDn flows   s sort   r refresh ";

/// Draws the whole screen.
pub(super) fn draw(frame: &mut Frame<'_>, state: &State) {
    let view = state.view();
    let pools = tables::pools(view);
    let advice = tables::advice(view);
    let area = frame.area();
    let advice_height = advice_rows(&advice, area.width).min(area.height / 3);
    let pools_height = rows(&pools).min(area.height / 3);
    let fixed_height = 2 + pools_height + 2 + FLOWS_MIN + advice_height;
    let details = details(state, area.height.saturating_sub(fixed_height));
    let mut constraints =
        vec![Constraint::Length(1), Constraint::Length(pools_height), Constraint::Min(2 + FLOWS_MIN)];
    constraints.extend(details.iter().map(|table| Constraint::Max(rows(table))));
    constraints.push(Constraint::Length(advice_height));
    constraints.push(Constraint::Length(1));
    let areas = Layout::vertical(constraints).split(area);
    let mut areas = areas.iter().copied();
    let mut next = || areas.next().unwrap_or_default();

    frame.render_widget(Paragraph::new(headline(state)), next());
    draw_pools(frame, next(), &pools, state);
    let flows_area = next();
    if let Some(pool) = state.pool() {
        let flows = tables::flows(pool, state.sort(), |flow| state.rate(flow));
        let skipped = state.scrolled(flows.rows.len());
        draw_table(frame, flows_area, &flows, skipped, &|_| Style::new());
    }
    for table in &details {
        draw_table(frame, next(), table, 0, &|row| detail_style(table, row));
    }
    let advice = Paragraph::new(advice_lines(&advice)).wrap(Wrap { trim: false });
    frame.render_widget(advice, next());
    frame.render_widget(Paragraph::new(Line::from(KEYS).dim()), next());
}

/// The tables of the selected pool below its flows. If they need more rows than the height, the last ones are left out.
fn details(state: &State, height: u16) -> Vec<Table> {
    let Some(pool) = state.pool() else {
        return Vec::new();
    };
    let mut tables =
        vec![tables::endpoints(pool), tables::budgets(pool), tables::classes(pool), tables::model(pool)];
    tables.retain(|table| !table.rows.is_empty());
    let needed = |tables: &[Table]| tables.iter().fold(0_u16, |sum, table| sum.saturating_add(rows(table)));
    while tables.len() > 1 && needed(&tables) > height {
        tables.pop();
    }
    tables
}

fn headline(state: &State) -> Line<'_> {
    match state.error() {
        None => Line::from(format!(" {} ", state.view().headline())).bold().reversed(),
        Some(error) => Line::from(format!(" no answer, last known state: {error} ")).bold().white().on_red(),
    }
}

fn draw_pools(frame: &mut Frame<'_>, area: Rect, pools: &Table, state: &State) {
    let selected = state.pool().map(|pool| pool.name.as_str());
    draw_table(frame, area, pools, 0, &|row| {
        let saturation = row.get(1).and_then(|cell| cell.parse().ok()).unwrap_or(0.0);
        let style = Style::new().fg(saturation_color(saturation));
        if row.first().map(String::as_str) == selected {
            style.add_modifier(Modifier::REVERSED)
        } else {
            style
        }
    });
}

/// Red for an endpoint that isn't ready.
fn detail_style(table: &Table, row: &[String]) -> Style {
    let has_state = table.header.last() == Some(&"state");
    if has_state && row.last().is_some_and(|state| state != "ready") {
        Style::new().fg(Color::Red)
    } else {
        Style::new()
    }
}

fn advice_lines(advice: &[String]) -> Vec<Line<'_>> {
    if advice.is_empty() {
        return vec![Line::from(vec![Span::from("advice").bold(), Span::from(" none").dim()])];
    }
    let lines = advice.iter().map(|line| Line::from(format!("! {line}")).yellow());
    std::iter::once(Line::from("advice").bold()).chain(lines).collect()
}

/// The height of a table: title, header, rows, and a blank line.
fn rows(table: &Table) -> u16 {
    u16::try_from(table.rows.len() + 3).unwrap_or(u16::MAX)
}

/// The height of the advice at this width, including its title.
fn advice_rows(advice: &[String], width: u16) -> u16 {
    let width = usize::from(width.max(1));
    // Lines break between words, which needs a little more space than the characters.
    let lines = advice.iter().map(|line| (line.chars().count() + 2) * 10 / 9 / width + 1);
    u16::try_from(1 + lines.sum::<usize>()).unwrap_or(u16::MAX)
}

fn saturation_color(saturation: f64) -> Color {
    if saturation >= FULL {
        Color::Red
    } else if saturation >= BUSY {
        Color::Yellow
    } else {
        Color::Green
    }
}

/// Draws a title and a table below it, without the first `skipped` rows.
fn draw_table(
    frame: &mut Frame<'_>,
    area: Rect,
    table: &Table,
    skipped: usize,
    style: &dyn Fn(&[String]) -> Style,
) {
    let [title, body] = Layout::vertical([Constraint::Length(1), Constraint::Min(0)]).areas(area);
    let visible_rows = usize::from(body.height.saturating_sub(1));
    let remaining = table.rows.len().saturating_sub(skipped);
    let more = match remaining.saturating_sub(visible_rows) {
        0 => String::new(),
        more => format!("  ({more} more below)"),
    };
    let head = Line::from(vec![Span::from(table.title.as_str()).bold(), Span::from(more).dim()]);
    frame.render_widget(Paragraph::new(head), title);
    let cell = |column: usize, text: &str| {
        let alignment = if table.left.contains(&column) { Alignment::Left } else { Alignment::Right };
        Cell::from(Text::from(text.to_owned()).alignment(alignment))
    };
    let header = table.header.iter().enumerate().map(|(column, name)| cell(column, name));
    let header = Row::new(header).style(Style::new().add_modifier(Modifier::UNDERLINED));
    let visible = table.rows.iter().skip(skipped).take(visible_rows);
    let body_rows = visible.map(|row| {
        let cells = row.iter().enumerate().map(|(column, text)| cell(column, text));
        Row::new(cells).style(style(row))
    });
    let widths =
        table.widths().into_iter().map(|width| Constraint::Length(u16::try_from(width).unwrap_or(u16::MAX)));
    let widget = Widget::new(body_rows, widths).header(header).column_spacing(2);
    frame.render_widget(widget, body);
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    use super::super::view::View;
    use super::super::view::tests::DOCUMENT;
    use super::*;

    fn rendered(state: &State, width: u16, height: u16) -> String {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).expect("a terminal");
        terminal.draw(|frame| draw(frame, state)).expect("drawn");
        let buffer = terminal.backend().buffer();
        let lines = buffer.content().chunks(usize::from(width));
        lines
            .map(|line| line.iter().map(ratatui::buffer::Cell::symbol).collect::<String>())
            .map(|line| format!("{}\n", line.trim_end()))
            .collect()
    }

    fn state() -> State {
        let mut state = State::default();
        state.update(Duration::ZERO, View::parse(DOCUMENT).expect("valid"));
        state
    }

    #[test]
    fn screen_shows_pools_flows_endpoints_model_and_advice() {
        let text = rendered(&state(), 120, 40);
        for word in [
            "penstock 0.1.0, up 1h 2m",
            "flows of chat, by waiting",
            "greedy",
            "127.0.0.1:9003",
            "its health check fails",
            "h100",
            "29.5",
            "! chat: 127.0.0.1:9003 isn't ready",
            "q quit",
        ] {
            assert!(text.contains(word), "{word} isn't in\n{text}");
        }
    }

    #[test]
    fn every_terminal_size_can_be_drawn() {
        for (width, height) in [(1, 1), (20, 5), (80, 24), (300, 100)] {
            let text = rendered(&state(), width, height);
            assert_eq!(text.lines().count(), usize::from(height));
        }
        let text = rendered(&state(), 80, 24);
        assert!(text.contains("greedy") && text.contains("q quit"), "{text}");
    }

    #[test]
    fn failed_update_shows_the_error_and_keeps_the_last_state() {
        let mut state = state();
        state.update_failed("connection refused".into());
        let text = rendered(&state, 100, 40);
        assert!(text.contains("no answer, last known state: connection refused"), "{text}");
        assert!(text.contains("greedy"), "{text}");
    }
}
