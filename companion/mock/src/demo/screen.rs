//! Shows the demo's state: a live table at the bottom of a terminal, or lines every few seconds elsewhere.
//!
//! The terminal isn't put into raw mode, so that Ctrl-C sends a signal and earlier output stays in the scrollback. If
//! the terminal can't be set up, lines are printed instead.

use std::io::{self, IsTerminal, Stdout, Write};
use std::time::Duration;

use ratatui::backend::CrosstermBackend;
use ratatui::layout::{Constraint, Layout};
use ratatui::style::{Modifier, Style};
use ratatui::text::{Line, Text};
use ratatui::widgets::{Paragraph, Row, Table};
use ratatui::{Frame, Terminal, TerminalOptions, Viewport};

use super::snapshot::Snapshot;
use super::takeover::LOG_LINES;
use super::text::columns;

/// Time between two updates of the live table.
const REDRAW_INTERVAL: Duration = Duration::from_millis(250);
/// Time between two reports as lines.
const REPORT_INTERVAL: Duration = Duration::from_secs(2);

/// The output of the demo's state.
pub(super) enum Screen {
    Terminal(Box<Terminal<CrosstermBackend<Stdout>>>),
    Lines(Lines),
}

/// Output as lines.
#[derive(Debug, Default)]
pub(super) struct Lines {
    /// Printed lines of the takeover's log.
    printed: usize,
}

impl Screen {
    /// A live table for this number of tenants, servers and lines of the takeover's log, if stdin and stdout are a terminal; otherwise lines.
    pub(super) fn open(tenants: usize, servers: usize, log: usize) -> Self {
        if !io::stdout().is_terminal() || !io::stdin().is_terminal() {
            return Self::lines();
        }
        // The headline, the log, two tables with headers and a blank line before each, and the hint.
        let height = u16::try_from(1 + log + 2 + tenants + 2 + servers + 2).unwrap_or(u16::MAX);
        let options = TerminalOptions { viewport: Viewport::Inline(height) };
        match Terminal::with_options(CrosstermBackend::new(io::stdout()), options) {
            Ok(terminal) => Self::Terminal(Box::new(terminal)),
            Err(_) => Self::lines(),
        }
    }

    /// Output as lines.
    pub(super) fn lines() -> Self {
        Self::Lines(Lines::default())
    }

    /// Time between two calls of [`Screen::show`].
    pub(super) fn period(&self) -> Duration {
        match self {
            Self::Terminal(_) => REDRAW_INTERVAL,
            Self::Lines(_) => REPORT_INTERVAL,
        }
    }

    /// Shows the current state.
    pub(super) fn show(&mut self, snapshot: &Snapshot) {
        let shown = match self {
            Self::Terminal(terminal) => terminal.draw(|frame| draw(frame, snapshot)).map(|_| ()),
            Self::Lines(_) => {
                let text = columns(&Snapshot::TENANT_HEADER, &snapshot.tenant_rows());
                writeln!(io::stdout(), "{}\n{text}", snapshot.headline())
            }
        };
        // A failing terminal is no reason to stop the demo: the accounting decides its result.
        if shown.is_err() {
            *self = Self::lines();
        }
    }

    /// Prints the takeover's latest lines at once. The live table shows them with its next update.
    pub(super) fn show_log(&mut self, snapshot: &Snapshot) {
        if let Self::Lines(lines) = self {
            let log = snapshot.log();
            for line in log.iter().skip(lines.printed) {
                // A closed stdout is no reason to stop.
                let _ = writeln!(io::stdout(), "{line}");
            }
            lines.printed = log.len();
        }
    }

    /// Clears the live table and shows the cursor again.
    pub(super) fn close(self) {
        if let Self::Terminal(mut terminal) = self {
            // If the terminal fails, nothing can be cleaned up.
            let _ = terminal.clear().and_then(|()| terminal.show_cursor());
        }
    }
}

fn draw(frame: &mut Frame<'_>, snapshot: &Snapshot) {
    let tenants = snapshot.tenant_rows();
    let servers = snapshot.server_rows();
    let [head, log, _, upper, _, lower, hint] = Layout::vertical([
        Constraint::Length(1),
        Constraint::Length(if snapshot.takeover.is_some() { LOG_LINES as u16 } else { 0 }),
        Constraint::Length(1),
        Constraint::Length(u16::try_from(1 + tenants.len()).unwrap_or(u16::MAX)),
        Constraint::Length(1),
        Constraint::Min(1),
        Constraint::Length(1),
    ])
    .areas(frame.area());
    frame.render_widget(Paragraph::new(Line::from(snapshot.headline()).style(Modifier::BOLD)), head);
    frame.render_widget(Paragraph::new(snapshot.log().join("\n")), log);
    frame.render_widget(table(&Snapshot::TENANT_HEADER, tenants, 10), upper);
    frame.render_widget(table(&Snapshot::SERVER_HEADER, servers, 22), lower);
    frame.render_widget(Paragraph::new("Ctrl-C ends the demo").style(Modifier::DIM), hint);
}

fn table<'a>(header: &[&'a str], rows: Vec<Vec<String>>, first: u16) -> Table<'a> {
    let cell = |column: usize, text: String| {
        if column == 0 { Text::from(text) } else { Text::from(text).right_aligned() }
    };
    let head = header.iter().enumerate().map(|(column, name)| cell(column, (*name).to_owned()));
    let head = Row::new(head).style(Style::new().add_modifier(Modifier::UNDERLINED));
    let widths = (0..header.len()).map(|column| Constraint::Length(if column == 0 { first } else { 8 }));
    let rows: Vec<Row<'a>> = rows
        .into_iter()
        .map(|cells| Row::new(cells.into_iter().enumerate().map(|(column, text)| cell(column, text))))
        .collect();
    Table::new(rows, widths).header(head).column_spacing(2)
}

#[cfg(test)]
mod tests {
    use ratatui::backend::TestBackend;

    use super::*;
    use crate::demo::companion::{Endpoint, Pool};
    use crate::demo::takeover::Takeover;
    use crate::demo::tenants::TENANTS;

    #[test]
    fn takeover_is_between_the_headline_and_the_table() {
        let mut snapshot = Snapshot::new(&TENANTS);
        let lease = "the file /tmp/lease".to_owned();
        let start = tokio::time::Instant::now();
        snapshot.takeover = Some(Takeover::new(start, Duration::from_secs(10), lease));
        let mut terminal = Terminal::new(TestBackend::new(110, 17)).unwrap();
        terminal.draw(|frame| draw(frame, &snapshot)).unwrap();
        let cells = terminal.backend().buffer().content();
        let text: String = cells.iter().map(ratatui::buffer::Cell::symbol).collect();
        let position = |word: &str| text.find(word).unwrap_or_else(|| panic!("{word} isn't in {text}"));
        assert!(position("0 lost; no companion leads") < position("the leader is killed after 10.0 s"));
        assert!(position("its lease is in the file /tmp/lease") < position("greedy"));
    }

    #[test]
    fn table_shows_every_tenant_and_server() {
        let mut snapshot = Snapshot::new(&TENANTS);
        let endpoint =
            |n: u64| Endpoint { address: format!("127.0.0.1:900{n}"), ready: true, stock: n, bound: 3 };
        let endpoints = (0..3).map(endpoint).collect();
        snapshot.update(Some(Pool { stock: 3, lower: 6, upper: 7, endpoints, ..Pool::default() }));
        let mut terminal = Terminal::new(TestBackend::new(110, 13)).unwrap();
        terminal.draw(|frame| draw(frame, &snapshot)).unwrap();
        let cells = terminal.backend().buffer().content();
        let text: String = cells.iter().map(ratatui::buffer::Cell::symbol).collect();
        for word in ["greedy", "light", "vip", "127.0.0.1:9002", "stock 3 of 6..7", "ideal", "Ctrl-C"] {
            assert!(text.contains(word), "{word} isn't in {text}");
        }
    }
}
