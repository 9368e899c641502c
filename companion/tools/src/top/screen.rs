//! The live table: what a terminal shows of one look, whatever its size.

use ratatui::Frame;
use ratatui::layout::{Alignment, Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style, Stylize as _};
use ratatui::text::{Line, Span, Text};
use ratatui::widgets::{Cell, Paragraph, Row, Table as Widget, Wrap};

use super::state::State;
use super::tables::{self, Table};

/// From here on a pool is full.
const FULL: f64 = 1.0;
const BUSY: f64 = 0.8;
/// Rows of flows that are shown at least, where there are so many.
const FLOWS_MIN: u16 = 4;
const KEYS: &str = " q quit   \u{2191}\u{2193} tab pool   PgUp PgDn flows   s sort   r now ";

/// Draws everything that is known.
pub(super) fn draw(frame: &mut Frame<'_>, state: &State) {
    let view = state.view();
    let all = tables::pools(view);
    let advice = tables::advice(view);
    let pool = state.pool();
    let mut parts: Vec<(Table, u16)> = Vec::new();
    if let Some(pool) = pool {
        for table in [
            tables::endpoints(pool),
            tables::classes(pool),
            tables::model(pool),
        ] {
            if !table.rows.is_empty() {
                let height = rows(&table);
                parts.push((table, height));
            }
        }
    }
    let area = frame.area();
    let advice_height = advice_rows(&advice, area.width).min(area.height / 3);
    // Where there is no room for all, the model goes first.
    let fixed = 2 + rows(&all).min(area.height / 3) + 2 + FLOWS_MIN + advice_height;
    let whole = |parts: &[(Table, u16)]| parts.iter().fold(fixed, |sum, (_, it)| sum.saturating_add(*it));
    while parts.len() > 1 && whole(&parts) > area.height {
        parts.pop();
    }
    let mut constraints = vec![
        Constraint::Length(1),
        Constraint::Length(rows(&all).min(area.height / 3)),
        Constraint::Min(2 + FLOWS_MIN),
    ];
    constraints.extend(parts.iter().map(|(_, height)| Constraint::Max(*height)));
    constraints.push(Constraint::Length(advice_height));
    constraints.push(Constraint::Length(1));
    let areas = Layout::vertical(constraints).split(area);
    let mut areas = areas.iter().copied();
    let mut next = || areas.next().unwrap_or_default();

    let head = match state.away() {
        None => Line::from(format!(" {} ", view.headline())).bold().reversed(),
        Some(why) => Line::from(format!(" no answer, as it was: {why} "))
            .bold()
            .white()
            .on_red(),
    };
    frame.render_widget(Paragraph::new(head), next());
    let chosen = pool.map(|it| it.name.as_str());
    table(frame, next(), &all, 0, &|row| {
        let saturation = row.get(1).and_then(|it| it.parse().ok()).unwrap_or(0.0);
        let mut style = Style::new().fg(load(saturation));
        if row.first().map(String::as_str) == chosen {
            style = style.add_modifier(Modifier::REVERSED);
        }
        style
    });
    let flows = next();
    if let Some(pool) = pool {
        let of = tables::flows(pool, state.sort(), |flow| state.rate(flow));
        table(frame, flows, &of, state.scrolled(of.rows.len()), &|_| {
            Style::new()
        });
    }
    for (part, _) in &parts {
        table(frame, next(), part, 0, &|row| {
            if part.header.last() == Some(&"state") && row.last().is_some_and(|it| it != "ready") {
                Style::new().fg(Color::Red)
            } else {
                Style::new()
            }
        });
    }
    let lines: Vec<Line<'_>> = if advice.is_empty() {
        vec![Line::from(vec![
            Span::from("advice").bold(),
            Span::from(" none").dim(),
        ])]
    } else {
        std::iter::once(Line::from("advice").bold())
            .chain(advice.iter().map(|it| Line::from(format!("! {it}")).yellow()))
            .collect()
    };
    frame.render_widget(Paragraph::new(lines).wrap(Wrap { trim: false }), next());
    frame.render_widget(Paragraph::new(Line::from(KEYS).dim()), next());
}

/// A title, a header, the rows, and a blank below.
fn rows(of: &Table) -> u16 {
    u16::try_from(of.rows.len() + 3).unwrap_or(u16::MAX)
}

/// Lines that the advice takes at this width, its title included.
fn advice_rows(advice: &[String], width: u16) -> u16 {
    let width = usize::from(width.max(1));
    // A line is broken between words, so that it takes a little more than its letters.
    let lines = advice
        .iter()
        .map(|it| (it.chars().count() + 2) * 10 / 9 / width + 1);
    u16::try_from(1 + lines.sum::<usize>()).unwrap_or(u16::MAX)
}

fn load(saturation: f64) -> Color {
    if saturation >= FULL {
        Color::Red
    } else if saturation >= BUSY {
        Color::Yellow
    } else {
        Color::Green
    }
}

/// A title and a table below it, without the first `skipped` rows.
fn table(frame: &mut Frame<'_>, area: Rect, of: &Table, skipped: usize, style: &dyn Fn(&[String]) -> Style) {
    let [title, body] = Layout::vertical([Constraint::Length(1), Constraint::Min(0)]).areas(area);
    let shown = usize::from(body.height.saturating_sub(1));
    let left = of.rows.len().saturating_sub(skipped);
    let more = match left.saturating_sub(shown) {
        0 => String::new(),
        more => format!("  ({more} more below)"),
    };
    let head = Line::from(vec![Span::from(of.title.as_str()).bold(), Span::from(more).dim()]);
    frame.render_widget(Paragraph::new(head), title);
    let cell = |at: usize, text: &str| {
        let alignment = if of.left.contains(&at) {
            Alignment::Left
        } else {
            Alignment::Right
        };
        Cell::from(Text::from(text.to_owned()).alignment(alignment))
    };
    let header = of.header.iter().enumerate().map(|(at, name)| cell(at, name));
    let header = Row::new(header).style(Style::new().add_modifier(Modifier::UNDERLINED));
    let visible = of.rows.iter().skip(skipped).take(shown);
    let body_rows = visible.map(|row| {
        let cells = row.iter().enumerate().map(|(at, text)| cell(at, text));
        Row::new(cells).style(style(row))
    });
    let widths = (0..of.header.len()).map(|at| {
        let cells = of.rows.iter().filter_map(|row| row.get(at));
        let widest = cells.map(|it| it.chars().count()).max().unwrap_or(0);
        let widest = widest.max(of.header.get(at).map_or(0, |it| it.len()));
        Constraint::Length(u16::try_from(widest).unwrap_or(u16::MAX))
    });
    let widget = Widget::new(body_rows, widths).header(header).column_spacing(2);
    frame.render_widget(widget, body);
}

#[cfg(test)]
mod tests {
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;
    use std::time::Duration;

    use super::super::view::View;
    use super::super::view::tests::DOCUMENT;
    use super::*;

    fn picture(state: &State, width: u16, height: u16) -> String {
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
        state.saw(Duration::ZERO, View::read(DOCUMENT).expect("valid"));
        state
    }

    #[test]
    fn the_picture_holds_pools_flows_endpoints_model_and_advice() {
        let text = picture(&state(), 120, 40);
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
    fn no_size_is_too_small() {
        for (width, height) in [(1, 1), (20, 5), (80, 24), (300, 100)] {
            let text = picture(&state(), width, height);
            assert_eq!(text.lines().count(), usize::from(height));
        }
        let text = picture(&state(), 80, 24);
        assert!(text.contains("greedy") && text.contains("q quit"), "{text}");
    }

    #[test]
    fn a_companion_that_is_away_is_said_and_the_last_look_stays() {
        let mut state = state();
        state.missed("nobody answers".into());
        let text = picture(&state, 100, 40);
        assert!(text.contains("no answer, as it was: nobody answers"), "{text}");
        assert!(text.contains("greedy"), "{text}");
    }
}
