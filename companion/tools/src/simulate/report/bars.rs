//! A chart of horizontal bars in groups.

use std::fmt::Write as _;

use super::html::escape;

const WIDTH: f64 = 400.0;
/// The height of a bar with its gap.
const BAR: f64 = 17.0;
/// The space of a group above its bars, with its name.
const NAME: f64 = 19.0;
/// The space at the right for values.
const VALUES: f64 = 78.0;

/// Bars with one name.
#[derive(Debug)]
pub(super) struct Group {
    pub(super) name: String,
    /// By series, the value and its text; `None`: there is none.
    pub(super) bars: Vec<(Option<f64>, String)>,
}

/// The chart as SVG. Bars begin at 0, and each has its value beside it. A percentage goes up to 100.
pub(super) fn svg(title: &str, unit: &str, groups: &[Group]) -> String {
    let values = groups.iter().flat_map(|group| &group.bars);
    let most = values.filter_map(|(value, _)| *value).fold(0.0, f64::max);
    let most = match most {
        _ if unit.starts_with('%') => 100.0,
        most if most > 0.0 => most,
        _ => 1.0,
    };
    let bars: usize = groups.iter().map(|group| group.bars.len()).sum();
    let names = groups.iter().filter(|group| !group.name.is_empty()).count();
    let height = names as f64 * NAME + bars as f64 * BAR + 22.0;
    let mut svg = format!(
        "<svg viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" aria-label=\"{}\">\n<text x=\"0\" y=\"12\">{}</text>\n",
        escape(title),
        escape(unit)
    );
    let mut y = 18.0;
    for group in groups {
        if !group.name.is_empty() {
            let _ = writeln!(
                svg,
                "<text class=\"value\" x=\"0\" y=\"{:.1}\">{}</text>",
                y + 13.0,
                escape(&group.name)
            );
            y += NAME;
        }
        for (index, (value, text)) in group.bars.iter().enumerate() {
            let width = value.unwrap_or_default() / most * (WIDTH - VALUES);
            let _ = writeln!(
                svg,
                "<g class=\"s{}\"><rect class=\"bar\" x=\"0\" y=\"{:.1}\" width=\"{width:.1}\" height=\"{:.1}\" rx=\"2\"/></g>\
                 <text class=\"value\" x=\"{:.1}\" y=\"{:.1}\">{}</text>",
                index % 8,
                y + 1.0,
                BAR - 4.0,
                width + 5.0,
                y + 12.0,
                escape(text)
            );
            y += BAR;
        }
    }
    svg.push_str("</svg>\n");
    svg
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_bar_is_that_of_the_highest_value() {
        let group = |name: &str, values: [Option<f64>; 2]| Group {
            name: name.into(),
            bars: values
                .map(|value| (value, value.map_or_else(|| "–".into(), |value| value.to_string())))
                .to_vec(),
        };
        let groups = [group("t1", [Some(10.0), Some(40.0)]), group("<t2>", [None, Some(20.0)])];
        let svg = svg("title", "ms", &groups);
        let widths: Vec<&str> =
            svg.split("width=\"").skip(1).map(|rest| &rest[..rest.find('"').expect("its end")]).collect();
        assert_eq!(widths, ["80.5", "322.0", "0.0", "161.0"]);
        assert!(svg.contains("&lt;t2&gt;") && svg.contains(">ms<") && !svg.contains("NaN"));
    }

    #[test]
    fn bars_without_values_have_no_length() {
        let group = Group { name: "t1".into(), bars: vec![(Some(0.0), "0".into())] };
        assert!(svg("title", "ms", &[group]).contains("width=\"0.0\""));
    }
}
