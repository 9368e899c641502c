//! The document as plain text, for `penstock status` and for output without a terminal.

use super::tables::{self, Sort, Table};
use super::view::View;

/// All tables, pool by pool. The advice comes last, where it stays visible above the prompt.
pub(crate) fn render(view: &View) -> String {
    let mut text = format!("{}\n", view.headline());
    text.push_str(&block(&tables::pools(view)));
    for pool in &view.pools {
        let tables = [
            tables::flows(pool, Sort::Waiting, |_| None).without("tokens/s"),
            tables::budgets(pool),
            tables::classes(pool),
            tables::endpoints(pool),
            tables::model(pool),
        ];
        for table in tables.iter().filter(|table| !table.rows.is_empty()) {
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
    fn without(mut self, name: &str) -> Self {
        if let Some(column) = self.header.iter().position(|header| *header == name) {
            self.header.remove(column);
            for row in &mut self.rows {
                row.remove(column);
            }
        }
        self
    }
}

/// The table as lines: words aligned left, numbers right, no trailing blanks.
fn block(table: &Table) -> String {
    let widths = table.widths();
    let line = |cells: Vec<&str>| {
        let cells = cells.iter().zip(&widths).enumerate().map(|(column, (cell, width))| {
            if table.left.contains(&column) { format!("{cell:<width$}") } else { format!("{cell:>width$}") }
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
    fn text_has_aligned_columns_and_ends_with_the_advice() {
        let text = render(&View::parse(DOCUMENT).expect("valid"));
        for line in [
            "  pool   satur.  stock  bound  waiting  critical  default  sheddable  ready  advice",
            "  chat     0.86      6   6..7       12         1       11          0    2/3       1",
            "  greedy  default         9        2        123,456       1    over",
            "  127.0.0.1:9003  l4           1      3        -      -     -  its health check fails",
            "  cached       12     2048      512",
            "  h100     converged          8     0.05    0.0005  29.5     9.25         37        2       4",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} isn't in\n{text}");
        }
        assert!(text.contains("  - the configuration file isn't in force"), "{text}");
        assert!(text.contains("  - chat: 127.0.0.1:9003 isn't ready"), "{text}");
        assert!(text.lines().all(|line| line == line.trim_end()), "{text}");
        assert!(!text.contains("flows of batch"), "empty tables are left out: {text}");
    }
}
