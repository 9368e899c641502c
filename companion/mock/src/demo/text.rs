//! Columns of text, for whoever has no terminal.

/// Rows under a header; the first column to the left, the others to the right, none ends in blanks.
pub(super) fn columns(header: &[&str], rows: &[Vec<String>]) -> String {
    let width = |at: usize| {
        let cells = rows
            .iter()
            .filter_map(|row| row.get(at))
            .map(|cell| cell.chars().count());
        cells
            .chain(header.get(at).map(|name| name.len()))
            .max()
            .unwrap_or(0)
    };
    let widths: Vec<usize> = (0..header.len()).map(width).collect();
    let line = |cells: Vec<&str>| {
        let cells = cells.iter().zip(&widths).enumerate().map(|(at, (cell, width))| {
            if at == 0 {
                format!("{cell:<width$}")
            } else {
                format!("{cell:>width$}")
            }
        });
        let line = cells.collect::<Vec<_>>().join("  ");
        format!("  {}\n", line.trim_end())
    };
    let rows = rows
        .iter()
        .map(|row| line(row.iter().map(String::as_str).collect()));
    std::iter::once(line(header.to_vec())).chain(rows).collect()
}

/// `12 ms` or `3.4 s`; `-` for none.
pub(super) fn duration(of: Option<std::time::Duration>) -> String {
    match of.map(|d| d.as_secs_f64()) {
        None => "-".to_owned(),
        Some(s) if s < 1.0 => format!("{:.0} ms", s * 1e3),
        Some(s) => format!("{s:.1} s"),
    }
}

/// `25.0 %`; `-` for none.
pub(super) fn percent(of: Option<f64>) -> String {
    of.map_or_else(|| "-".to_owned(), |share| format!("{:.1} %", share * 100.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let rows = vec![
            vec!["a".to_owned(), "1".to_owned()],
            vec!["long".to_owned(), "100".to_owned()],
        ];
        assert_eq!(
            columns(&["who", "n"], &rows),
            "  who     n\n  a       1\n  long  100\n"
        );
    }
}
