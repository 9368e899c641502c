//! One look as text, for `penstock status` and for whoever has no terminal.

use super::tables::{self, Sort, Table};
use super::view::View;

/// Everything, pool by pool, with the advice last, where it is read first.
pub(crate) fn render(view: &View) -> String {
    let mut text = format!("{}\n", view.headline());
    text.push_str(&block(&tables::pools(view)));
    for pool in &view.pools {
        let of = [
            tables::flows(pool, Sort::Waiting, |_| None).without("tokens/s"),
            tables::classes(pool),
            tables::endpoints(pool),
            tables::model(pool),
        ];
        for table in of.iter().filter(|it| !it.rows.is_empty()) {
            text.push_str(&block(table));
        }
    }
    let advice = tables::advice(view);
    if advice.is_empty() {
        text.push_str("\nadvice: none\n");
    } else {
        text.push_str("\nadvice\n");
        for line in advice {
            text.push_str(&format!("  - {line}\n"));
        }
    }
    text
}

impl Table {
    /// The same without one column.
    fn without(mut self, name: &str) -> Self {
        if let Some(at) = self.header.iter().position(|it| *it == name) {
            self.header.remove(at);
            for row in &mut self.rows {
                row.remove(at);
            }
        }
        self
    }
}

/// Words to the left, numbers to the right; no line ends in blanks.
fn block(table: &Table) -> String {
    let width = |at: usize| {
        let cells = table.rows.iter().filter_map(|row| row.get(at));
        let cells = cells.map(|cell| cell.chars().count());
        cells
            .chain(table.header.get(at).map(|it| it.len()))
            .max()
            .unwrap_or(0)
    };
    let widths: Vec<usize> = (0..table.header.len()).map(width).collect();
    let line = |cells: Vec<&str>| {
        let cells = cells.iter().zip(&widths).enumerate().map(|(at, (cell, width))| {
            if table.left.contains(&at) {
                format!("{cell:<width$}")
            } else {
                format!("{cell:>width$}")
            }
        });
        let line = cells.collect::<Vec<_>>().join("  ");
        format!("  {}\n", line.trim_end())
    };
    let mut text = format!("\n{}\n{}", table.title, line(table.header.clone()));
    for row in &table.rows {
        text.push_str(&line(row.iter().map(String::as_str).collect()));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::super::view::tests::DOCUMENT;
    use super::*;

    #[test]
    fn the_whole_is_a_page_of_columns() {
        let text = render(&View::read(DOCUMENT).expect("valid"));
        for line in [
            "  pool   satur.  stock  bound  waiting  critical  default  sheddable  ready  advice",
            "  chat     0.86      6   6..7       12         1       11          0    2/3       1",
            "  greedy  default         9        2        123,456       1",
            "  127.0.0.1:9003  l4           1      3        -      -     -  its health check fails",
            "  cached       12     2048      512",
            "  h100     converged          8     0.05    0.0005  29.5     9.25         37        2       4",
        ] {
            assert!(text.lines().any(|it| it == line), "{line} isn't in\n{text}");
        }
        assert!(
            text.contains("  - the configuration file isn't in force"),
            "{text}"
        );
        assert!(text.contains("  - chat: 127.0.0.1:9003 isn't ready"), "{text}");
        assert!(text.lines().all(|it| it == it.trim_end()), "{text}");
        assert!(
            !text.contains("flows of batch"),
            "empty tables are left out: {text}"
        );
    }
}
