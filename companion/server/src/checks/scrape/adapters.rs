//! The adapters that a vLLM server has in memory. vLLM lists them in the labels of a line whose value is the time of the
//! list. A page keeps lines with older lists; the latest one counts.

use super::line::Labels;

/// The name of the series, and what Ray Serve and OpenMetrics make of it.
const NAMES: [&[u8]; 4] = [
    b"vllm:lora_requests_info",
    b"vllm_lora_requests_info",
    b"ray_vllm_lora_requests_info",
    b"ray_vllm:lora_requests_info",
];
/// Adapters that are kept; a server has some tens at most.
const ADAPTERS_MAX: usize = 256;

/// The latest list of the page so far.
#[derive(Debug, Default)]
pub(super) struct Adapters {
    last: Option<(f64, Vec<Box<str>>)>,
}

impl Adapters {
    /// Takes a line of any series.
    pub(super) fn line(&mut self, line: &[u8]) {
        let line = line.trim_ascii();
        let is_name =
            |name: &&&[u8]| line.strip_prefix(**name).is_some_and(|rest| rest.first() == Some(&b'{'));
        let Some(name) = NAMES.iter().find(is_name) else {
            return;
        };
        let mut labels = Labels::of(line, name);
        let mut adapters: Vec<Box<str>> = Vec::new();
        for (label, value) in labels.by_ref() {
            // Waiting adapters are being loaded.
            if !matches!(label, b"running_lora_adapters" | b"waiting_lora_adapters") {
                continue;
            }
            let Ok(value) = core::str::from_utf8(value) else {
                return;
            };
            let named = value.split(',').map(str::trim).filter(|name| !name.is_empty());
            adapters.extend(named.map(Into::into));
        }
        let Some(time) = labels.value() else { return };
        if self.last.as_ref().is_none_or(|(before, _)| *before <= time) {
            adapters.sort_unstable();
            adapters.dedup();
            adapters.truncate(ADAPTERS_MAX);
            self.last = Some((time, adapters));
        }
    }

    /// The latest list; `None`: the page has none.
    pub(super) fn latest(&self) -> Option<Box<[Box<str>]>> {
        self.last.as_ref().map(|(_, adapters)| adapters.as_slice().into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(lines: &[&str]) -> Option<Vec<String>> {
        let mut adapters = Adapters::default();
        for line in lines {
            adapters.line(line.as_bytes());
        }
        let now = adapters.latest()?;
        Some(now.iter().map(ToString::to_string).collect())
    }

    fn line(running: &str, waiting: &str, time: &str) -> String {
        format!(
            "vllm:lora_requests_info{{max_lora=\"4\",running_lora_adapters=\"{running}\",\
             waiting_lora_adapters=\"{waiting}\"}} {time}"
        )
    }

    #[test]
    fn the_latest_list_counts_in_any_order_of_lines() {
        assert_eq!(after(&["vllm:num_requests_running 3"]), None);
        assert_eq!(after(&[&line("", "", "1.7e+09")]), Some(Vec::new()));
        let now = line("sql, code", "code,chat", "1.7320561e+09");
        let before = line("old", "", "1.7320560e+09");
        let named = ["chat", "code", "sql"].map(String::from).to_vec();
        assert_eq!(after(&[&before, &now]), Some(named.clone()));
        assert_eq!(after(&[&now, &before]), Some(named));
    }

    #[test]
    fn malformed_lines_are_ignored() {
        for wrong in [
            "vllm:lora_requests_info_more{running_lora_adapters=\"a\"} 1",
            "vllm:lora_requests_info 1",
            "vllm:lora_requests_info{running_lora_adapters=\"a",
            "vllm:lora_requests_info{running_lora_adapters=\"a\"} later",
        ] {
            assert_eq!(after(&[wrong]), None, "{wrong}");
        }
    }
}
