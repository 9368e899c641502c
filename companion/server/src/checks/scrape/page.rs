//! Parses a model server's metrics page while it arrives: Prometheus' text format, with the series of vLLM, SGLang, TensorRT-LLM,
//! llama.cpp and TGI, under their own names and under those that Ray Serve and OpenMetrics make of them.
//!
//! The name of a line decides whether the rest is parsed. Only the current line is buffered. A line that can't be
//! parsed, or has an impossible value, is skipped: its value is then unknown, never wrong. That is also why no library
//! is used: the available ones parse a page as a whole or not at all, or reject names with a colon, as vLLM has.

use penstock_control::{Scraped, Totals};

use super::adapters::Adapters;
use super::line::{Labels, number};

/// Bytes of a page. Servers with thousands of series stay below a tenth of it.
pub(super) const PAGE_MAX: usize = 8 << 20;
/// Bytes of a line; a longer one is skipped.
const LINE_MAX: usize = 16 << 10;
/// Larger counts aren't exact in the page's floating-point numbers.
const COUNT_MAX: f64 = 9_007_199_254_740_992.0;
/// A ratio of 1, with rounding.
const RATIO_MAX: f64 = 1.001;

const _: () = assert!(LINE_MAX < PAGE_MAX);

/// A page that is being parsed.
#[derive(Debug, Default)]
pub(super) struct Page {
    bytes: usize,
    /// The beginning of the current line.
    line: Vec<u8>,
    /// The current line is too long, and the rest of it is skipped.
    skipping: bool,
    values: Values,
    adapters: Adapters,
}

/// The page has more than [`PAGE_MAX`] bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the page has more than {} MiB", PAGE_MAX >> 20)]
pub(super) struct TooLong;

impl Page {
    /// Parses the next bytes, split anywhere.
    ///
    /// # Errors
    /// When the page becomes too long; it can't be used then.
    pub(super) fn add(&mut self, chunk: &[u8]) -> Result<(), TooLong> {
        self.bytes = self.bytes.saturating_add(chunk.len());
        if self.bytes > PAGE_MAX {
            return Err(TooLong);
        }
        let mut rest = chunk;
        while let Some(end) = rest.iter().position(|byte| *byte == b'\n') {
            let (line, after) = rest.split_at(end);
            rest = after.get(1..).unwrap_or_default();
            self.buffer(line);
            if !self.skipping {
                self.values.line(&self.line);
                self.adapters.line(&self.line);
            }
            self.line.clear();
            self.skipping = false;
        }
        self.buffer(rest);
        Ok(())
    }

    fn buffer(&mut self, part: &[u8]) {
        self.skipping |= self.line.len() + part.len() > LINE_MAX;
        if !self.skipping {
            self.line.extend_from_slice(part);
        }
    }

    /// Adapters that the server has in memory, by their model names; `None`: the page doesn't list them.
    #[must_use]
    pub(super) fn adapters(&self) -> Option<Box<[Box<str>]>> {
        self.adapters.latest()
    }

    /// The values of the page; `None`: it has no known series. A last line without a line feed may be incomplete and is
    /// skipped.
    #[must_use]
    pub(super) fn finish(self) -> Option<Scraped> {
        let values = self.values;
        let scraped = Scraped {
            running: values.count(Series::Running),
            waiting: values.count(Series::Waiting),
            kv_used: values.get(Series::KvUsed),
            kv_tokens: values.cache_tokens(),
            totals: values.totals(),
            is_asleep: values.is_asleep(),
            started_s: values.get(Series::Started),
            ..Scraped::default()
        };
        // Every server in Python or Go says when it started.
        (Scraped { started_s: None, ..scraped } != Scraped::default()).then_some(scraped)
    }
}

/// The series that are read, independent of the server's names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Series {
    Running,
    Waiting,
    KvUsed,
    KvTokens,
    /// A series whose labels have the size of the cache.
    CacheConfig,
    /// The size of the cache in blocks.
    Blocks,
    /// The tokens of one block.
    BlockTokens,
    PromptTokens,
    OutputTokens,
    TtftSum,
    TtftCount,
    ItlSum,
    ItlCount,
    /// The former name of the time between tokens; some servers export both names.
    OldItlSum,
    OldItlCount,
    /// A series of engines, each with its state as a label.
    SleepState,
    /// Engines that are awake, or asleep, by that series.
    Awake,
    Asleep,
    /// When the server's process started.
    Started,
}

/// The number of series.
const SERIES: usize = Series::Started as usize + 1;

/// How a page writes the names of its series: one page of a proxy may have each series in several forms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Form {
    /// The engine runs in Ray Serve.
    is_ray: bool,
    /// A colon comes after the engine's name, not an underscore. Exporters that follow Prometheus' rules for names replace the colon.
    has_colon: bool,
}

impl Series {
    /// The series with this name, and the form of the name.
    fn named(name: &[u8]) -> Option<(Self, Form)> {
        let (is_ray, name) = match name.strip_prefix(b"ray_") {
            Some(rest) => (true, rest),
            None => (false, name),
        };
        let separator = name.iter().position(|byte| matches!(byte, b':' | b'_'))?;
        let (engine, rest) = name.split_at(separator);
        let (separator, metric) = rest.split_first()?;
        let series = match engine {
            b"vllm" => Self::of_vllm(metric),
            b"sglang" => Self::of_sglang(metric),
            b"trtllm" => Self::of_tensorrt_llm(metric),
            b"llamacpp" => Self::of_llama_cpp(metric),
            b"tgi" => Self::of_tgi(metric),
            b"process" => (metric == b"start_time_seconds").then_some(Self::Started),
            _ => None,
        };
        Some((series?, Form { is_ray, has_colon: *separator == b':' }))
    }

    fn of_vllm(metric: &[u8]) -> Option<Self> {
        Some(match metric {
            b"num_requests_running" => Self::Running,
            b"num_requests_waiting" => Self::Waiting,
            b"kv_cache_usage_perc" | b"gpu_cache_usage_perc" => Self::KvUsed,
            b"cache_config_info" => Self::CacheConfig,
            b"engine_sleep_state" => Self::SleepState,
            _ => return Self::of_latencies(metric),
        })
    }

    fn of_sglang(metric: &[u8]) -> Option<Self> {
        Some(match metric {
            b"num_running_reqs" => Self::Running,
            b"num_queue_reqs" => Self::Waiting,
            b"token_usage" => Self::KvUsed,
            b"max_total_num_tokens" => Self::KvTokens,
            _ => return Self::of_latencies(metric),
        })
    }

    fn of_tensorrt_llm(metric: &[u8]) -> Option<Self> {
        Some(match metric {
            b"num_requests_running" => Self::Running,
            b"num_requests_waiting" => Self::Waiting,
            b"kv_cache_utilization" => Self::KvUsed,
            b"kv_cache_max_blocks" => Self::Blocks,
            b"kv_cache_tokens_per_block" => Self::BlockTokens,
            _ => return Self::of_latencies(metric),
        })
    }

    /// llama.cpp has no counts of latencies, and of its cache only the used part.
    fn of_llama_cpp(metric: &[u8]) -> Option<Self> {
        Some(match metric {
            b"requests_processing" => Self::Running,
            b"requests_deferred" => Self::Waiting,
            b"kv_cache_usage_ratio" => Self::KvUsed,
            b"prompt_tokens_total" => Self::PromptTokens,
            b"tokens_predicted_total" => Self::OutputTokens,
            _ => return None,
        })
    }

    fn of_tgi(metric: &[u8]) -> Option<Self> {
        Some(match metric {
            b"batch_current_size" => Self::Running,
            b"queue_size" => Self::Waiting,
            _ => return None,
        })
    }

    /// The counters that vLLM, SGLang and TensorRT-LLM have in common.
    fn of_latencies(metric: &[u8]) -> Option<Self> {
        Some(match metric {
            b"prompt_tokens_total" => Self::PromptTokens,
            b"generation_tokens_total" => Self::OutputTokens,
            b"time_to_first_token_seconds_sum" => Self::TtftSum,
            b"time_to_first_token_seconds_count" => Self::TtftCount,
            b"inter_token_latency_seconds_sum" => Self::ItlSum,
            b"inter_token_latency_seconds_count" => Self::ItlCount,
            b"time_per_output_token_seconds_sum" => Self::OldItlSum,
            b"time_per_output_token_seconds_count" => Self::OldItlCount,
            _ => return None,
        })
    }
}

/// Values by series. Values of several engines behind one page are added up; of ratios, the largest counts.
#[derive(Clone, Copy, Debug, Default)]
struct Values {
    values: [Option<f64>; SERIES],
    /// The form of the name of each value: the first on the page. Other forms repeat the value.
    forms: [Option<Form>; SERIES],
}

impl Values {
    fn line(&mut self, line: &[u8]) {
        let line = line.trim_ascii();
        let name = line.split(|byte| *byte == b'{' || byte.is_ascii_whitespace()).next().unwrap_or_default();
        let Some((series, form)) = Series::named(name) else { return };
        let mut labels = Labels::of(line, name);
        let mut cache = CacheConfig::default();
        let mut ranks = Ranks::default();
        let mut sleep_state = None;
        for (label, value) in labels.by_ref() {
            match label {
                b"block_size" => cache.block_tokens = number(value),
                b"num_gpu_blocks" => cache.blocks = number(value),
                b"tp_rank" | b"pp_rank" => ranks.is_nonzero |= value != b"0",
                b"dp_rank" => ranks.is_data_parallel = true,
                b"sleep_state" => sleep_state = Some(value),
                _ => {}
            }
        }
        let Some(value) = labels.value() else {
            return;
        };
        if ranks.is_copy() || *self.forms[series as usize].get_or_insert(form) != form {
            return;
        }
        match series {
            Series::CacheConfig => {
                if let (Some(tokens), Some(blocks)) = (cache.block_tokens, cache.blocks) {
                    self.add(Series::KvTokens, tokens * blocks);
                }
            }
            Series::KvUsed if value <= RATIO_MAX => {
                let largest = self.get(series).unwrap_or_default().max(value.min(1.0));
                self.values[series as usize] = Some(largest);
            }
            Series::KvUsed => {}
            // Every engine of a page has the same.
            Series::BlockTokens => self.values[series as usize] = Some(value),
            Series::SleepState => match sleep_state {
                Some(b"awake") => self.add(Series::Awake, value),
                // How deep an engine sleeps makes no difference to requests.
                Some(_) => self.add(Series::Asleep, value),
                None => {}
            },
            Series::Started => {
                let latest = self.get(series).unwrap_or_default().max(value);
                self.values[series as usize] = Some(latest);
            }
            Series::Running
            | Series::Waiting
            | Series::KvTokens
            | Series::Blocks
            | Series::PromptTokens
            | Series::OutputTokens
            | Series::TtftSum
            | Series::TtftCount
            | Series::ItlSum
            | Series::ItlCount
            | Series::OldItlSum
            | Series::OldItlCount
            | Series::Awake
            | Series::Asleep => self.add(series, value),
        }
    }

    fn add(&mut self, series: Series, value: f64) {
        *self.values[series as usize].get_or_insert(0.0) += value;
    }

    /// The size of the cache in tokens.
    fn cache_tokens(&self) -> Option<u64> {
        let blocks = || whole(self.get(Series::Blocks)? * self.get(Series::BlockTokens)?);
        self.count(Series::KvTokens).or_else(blocks).filter(|tokens| *tokens > 0)
    }

    fn get(&self, series: Series) -> Option<f64> {
        self.values[series as usize].filter(|value| value.is_finite())
    }

    /// A whole number, if it is exact.
    fn count(&self, series: Series) -> Option<u64> {
        self.get(series).and_then(whole)
    }

    /// Whether all engines behind the page sleep. An engine that is waking up, in no state, isn't awake yet.
    fn is_asleep(&self) -> Option<bool> {
        match (self.get(Series::Awake), self.get(Series::Asleep)) {
            (Some(awake), _) => Some(awake <= 0.0),
            (None, asleep) => asleep.map(|asleep| asleep > 0.0),
        }
    }

    /// All totals or none, because windows need every one. A server that doesn't count times between tokens has zero.
    fn totals(&self) -> Option<Totals> {
        let (itl_count, itl_s) = match (self.count(Series::ItlCount), self.get(Series::ItlSum)) {
            (Some(count), Some(sum)) => (count, sum),
            _ => (
                self.count(Series::OldItlCount).unwrap_or_default(),
                self.get(Series::OldItlSum).unwrap_or_default(),
            ),
        };
        Some(Totals {
            requests: self.count(Series::TtftCount)?,
            prompt_tokens: self.count(Series::PromptTokens)?,
            output_tokens: self.count(Series::OutputTokens)?,
            ttft_s: self.get(Series::TtftSum)?,
            itl_count,
            itl_s,
        })
    }
}

/// A whole number, if it is exact.
fn whole(value: f64) -> Option<u64> {
    if value > COUNT_MAX {
        return None;
    }
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "between 0 and 2^53")]
    Some(value.round() as u64)
}

/// The labels of vLLM's cache configuration.
#[derive(Debug, Default)]
struct CacheConfig {
    block_tokens: Option<f64>,
    blocks: Option<f64>,
}

/// The rank labels of SGLang. When all ranks of an engine export metrics, they repeat the same values; data-parallel
/// ranks serve requests of their own and add up.
#[derive(Debug, Default)]
struct Ranks {
    is_nonzero: bool,
    is_data_parallel: bool,
}

impl Ranks {
    const fn is_copy(&self) -> bool {
        self.is_nonzero && !self.is_data_parallel
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn read(text: &[u8]) -> Option<Scraped> {
        let mut page = Page::default();
        page.add(text).expect("short");
        page.finish()
    }

    /// A page of vLLM, reduced to the read series and similarly named ones.
    const VLLM: &str = r#"# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="meta-llama/Llama-3.1-8B"} 3.0
vllm:num_requests_waiting{engine="0",model_name="meta-llama/Llama-3.1-8B"} 1.0
vllm:num_requests_waiting_by_reason{engine="0",reason="capacity"} 7.0
vllm:kv_cache_usage_perc{engine="0",model_name="meta-llama/Llama-3.1-8B"} 0.25
vllm:cache_config_info{block_size="16",cache_dtype="auto",kv_args="{\"a\": 1, \"b\\\\\": 2}",num_gpu_blocks="27000"} 1.0
vllm:prompt_tokens_total{engine="0",model_name="meta-llama/Llama-3.1-8B"} 8.128902e+06
vllm:prompt_tokens_created{engine="0"} 1.7e+09
vllm:generation_tokens_total{engine="0",model_name="meta-llama/Llama-3.1-8B"} 453
vllm:time_to_first_token_seconds_bucket{engine="0",le="0.001"} 0.0
vllm:time_to_first_token_seconds_bucket{engine="0",le="+Inf"} 12.0
vllm:time_to_first_token_seconds_count{engine="0"} 12.0
vllm:time_to_first_token_seconds_sum{engine="0"} 1.5
vllm:time_per_output_token_seconds_count{engine="0"} 441.0
vllm:time_per_output_token_seconds_sum{engine="0"} 8.75
vllm:inter_token_latency_seconds_count{engine="0"} 441.0
vllm:inter_token_latency_seconds_sum{engine="0"} 8.5
"#;

    fn vllm_values() -> Scraped {
        Scraped {
            running: Some(3),
            waiting: Some(1),
            kv_used: Some(0.25),
            kv_tokens: Some(432_000),
            totals: Some(Totals {
                requests: 12,
                prompt_tokens: 8_128_902,
                output_tokens: 453,
                ttft_s: 1.5,
                itl_count: 441,
                itl_s: 8.5,
            }),
            is_asleep: None,
            started_s: None,
            ..Scraped::default()
        }
    }

    #[test]
    fn an_engine_sleeps_unless_one_behind_the_page_is_awake() {
        let state = |states: &[(&str, u8, u8)]| {
            let lines = states.iter().map(|(state, engine, value)| {
                format!("vllm:engine_sleep_state{{engine=\"{engine}\",model_name=\"m\",sleep_state=\"{state}\"}} {value}.0\n")
            });
            let page = format!("vllm:num_requests_running 0\n{}", lines.collect::<String>());
            read(page.as_bytes()).expect("known").is_asleep
        };
        assert_eq!(state(&[]), None);
        assert_eq!(
            state(&[("awake", 0, 1), ("weights_offloaded", 0, 0), ("discard_all", 0, 0)]),
            Some(false)
        );
        assert_eq!(state(&[("discard_all", 0, 0), ("weights_offloaded", 0, 1), ("awake", 0, 0)]), Some(true));
        assert_eq!(state(&[("awake", 0, 0), ("discard_all", 0, 1)]), Some(true));
        assert_eq!(state(&[("awake", 0, 0), ("weights_offloaded", 0, 0)]), Some(true), "it is waking up");
        assert_eq!(state(&[("awake", 0, 0), ("awake", 1, 1), ("discard_all", 0, 1)]), Some(false));
        assert_eq!(state(&[("weights_offloaded", 0, 1)]), Some(true));
        assert_eq!(state(&[("weights_offloaded", 0, 0)]), Some(false));
        let page = "vllm:num_requests_running 0\nvllm:engine_sleep_state 1\n";
        assert_eq!(read(page.as_bytes()).expect("known").is_asleep, None, "a series without the state");
    }

    #[test]
    fn the_start_of_the_process_is_read_and_makes_no_page_known() {
        let page = "process_start_time_seconds 1.73205610025e+09\n";
        assert_eq!(read(page.as_bytes()), None, "any server has it");
        let page = format!("vllm:num_requests_running 1\n{page}");
        assert_eq!(read(page.as_bytes()).expect("known").started_s, Some(1_732_056_100.25));
    }

    #[test]
    fn a_page_of_vllm() {
        assert_eq!(read(VLLM.as_bytes()), Some(vllm_values()));
        let windows = VLLM.replace('\n', "\r\n");
        assert_eq!(read(windows.as_bytes()), Some(vllm_values()));
    }

    #[test]
    fn former_names_are_read() {
        let page = VLLM
            .replace("kv_cache_usage_perc", "gpu_cache_usage_perc")
            .replace("vllm:inter_token_latency", "vllm:something_else")
            .replace("8.75", "8.5");
        assert_eq!(read(page.as_bytes()), Some(vllm_values()));
    }

    #[test]
    fn values_of_several_engines_add_up() {
        let page = "vllm:num_requests_running{engine=\"0\"} 3\nvllm:num_requests_running{engine=\"1\"} 4\n\
                    vllm:kv_cache_usage_perc{engine=\"0\"} 0.5\nvllm:kv_cache_usage_perc{engine=\"1\"} 0.75\n\
                    vllm:cache_config_info{block_size=\"16\",num_gpu_blocks=\"10\",engine=\"0\"} 1\n\
                    vllm:cache_config_info{block_size=\"16\",num_gpu_blocks=\"20\",engine=\"1\"} 1\n";
        let scraped = read(page.as_bytes()).expect("known");
        assert_eq!(scraped.running, Some(7));
        assert_eq!(scraped.kv_used, Some(0.75), "the fuller one");
        assert_eq!(scraped.kv_tokens, Some(480));
    }

    #[test]
    fn a_page_of_sglang() {
        let page = r#"sglang:num_running_reqs{model_name="m",tp_rank="0"} 5.0
sglang:num_running_reqs{model_name="m",tp_rank="1"} 5.0
sglang:num_queue_reqs{model_name="m"} 2.0
sglang:token_usage{model_name="m"} 0.28
sglang:max_total_num_tokens{model_name="m"} 471258.0
sglang:prompt_tokens_total{model_name="m"} 100.0
sglang:generation_tokens_total{model_name="m"} 50.0
sglang:time_to_first_token_seconds_sum{model_name="m"} 2.0
sglang:time_to_first_token_seconds_count{model_name="m"} 10.0
"#;
        let scraped = read(page.as_bytes()).expect("known");
        assert_eq!(scraped.running, Some(5), "rank 1 repeats the values of rank 0");
        assert_eq!((scraped.waiting, scraped.kv_tokens), (Some(2), Some(471_258)));
        let totals = scraped.totals.expect("all of them");
        assert_eq!((totals.requests, totals.itl_count, totals.itl_s), (10, 0, 0.0));
        let ranks = "sglang:num_running_reqs{dp_rank=\"0\",tp_rank=\"0\"} 5\n\
                     sglang:num_running_reqs{dp_rank=\"1\",tp_rank=\"1\"} 6\n";
        assert_eq!(read(ranks.as_bytes()).expect("known").running, Some(11));
    }

    #[test]
    fn a_page_of_tgi() {
        let page = "# TYPE tgi_batch_current_size gauge\ntgi_batch_current_size 4\ntgi_queue_size 7\n";
        let scraped = read(page.as_bytes()).expect("known");
        assert_eq!(scraped, Scraped { running: Some(4), waiting: Some(7), ..Scraped::default() });
    }

    #[test]
    fn a_page_of_tensorrt_llm() {
        let page = r#"# TYPE trtllm_num_requests_running gauge
trtllm_num_requests_running{engine_type="trtllm",model_name="m"} 6.0
trtllm_num_requests_waiting{engine_type="trtllm",model_name="m"} 2.0
trtllm_kv_cache_utilization{engine_type="trtllm",model_name="m"} 0.5
trtllm_kv_cache_host_utilization{engine_type="trtllm",model_name="m"} 0.9
trtllm_kv_cache_max_blocks{engine_type="trtllm",model_name="m"} 1000.0
trtllm_kv_cache_tokens_per_block{engine_type="trtllm",model_name="m"} 32.0
trtllm_prompt_tokens_total{engine_type="trtllm",model_name="m"} 700.0
trtllm_generation_tokens_total{engine_type="trtllm",model_name="m"} 90.0
trtllm_time_to_first_token_seconds_sum{engine_type="trtllm",model_name="m"} 2.5
trtllm_time_to_first_token_seconds_count{engine_type="trtllm",model_name="m"} 5.0
trtllm_time_per_output_token_seconds_sum{engine_type="trtllm",model_name="m"} 0.5
trtllm_time_per_output_token_seconds_count{engine_type="trtllm",model_name="m"} 85.0
"#;
        let expected = Scraped {
            running: Some(6),
            waiting: Some(2),
            kv_used: Some(0.5),
            kv_tokens: Some(32_000),
            totals: Some(Totals {
                requests: 5,
                prompt_tokens: 700,
                output_tokens: 90,
                ttft_s: 2.5,
                itl_count: 85,
                itl_s: 0.5,
            }),
            ..Scraped::default()
        };
        assert_eq!(read(page.as_bytes()), Some(expected));
        // An older version of Dynamo writes a colon.
        assert_eq!(read(page.replace("trtllm_", "trtllm:").as_bytes()), Some(expected));
    }

    #[test]
    fn a_page_of_llama_cpp() {
        let page = "llamacpp:requests_processing 2\nllamacpp:requests_deferred 3\nllamacpp:kv_cache_usage_ratio 0.25\n\
                    llamacpp:prompt_tokens_total 10\nllamacpp:tokens_predicted_total 20\nllamacpp:n_decode_total 7\n";
        let expected =
            Scraped { running: Some(2), waiting: Some(3), kv_used: Some(0.25), ..Scraped::default() };
        assert_eq!(read(page.as_bytes()), Some(expected));
    }

    #[test]
    fn names_of_ray_and_of_openmetrics_mean_the_same() {
        for (before, after) in [("vllm:", "vllm_"), ("vllm:", "ray_vllm_"), ("vllm:", "ray_vllm:")] {
            assert_eq!(read(VLLM.replace(before, after).as_bytes()), Some(vllm_values()), "{after}");
        }
        let sglang = "sglang_num_running_reqs{engine_type=\"unified\"} 5\nsglang_num_queue_reqs 2\nsglang_token_usage 0.5\n";
        let expected =
            Scraped { running: Some(5), waiting: Some(2), kv_used: Some(0.5), ..Scraped::default() };
        assert_eq!(read(sglang.as_bytes()), Some(expected));
    }

    #[test]
    fn a_series_under_two_names_counts_once() {
        let both = format!("{VLLM}{}", VLLM.replace("vllm:", "vllm_"));
        assert_eq!(read(both.as_bytes()), Some(vllm_values()));
    }

    #[test]
    fn impossible_values_are_unknown() {
        for value in [
            "NaN", "nan", "+Inf", "-Inf", "-1", "-0.5", "", "three", "1e300", "0x10", "1_000", "{", "\u{660}",
        ] {
            let page = format!(
                "vllm:num_requests_running{{engine=\"0\"}} {value}\nvllm:num_requests_waiting {value}\ntgi_queue_size 7\n\
                 sglang:token_usage 0.5\n"
            );
            let scraped = read(page.as_bytes()).expect("the rest is known");
            assert_eq!(scraped.running, None, "{value}");
            // A count that no number can hold isn't added up either.
            let waiting = if value == "1e300" { None } else { Some(7) };
            assert_eq!(scraped.waiting, waiting, "{value}");
        }
        let parts = [("1.0", Some(1.0)), ("1.0000001", Some(1.0)), ("85", None), ("-0.1", None)];
        for (value, expected) in parts {
            let page = format!("vllm:kv_cache_usage_perc {value}\ntgi_queue_size 0\n");
            assert_eq!(read(page.as_bytes()).expect("known").kv_used, expected, "{value}");
        }
        for labels in [
            "block_size=\"16\"",
            "block_size=\"16\",num_gpu_blocks=\"None\"",
            "block_size=\"0\",num_gpu_blocks=\"9\"",
            "block_size=\"1e200\",num_gpu_blocks=\"1e200\"",
        ] {
            let page = format!("vllm:cache_config_info{{{labels}}} 1.0\ntgi_queue_size 0\n");
            assert_eq!(read(page.as_bytes()).expect("known").kv_tokens, None, "{labels}");
        }
    }

    #[test]
    fn malformed_lines_are_skipped() {
        for line in [
            "vllm:num_requests_running",
            "vllm:num_requests_running{",
            "vllm:num_requests_running{engine",
            "vllm:num_requests_running{engine=",
            "vllm:num_requests_running{engine=\"0",
            "vllm:num_requests_running{engine=\"0\\\"} 3",
            "vllm:num_requests_running{engine=\"0\" 3",
            "vllm:num_requests_running}{ 3",
            "#vllm:num_requests_running 3",
            "vllm:num_requests_runnin 3",
            "xvllm:num_requests_running 3",
        ] {
            let page = format!("{line}\ntgi_queue_size 7\n");
            let scraped = read(page.as_bytes()).expect("the rest is known");
            assert_eq!((scraped.running, scraped.waiting), (None, Some(7)), "{line}");
        }
    }

    #[test]
    fn unusual_spacing_is_read() {
        for line in [
            "vllm:num_requests_running 3",
            "  vllm:num_requests_running\t3  ",
            "vllm:num_requests_running{} 3 1543182234000",
            "vllm:num_requests_running{ engine = \"a } b, \\\"c\" , } 3",
            "vllm:num_requests_running {engine=\"0\"}3",
            "vllm:num_requests_running{engine=\"0\"} 3.0 # {trace=\"x\"} 1",
        ] {
            let page = format!("{line}\n");
            assert_eq!(read(page.as_bytes()).expect("known").running, Some(3), "{line}");
        }
    }

    #[test]
    fn an_incomplete_last_line_is_skipped() {
        let scraped = read(b"tgi_queue_size 7\nvllm:num_requests_running 12").expect("the first is known");
        assert_eq!((scraped.running, scraped.waiting), (None, Some(7)));
    }

    #[test]
    fn pages_without_known_series_have_no_values() {
        let compressed: Vec<u8> =
            (0..100_000_u32).map(|number| (number.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
        for page in [
            b"".as_slice(),
            b"\n\n\n",
            b"<html><body>sign in</body></html>\n",
            b"process_cpu_seconds_total 1\n",
            &compressed,
        ] {
            assert_eq!(read(page), None);
        }
    }

    #[test]
    fn a_line_without_an_end_is_buffered_up_to_its_limit() {
        let mut page = Page::default();
        page.add(b"vllm:num_requests_running{a=\"").expect("short");
        for _ in 0..100 {
            page.add(&[b'x'; 10_000]).expect("short");
            assert!(page.line.len() <= LINE_MAX);
        }
        page.add(b"\"} 3\ntgi_queue_size 7\n").expect("short");
        let scraped = page.finish().expect("the next line is read");
        assert_eq!((scraped.running, scraped.waiting), (None, Some(7)));
    }

    #[test]
    fn a_page_that_is_too_long_is_rejected() {
        let mut page = Page::default();
        let line = b"process_cpu_seconds_total 1.0000000000000000000000000\n";
        let accepted = (0..).take_while(|_| page.add(line).is_ok()).count();
        assert_eq!(accepted, PAGE_MAX / line.len());
    }

    proptest! {
        #[test]
        fn the_result_does_not_depend_on_chunks(cuts in prop::collection::vec(0..VLLM.len(), 0..20)) {
            let mut cuts = cuts;
            cuts.extend([0, VLLM.len()]);
            cuts.sort_unstable();
            let mut page = Page::default();
            for part in cuts.windows(2) {
                page.add(&VLLM.as_bytes()[part[0]..part[1]]).expect("short");
            }
            prop_assert_eq!(page.finish(), Some(vllm_values()));
        }

        #[test]
        fn inserted_bytes_cannot_cause_impossible_values(
            garbage in prop::collection::vec(any::<u8>(), 0..200),
            position in 0..VLLM.len(),
        ) {
            let mut bytes = VLLM.as_bytes().to_vec();
            bytes.splice(position..position, garbage);
            if let Some(scraped) = read(&bytes) {
                prop_assert!(scraped.kv_used.is_none_or(|ratio| (0.0..=1.0).contains(&ratio)));
                prop_assert!(scraped.totals.is_none_or(|totals| totals.ttft_s >= 0.0 && totals.itl_s.is_finite()));
            }
        }
    }
}
