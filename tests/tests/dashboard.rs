//! The dashboard in a real Chromium, in front of a real gateway with traffic: its charts show what `/metrics` shows, it keeps old data
//! when the companion is gone, and it works behind a proxy.

use std::collections::BTreeMap;
use std::time::Duration;

use penstock_tests::gateway::{config, pool};
use penstock_tests::metrics::Metrics;
use penstock_tests::process::send;
use penstock_tests::upstream::Gate;
use penstock_tests::{Answer, Browser, ClientRequest, Gateway, PathProxy, Upstream, run, until};
use serde_json::{Value, json};
use tokio::task::JoinHandle;

/// A client chose this name: it must appear as text.
const MARKUP: &str = "<b onclick=x>bold</b>";

/// A gateway with requests that wait, run, have ended and were refused.
struct Fixture {
    gateway: Gateway,
    servers: Vec<Upstream>,
    _gate: Gate,
    open: Vec<JoinHandle<Answer>>,
}

impl Drop for Fixture {
    fn drop(&mut self) {
        for request in &self.open {
            request.abort();
        }
    }
}

impl Fixture {
    /// 9 requests are served as streams, 6 run, 6 wait and 2 are refused.
    async fn start(head: &str) -> Self {
        let (servers, gate) = Upstream::gated(2, Duration::ZERO).await;
        let more = "  stock: {lower_bound_per_backend: 2, watermark_per_backend: 2, upper_bound_per_backend: 3, extra_for_idle_flows: 0}\n  \
                    queue: {flow_capacity: 3, ttl: 600s, credits: 'off'}\n  \
                    arbitration: {flows: {weights: {acme: 3}, budgets: [{match: zeta, windows: [{tokens: 1000000, per: 1h}]}]}}\n  \
                    companion_down: {hold: 60s, then: closed}\n";
        let all: Vec<&Upstream> = servers.iter().collect();
        let gateway = Gateway::start(&config(head, &[pool("chat", "'*'", &all, more)])).await;
        let ask = |tenant: &str| ClientRequest::chat("m", "hello").tenant(tenant);
        gate.open();
        for tenant in ["acme", "acme", "zeta", "acme", MARKUP, "acme", "acme", "zeta", "acme"] {
            assert_eq!(gateway.send(ask(tenant).streamed()).await.status, 200);
        }
        gate.close();
        let mut open = Vec::new();
        for _ in 0..6 {
            open.push(gateway.spawn(ask("acme")));
        }
        gateway.stock("chat", 6).await;
        for priority in ["critical", "default", "critical"] {
            open.push(gateway.spawn(ask("zeta").priority(priority)));
        }
        for _ in 0..3 {
            open.push(gateway.spawn(ask("acme").priority("sheddable")));
        }
        gateway.waiting("chat", 6).await;
        for _ in 0..2 {
            let refused = gateway.send(ask("acme").priority("sheddable")).await;
            refused.expect_error(503, "flow_capacity", "rejected_flow_capacity");
        }
        Self { gateway, servers, _gate: gate, open }
    }
}

/// The cells of a chart's table, as the page has them: `{series: {column: [text, value]}}`.
async fn table(browser: &Browser, chart: &str) -> BTreeMap<String, Value> {
    let script = format!(
        "Object.fromEntries([...document.querySelectorAll('#{chart} tbody tr')].map(row => [row.dataset.series, \
         Object.fromEntries([...row.querySelectorAll('td')].map(cell => [cell.dataset.column, [cell.textContent, Number(cell.dataset.value)]]))]))"
    );
    serde_json::from_value(browser.evaluate(&script).await).unwrap_or_default()
}

/// A number of a table; 0 without the row.
async fn value(browser: &Browser, chart: &str, series: &str, column: &str) -> f64 {
    let table = table(browser, chart).await;
    table.get(series).and_then(|row| row[column][1].as_f64()).unwrap_or_default()
}

async fn opened(url: &str) -> Browser {
    let browser = Browser::start(1_280, 900).await;
    open(&browser, url).await;
    browser
}

/// Opens the dashboard and waits for its first data.
async fn open(browser: &Browser, url: &str) {
    browser.open(url).await;
    until("the charts have data", || async {
        match browser.evaluate("document.getElementById('age').textContent").await {
            Value::String(text) if text.starts_with("data is") => Ok(()),
            other => Err(other.to_string()),
        }
    })
    .await;
}

/// The text of an element.
async fn text(browser: &Browser, selector: &str) -> String {
    let script = format!("document.querySelector({})?.textContent", json!(selector));
    let text = browser.evaluate(&script).await;
    text.as_str().unwrap_or_default().to_owned()
}

async fn shows(browser: &Browser, selector: &str, part: &str) {
    until(&format!("{selector} shows `{part}`"), || async {
        let text = text(browser, selector).await;
        if text.contains(part) { Ok(()) } else { Err(text) }
    })
    .await;
}

/// The quantile of a histogram's buckets, summed over the series that fit, as Prometheus computes it.
fn quantile(page: &Metrics, name: &str, fits: impl Fn(&BTreeMap<String, String>) -> bool, part: f64) -> f64 {
    let mut buckets = BTreeMap::new();
    let bucket = format!("{name}_bucket");
    for sample in page.samples.iter().filter(|sample| sample.name == bucket && fits(&sample.labels)) {
        let bound: f64 = sample.labels["le"].replace("+Inf", "inf").parse().expect("a bound");
        *buckets.entry(bound.to_bits()).or_insert(0.0) += sample.value;
    }
    let all = buckets.values().copied().fold(0.0, f64::max);
    let (mut lower, mut below) = (0.0, 0.0);
    for (bound, upto) in buckets {
        let bound = f64::from_bits(bound);
        if upto >= part * all && upto > below {
            return if bound.is_finite() {
                lower + (bound - lower) * (part * all - below) / (upto - below)
            } else {
                lower
            };
        }
        (lower, below) = (bound, upto);
    }
    lower
}

/// The values of the page beside those of `/metrics`; the names of those that differ.
async fn differences(browser: &Browser, fixture: &Fixture) -> Vec<String> {
    let page = fixture.gateway.metrics().await;
    let mut wanted: Vec<(&str, String, &str, f64)> = Vec::new();
    for band in ["critical", "default", "sheddable"] {
        let length = page.sum("penstock_queue_length", &[("band", band)]);
        wanted.push(("waiting", band.into(), "now", length));
    }
    let gauge = |name: &str| page.sum(name, &[("pool", "chat")]);
    wanted.push(("in-flight", "all".into(), "now", gauge("penstock_stock_level")));
    wanted.push(("bound", "stock".into(), "now", gauge("penstock_stock_level")));
    wanted.push(("bound", "upper bound".into(), "now", gauge("penstock_upper_bound")));
    wanted.push(("bound", "lower bound".into(), "now", gauge("penstock_lower_bound")));
    wanted.push(("saturation", "saturation".into(), "now", gauge("penstock_saturation")));
    wanted.push(("replicas", "ready".into(), "now", gauge("penstock_current_replicas")));
    wanted.push(("replicas", "pending".into(), "now", gauge("penstock_pending_replicas")));
    for tenant in ["acme", "zeta", MARKUP] {
        let served = page.sum("penstock_fairness_service_tokens_total", &[("flow", tenant)]);
        wanted.push(("shares", tenant.into(), "tokens, 15 min", served));
        let waiting = page.sum("penstock_queue_length", &[("flow", tenant)]);
        wanted.push(("shares", tenant.into(), "waiting", waiting));
    }
    let refused = page.sum("penstock_requests_total", &[("outcome", "rejected_flow_capacity")]);
    wanted.push(("refused", "rejected_flow_capacity".into(), "in 15 min", refused));
    let granted = |labels: &BTreeMap<String, String>| {
        ["bypassed", "dispatched", "leased"].contains(&&*labels["outcome"])
    };
    for (name, part) in [("p50", 0.5), ("p99", 0.99)] {
        let waited = quantile(&page, "penstock_queue_latency_seconds", granted, part);
        wanted.push(("queue-time", name.into(), "now", waited));
        wanted.push(("ttft", name.into(), "now", quantile(&page, "penstock_ttft_seconds", |_| true, part)));
    }
    let charts: Vec<String> = fixture.servers.iter().map(chart_of).collect();
    for (server, chart) in fixture.servers.iter().zip(&charts) {
        let stock = page.sum("penstock_stock_level", &[("endpoint", &server.address().to_string())]);
        wanted.push((chart, "in flight".into(), "now", stock));
    }
    let mut different = Vec::new();
    for (chart, series, column, expected) in wanted {
        let shown = value(browser, chart, &series, column).await;
        if (shown - expected).abs() > 1e-6 * expected.abs().max(1.0) {
            different.push(format!("{chart}, {series}, {column}: {shown}, not {expected}"));
        }
    }
    different
}

fn chart_of(server: &Upstream) -> String {
    let address = server.address().to_string();
    format!("endpoint-{}", address.replace(|letter: char| !letter.is_ascii_alphanumeric(), "-"))
}

#[test]
fn charts_show_what_metrics_show_and_ask_no_other_server() {
    run(async {
        // Before the traffic, because the quantiles are those of the last minute.
        let browser = Browser::start(1_280, 900).await;
        let fixture = Fixture::start("").await;
        let base = format!("{}/", fixture.gateway.companion());
        open(&browser, &base).await;
        until("the tables show what /metrics shows", || async {
            let different = differences(&browser, &fixture).await;
            if different.is_empty() { Ok(()) } else { Err(different.join("; ")) }
        })
        .await;
        assert!(value(&browser, "shares", "acme", "tokens, 15 min").await > 0.0);
        assert_eq!(value(&browser, "in-flight", "all", "now").await, 6.0);
        assert_eq!(value(&browser, "refused", "rejected_flow_capacity", "in 15 min").await, 2.0);
        assert!(value(&browser, "ttft", "p99", "now").await > 0.0);
        assert_eq!(browser.evaluate("document.querySelectorAll('b').length").await, 0);
        let shown = table(&browser, "waiting").await;
        assert_eq!(shown["critical"]["now"][0], "2");
        assert_eq!(table(&browser, "shares").await["acme"]["weight"][0], "3");

        for request in browser.requests() {
            assert!(request.starts_with(&base) || request.starts_with("data:"), "{request}");
        }
        assert_eq!(browser.problems(), Vec::<String>::new());
        let stored = "JSON.stringify([localStorage.length, sessionStorage.length, document.cookie])";
        assert_eq!(browser.evaluate(stored).await, json!("[0,0,\"\"]"));
    });
}

#[test]
fn tenant_endpoint_and_time_are_picked_by_keyboard() {
    run(async {
        let fixture = Fixture::start("").await;
        let browser = opened(&format!("{}/", fixture.gateway.companion())).await;
        shows(&browser, "#shares tbody", "zeta").await;
        let mut order = Vec::new();
        browser.evaluate("document.body.focus()").await;
        for _ in 0..6 {
            browser.press("Tab", 0).await;
            let focused = "document.activeElement.id || document.activeElement.className || document.activeElement.closest('figure')?.id";
            order.push(browser.evaluate(focused).await.as_str().unwrap_or_default().to_owned());
        }
        assert_eq!(order[..4], ["skip", "pick-pool", "pick-tenant", "pick-endpoint"], "{order:?}");

        // A letter chooses an option of a select.
        browser.evaluate("document.getElementById('pick-tenant').focus()").await;
        browser.call("Input.dispatchKeyEvent", json!({"type": "keyDown", "key": "z", "code": "KeyZ", "text": "z", "windowsVirtualKeyCode": 90})).await;
        shows(&browser, "#waiting h2", "Waiting: zeta").await;
        assert_eq!(value(&browser, "waiting", "critical", "now").await, 2.0);
        assert_eq!(value(&browser, "waiting", "sheddable", "now").await, 0.0);
        let address = fixture.servers[0].address().to_string();
        let pick = format!(
            "document.querySelector('#pick-endpoint').value = '{address}', document.querySelector('#pick-endpoint').dispatchEvent(new Event('change'))"
        );
        browser.evaluate(&pick).await;
        shows(&browser, "#in-flight h2", &address).await;
        assert_eq!(value(&browser, "in-flight", &address, "now").await, 3.0);
        assert_eq!(browser.evaluate("document.querySelectorAll('figure[id^=endpoint]').length").await, 1);
        // A link keeps the picks.
        let link = browser.evaluate("location.href").await;
        assert!(
            link.as_str().is_some_and(|link| link.contains("tenant=zeta") && link.contains("endpoint=")),
            "{link}"
        );

        browser.evaluate("document.querySelector('#saturation .plot').focus()").await;
        browser.press("ArrowLeft", 0).await;
        shows(&browser, "#saturation thead", "at ").await;
        shows(&browser, "#waiting thead", "at ").await;
        browser.press("Escape", 0).await;
        shows(&browser, "#saturation thead", "now").await;
        assert_eq!(browser.problems(), Vec::<String>::new());
    });
}

#[test]
fn page_keeps_old_data_while_the_companion_is_gone_and_goes_on_after_its_restart() {
    run(async {
        let fixture = Fixture::start("").await;
        let proxy = PathProxy::start("/ops/penstock/", fixture.gateway.companion()).await;
        let browser = opened(&proxy.url()).await;
        shows(&browser, "#waiting tbody", "critical").await;
        until("the waiting requests are shown", || async {
            let waiting = value(&browser, "waiting", "all", "now").await;
            if waiting == 6.0 { Ok(()) } else { Err(waiting.to_string()) }
        })
        .await;

        // The supervisor can't start another companion.
        let supervisor = fixture.gateway.process.pid();
        let companion = fixture.gateway.child("serve").await;
        send(supervisor, libc::SIGSTOP);
        send(companion, libc::SIGKILL);
        shows(&browser, "#notice", "No answer from the companion since").await;
        assert_eq!(browser.evaluate("document.body.classList.contains('old')").await, true);
        assert_eq!(value(&browser, "waiting", "all", "now").await, 6.0, "the last data stays");
        shows(&browser, "#age", "data is").await;

        send(supervisor, libc::SIGCONT);
        until("the notice is gone", || async {
            let notice = text(&browser, "#notice").await;
            if notice.is_empty() { Ok(()) } else { Err(notice) }
        })
        .await;
        assert_eq!(browser.evaluate("document.body.classList.contains('old')").await, false);
        shows(&browser, "#waiting .restart-text", "restart").await;
        // The filters have registered their requests again.
        until("the requests of the new companion are shown", || async {
            let waiting = value(&browser, "waiting", "all", "now").await;
            if waiting == 6.0 { Ok(()) } else { Err(waiting.to_string()) }
        })
        .await;
        for request in browser.requests() {
            assert!(request.starts_with(&proxy.url()) || request.starts_with("data:"), "{request}");
        }
        assert_eq!(browser.problems(), Vec::<String>::new());
    });
}

#[test]
fn text_is_legible_in_both_schemes_and_a_narrow_window_needs_no_sideways_scrolling() {
    const CONTRASTS: &str = include_str!("dashboard/contrasts.js");
    run(async {
        let fixture = Fixture::start("").await;
        let browser = opened(&format!("{}/", fixture.gateway.companion())).await;
        shows(&browser, "#shares tbody", "zeta").await;
        for is_dark in [false, true] {
            browser.prefer_dark(is_dark).await;
            let faint = browser.evaluate(CONTRASTS).await;
            assert_eq!(faint, json!([]), "dark: {is_dark}");
        }
        browser.resize(360, 740).await;
        until("nothing is wider than the window", || async {
            let width = browser.evaluate("document.documentElement.scrollWidth").await;
            if width == 360 { Ok(()) } else { Err(width.to_string()) }
        })
        .await;
    });
}

#[test]
fn holder_of_the_token_changes_a_weight_and_drains() {
    run(async {
        let folder = tempfile::tempdir().expect("a folder");
        let token = folder.path().join("token");
        std::fs::write(&token, "a-long-secret").expect("written");
        let fixture = Fixture::start(&format!("admin: {{token_file: '{}'}}\n", token.display())).await;
        let browser = opened(&format!("{}/", fixture.gateway.companion())).await;
        let click = |id: &str| format!("document.getElementById('{id}').click()");
        let set = |id: &str, value: &str| format!("document.getElementById('{id}').value = '{value}'");

        browser.evaluate(&set("weight-tenant", "zeta")).await;
        browser.evaluate(&set("weight", "7")).await;
        browser.evaluate(&click("set-weight")).await;
        shows(&browser, "#result", "401").await;

        browser.evaluate("document.getElementById('token').focus()").await;
        browser.write("a-long-secret").await;
        browser.evaluate(&click("use-token")).await;
        browser.evaluate(&click("set-weight")).await;
        shows(&browser, "#result", "The weight of zeta in pool chat is 7.").await;
        let config = fixture.gateway.get("/config").await.expect("answers").json();
        let weights = &config["pools"][0]["arbitration"]["flows"]["weights"];
        assert_eq!((weights["zeta"].as_f64(), weights["acme"].as_f64()), (Some(7.0), Some(3.0)));

        shows(&browser, "#details-body", "1h tokens").await;
        browser.evaluate(&set("budget-tenant", "zeta")).await;
        browser.evaluate(&set("budget-tokens", "5")).await;
        browser.evaluate(&click("top-up")).await;
        shows(&browser, "#result", "zeta may use 5 tokens more in pool chat.").await;
        browser.evaluate(&click("reset-budget")).await;
        browser.evaluate(&click("confirm-yes")).await;
        shows(&browser, "#result", "The budget of zeta in pool chat is unused.").await;
        let budgets = fixture.gateway.get("/budgets").await.expect("answers").json();
        assert_eq!(budgets[0]["windows"][0]["used"], 0, "{budgets}");

        let address = fixture.servers[1].address().to_string();
        browser.evaluate(&set("drain-endpoint", &address)).await;
        browser.evaluate(&click("drain-one")).await;
        browser.evaluate(&click("confirm-no")).await;
        browser.evaluate(&click("drain-one")).await;
        shows(&browser, "#confirm-text", &address).await;
        browser.evaluate(&click("confirm-yes")).await;
        shows(&browser, "#result", "drains").await;
        let config = fixture.gateway.get("/config").await.expect("answers").json();
        let listed = &config["pools"][0]["endpoints"]["static"];
        assert_eq!(listed[1]["taints"], json!(["drained"]), "{listed}");

        browser.evaluate(&click("drain")).await;
        browser.evaluate(&click("confirm-yes")).await;
        shows(&browser, "#facts", "draining").await;
        assert_eq!(fixture.gateway.status().await["draining"], true);
        shows(&browser, "#advice", "drains").await;
        let stored = "JSON.stringify([localStorage.length, sessionStorage.length, document.cookie])";
        assert_eq!(browser.evaluate(stored).await, json!("[0,0,\"\"]"));
        assert_eq!(browser.problems(), Vec::<String>::new());
    });
}
