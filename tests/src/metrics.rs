//! A scraped page of metrics, and sums over its samples.

use std::collections::BTreeMap;

/// One sample.
#[derive(Clone, Debug)]
pub struct Sample {
    /// The series' name, `_bucket`, `_sum` and `_count` included.
    pub name: String,
    /// The sample's labels.
    pub labels: BTreeMap<String, String>,
    /// The sample's value.
    pub value: f64,
}

/// A page in Prometheus' text format.
#[derive(Clone, Debug)]
pub struct Metrics {
    /// Every sample, in the page's order.
    pub samples: Vec<Sample>,
    text: String,
}

impl Metrics {
    /// Reads a page.
    ///
    /// # Panics
    /// If a line is malformed.
    #[must_use]
    pub fn parse(text: &str) -> Self {
        let lines = text.lines().filter(|l| !l.is_empty() && !l.starts_with('#'));
        let samples = lines.map(|l| sample(l).unwrap_or_else(|| panic!("no metric: {l}"))).collect();
        Self { samples, text: text.to_owned() }
    }

    /// The sum of all samples of `name` with all of `labels`; 0 without a sample.
    #[must_use]
    pub fn sum(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        let fits = |s: &&Sample| {
            s.name == name && labels.iter().all(|(k, v)| s.labels.get(*k).is_some_and(|have| have == v))
        };
        self.samples.iter().filter(fits).map(|s| s.value).sum()
    }

    /// Whether there is a sample of `name`.
    #[must_use]
    pub fn has(&self, name: &str) -> bool {
        self.samples.iter().any(|s| s.name == name)
    }

    /// The page's text.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.text
    }
}

fn sample(line: &str) -> Option<Sample> {
    let name_end = line.find(['{', ' '])?;
    let name = line[..name_end].to_owned();
    let mut labels = BTreeMap::new();
    let mut rest = &line[name_end..];
    if let Some(inner) = rest.strip_prefix('{') {
        rest = inner;
        while !rest.starts_with('}') {
            let (key, after) = rest.split_once("=\"")?;
            let mut value = String::new();
            let mut characters = after.char_indices();
            let end = loop {
                match characters.next()? {
                    (position, '"') => break position,
                    (_, '\\') => match characters.next()?.1 {
                        'n' => value.push('\n'),
                        other => value.push(other),
                    },
                    (_, other) => value.push(other),
                }
            };
            labels.insert(key.trim_start_matches(',').to_owned(), value);
            rest = after[end + 1..].trim_start_matches(',');
        }
        rest = &rest[1..];
    }
    let value = rest.split_whitespace().next()?.replace("+Inf", "inf").parse().ok()?;
    Some(Sample { name, labels, value })
}

#[cfg(test)]
mod tests {
    use super::Metrics;

    #[test]
    fn labels_and_values_are_read() {
        let page = Metrics::parse(
            "# HELP a x\na{p=\"x\",q=\"y\\\"}z\"} 2\na{p=\"x\"} 3.5\nb 1\nc_bucket{le=\"+Inf\"} 7\n",
        );
        assert_eq!(page.sum("a", &[("p", "x")]), 5.5);
        assert_eq!(page.sum("a", &[("q", "y\"}z")]), 2.0);
        assert_eq!(page.sum("c_bucket", &[]), 7.0);
        assert!(page.has("b") && !page.has("d"));
    }
}
