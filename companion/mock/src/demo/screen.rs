//! Shows the scene: a live table at the bottom of a terminal, or lines every few seconds elsewhere.
//!
//! The terminal isn't put into raw mode: Ctrl-C stays a signal, and what was printed stays in the scrollback. A
//! terminal that doesn't answer is treated as none.

use std::io::{self, IsTerminal, Stdout, Write};
use std::time::Duration;

use ratatui::backend::CrosstermBackend;
use ratatui::layout::{Constraint, Layout};
use ratatui::style::{Modifier, Style};
use ratatui::text::{Line, Text};
use ratatui::widgets::{Paragraph, Row, Table};
use ratatui::{Frame, Terminal, TerminalOptions, Viewport};

use super::scene::Scene;
use super::text::columns;

/// Between two pictures on a terminal.
const REDRAW: Duration = Duration::from_millis(250);
/// Between two reports elsewhere.
const REPORT: Duration = Duration::from_secs(2);

/// Where the scene is shown.
pub(super) enum Screen {
    Terminal(Box<Terminal<CrosstermBackend<Stdout>>>),
    Lines,
}

impl Screen {
    /// A table with so many tenants and servers, if standard output is a terminal.
    pub(super) fn open(tenants: usize, servers: usize) -> Self {
        if !io::stdout().is_terminal() || !io::stdin().is_terminal() {
            return Self::Lines;
        }
        // The headline, two tables with their headers, a blank before each, and the hint.
        let height = u16::try_from(1 + 2 + tenants + 2 + servers + 2).unwrap_or(u16::MAX);
        let options = TerminalOptions {
            viewport: Viewport::Inline(height),
        };
        match Terminal::with_options(CrosstermBackend::new(io::stdout()), options) {
            Ok(terminal) => Self::Terminal(Box::new(terminal)),
            Err(_) => Self::Lines,
        }
    }

    /// How often [`Screen::show`] is worth it.
    pub(super) fn period(&self) -> Duration {
        match self {
            Self::Terminal(_) => REDRAW,
            Self::Lines => REPORT,
        }
    }

    /// Shows the scene as it is now.
    pub(super) fn show(&mut self, scene: &Scene) {
        let shown = match self {
            Self::Terminal(terminal) => terminal.draw(|frame| draw(frame, scene)).map(|_| ()),
            Self::Lines => {
                let text = columns(&Scene::TENANT_HEADER, &scene.tenant_rows());
                writeln!(io::stdout(), "{}\n{text}", scene.headline())
            }
        };
        // A terminal that has gone is no reason to stop the demo: its accounts still decide.
        if shown.is_err() {
            *self = Self::Lines;
        }
    }

    /// Leaves the terminal's cursor below the table.
    pub(super) fn close(self) {
        if let Self::Terminal(mut terminal) = self {
            // Nothing to be done if it has gone.
            let _ = terminal.clear().and_then(|()| terminal.show_cursor());
        }
    }
}

fn draw(frame: &mut Frame<'_>, scene: &Scene) {
    let tenants = scene.tenant_rows();
    let servers = scene.server_rows();
    let [head, upper, _, lower, hint] = Layout::vertical([
        Constraint::Length(2),
        Constraint::Length(u16::try_from(1 + tenants.len()).unwrap_or(u16::MAX)),
        Constraint::Length(1),
        Constraint::Min(1),
        Constraint::Length(1),
    ])
    .areas(frame.area());
    frame.render_widget(
        Paragraph::new(Line::from(scene.headline()).style(Modifier::BOLD)),
        head,
    );
    frame.render_widget(table(&Scene::TENANT_HEADER, tenants, 10), upper);
    frame.render_widget(table(&Scene::SERVER_HEADER, servers, 22), lower);
    frame.render_widget(Paragraph::new("Ctrl-C ends it").style(Modifier::DIM), hint);
}

fn table<'a>(header: &[&'a str], rows: Vec<Vec<String>>, first: u16) -> Table<'a> {
    let cell = |at: usize, text: String| {
        if at == 0 {
            Text::from(text)
        } else {
            Text::from(text).right_aligned()
        }
    };
    let head = header
        .iter()
        .enumerate()
        .map(|(at, name)| cell(at, (*name).to_owned()));
    let head = Row::new(head).style(Style::new().add_modifier(Modifier::UNDERLINED));
    let widths = (0..header.len()).map(|at| Constraint::Length(if at == 0 { first } else { 8 }));
    let rows: Vec<Row<'a>> = rows
        .into_iter()
        .map(|cells| Row::new(cells.into_iter().enumerate().map(|(at, text)| cell(at, text))))
        .collect();
    Table::new(rows, widths).header(head).column_spacing(2)
}

#[cfg(test)]
mod tests {
    use ratatui::backend::TestBackend;

    use super::*;
    use crate::demo::look::{Endpoint, Pool};
    use crate::demo::tenants::TENANTS;

    #[test]
    fn the_picture_holds_every_tenant_and_server() {
        let mut scene = Scene::new(&TENANTS);
        let endpoint = |n: u64| Endpoint {
            address: format!("127.0.0.1:900{n}"),
            ready: true,
            stock: n,
            bound: 3,
        };
        let endpoints = (0..3).map(endpoint).collect();
        scene.saw(Some(Pool {
            stock: 3,
            lower: 6,
            upper: 7,
            endpoints,
            ..Pool::default()
        }));
        let mut terminal = Terminal::new(TestBackend::new(110, 13)).unwrap();
        terminal.draw(|frame| draw(frame, &scene)).unwrap();
        let cells = terminal.backend().buffer().content();
        let text: String = cells.iter().map(ratatui::buffer::Cell::symbol).collect();
        for word in [
            "greedy",
            "light",
            "vip",
            "127.0.0.1:9002",
            "stock 3 of 6..7",
            "ideal",
            "Ctrl-C",
        ] {
            assert!(text.contains(word), "{word} isn't in {text}");
        }
    }
}
