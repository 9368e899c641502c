//! A changed configuration while requests wait: by file, SIGHUP, PUT and PATCH; and rejected files and bodies.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use penstock_tests::gateway::{config, pool, slots};
use penstock_tests::{ClientRequest, Companion, Gateway, Upstream, run, until};
use serde_json::{Value, json};

const FLOWS: usize = 5;
const EACH: usize = 100;
const RELOADS: usize = 100;

/// A request's text: its flow, its number, and padding that gives all requests of a flow the same class.
fn text(flow: usize, number: usize) -> String {
    format!("{flow} {number} {}", "word ".repeat(flow / 3 * 100))
}

/// Replaces the file as an editor does, so that no reader sees half of it.
fn write(file: &Path, text: &str) {
    let beside = file.with_extension("new");
    std::fs::write(&beside, text).expect("written");
    std::fs::rename(&beside, file).expect("renamed");
}

/// Waits until the configuration part of `/status` satisfies the condition, and returns it.
async fn in_force(pages: &penstock_tests::pages::Pages, what: &str, is: impl Fn(&Value) -> bool) -> Value {
    until(what, || async {
        let seen = pages.get("/status").await?.json()["config"].clone();
        if is(&seen) { Ok(seen) } else { Err(seen.to_string()) }
    })
    .await
}

/// Policies that differ in every setting of the dispatch order.
fn policy(number: usize, bound: u32) -> String {
    let discipline = ["wfq", "vtc", "drr", "round_robin", "usage", "fifo"][number % 6];
    let classes = [
        "",
        ", classes: {policy_classes: [{name: all, quantum: 64}]}",
        ", classes: {uncached_isl_buckets: [{min_tokens: 0, bucket: short}, {min_tokens: 50, bucket: long}], default_policy_family: f, \
         policy_classes: [{name: s, policy_family: f, cache_bucket: short, quantum: 8}, {name: l, policy_family: f, cache_bucket: long, quantum: 16}]}",
    ][number % 3];
    let bands = ["strict", "weighted"][number % 2];
    format!(
        "{}  queue: {{ttl: {}s, total_capacity: {}}}\n  arbitration: {{bands: {{mode: {bands}}}, \
         flows: {{discipline: {discipline}, weights: {{f0: {}, f1: 2}}}}{classes}}}\n",
        slots(bound),
        300 + number,
        1_000 + number,
        1 + number % 7,
    )
}

#[test]
fn no_request_is_lost_and_flows_keep_their_order_through_a_hundred_reloads() {
    run(async {
        let server = Upstream::scripted().await;
        let document = |number, bound| config("", &[pool("p", "m", &[&server], &policy(number, bound))]);
        let gateway = Gateway::start(&document(0, 1)).await;
        let first = gateway.spawn(ClientRequest::chat("m", "held").tenant("nobody"));
        let mut held = vec![server.next().await];
        let mut asked = Vec::new();
        for number in 0..EACH {
            for flow in 0..FLOWS {
                let ask = ClientRequest::chat("m", &text(flow, number)).tenant(&format!("f{flow}"));
                asked.push(gateway.spawn(ask));
            }
            gateway.waiting("p", ((number + 1) * FLOWS) as u64).await;
        }

        let mut order = Vec::new();
        for number in 1..=RELOADS {
            // At first no request is dispatched; then the bound changes, and with it the number of running requests.
            let bound = if number <= RELOADS / 2 { 1 } else { 1 + number as u32 % 3 };
            if number % 3 == 0 {
                let patch = json!({"pools": [{"name": "p", "queue": {"ttl": format!("{}s", 300 + number)}}]});
                let patch = patch.to_string();
                let answer = gateway.pages().change("PATCH", "/config", &[], &patch).await;
                assert_eq!(answer.status, 200, "{}", answer.text());
            } else {
                write(&gateway.config(), &document(number, bound));
            }
            in_force(gateway.pages(), "the next policy is active", |config| config["reloads"] == number)
                .await;
            if number <= RELOADS / 2 {
                gateway.waiting("p", (FLOWS * EACH) as u64).await;
                continue;
            }
            if number % 3 == 0 {
                continue;
            }
            while held.len() >= bound as usize {
                held.remove(0).answer();
            }
            while held.len() < bound as usize {
                let call = server.next().await;
                order.push(call.text());
                held.push(call);
            }
        }
        while order.len() < FLOWS * EACH {
            // One request is granted when another ends: two granted together may overtake each other in Envoy.
            held.remove(0).answer();
            let call = server.next().await;
            order.push(call.text());
            held.push(call);
        }
        for call in held {
            call.answer();
        }
        assert_eq!(first.await.expect("answered").status, 200);
        for answer in asked {
            let answer = answer.await.expect("answered");
            assert_eq!((answer.status, answer.outcome()), (200, "dispatched"), "{}", answer.text());
        }
        for flow in 0..FLOWS {
            let prefix = format!("{flow} ");
            let own: Vec<_> = order.iter().filter(|text| text.starts_with(&prefix)).cloned().collect();
            let expected: Vec<_> = (0..EACH).map(|number| text(flow, number)).collect();
            assert_eq!(own, expected, "of flow {flow}");
        }
        gateway.stock("p", 0).await;
        let page = gateway.metrics().await;
        assert_eq!(page.sum("penstock_arrivals_total", &[]), (FLOWS * EACH + 1) as f64);
        assert_eq!(page.sum("penstock_requests_total", &[]), (FLOWS * EACH + 1) as f64);
        assert_eq!(page.sum("penstock_config_reload_failures_total", &[]), 0.0);

        // `up` forwards the signal.
        gateway.process.signal(libc::SIGHUP);
        until("the file is read again", || async {
            let log = gateway.process.log();
            if log.contains("configuration read: nothing has changed") { Ok(()) } else { Err(log) }
        })
        .await;
    });
}

/// A companion with one pool, and the text of its configuration file.
async fn companion(head: &str) -> (Companion, String) {
    let server = Upstream::serving(std::time::Duration::ZERO).await;
    let companion = Companion::start(head, &[pool("p", "m", &[&server], "  queue: {ttl: 30s}\n")]).await;
    let text = std::fs::read_to_string(companion.config()).expect("its file");
    // The server lives as long as the test process.
    std::mem::forget(server);
    (companion, text)
}

/// The number of log lines that contain the text.
fn lines(companion: &Companion, what: &str) -> usize {
    companion.log().lines().filter(|line| line.contains(what)).count()
}

#[test]
fn wrong_file_changes_nothing_and_is_logged_once() {
    run(async {
        let (companion, right) = companion("").await;
        let before = companion.get("/config").await.expect("shown");
        assert_eq!(before.json()["pools"][0]["queue"]["ttl"], "30s");

        let wrong = right.replace("ttl: 30s", "ttl: soon");
        let why = "penstock.yaml:6: pools[0].queue.ttl: ";
        write(companion.config(), &wrong);
        let seen = in_force(&companion, "the file is rejected", |config| config["failures"] == 1).await;
        assert!(seen["last_error"].as_str().is_some_and(|text| text.contains(why)), "{seen}");
        assert_eq!(seen["reloads"], 0);
        // SIGHUP reads the file again; it fails again without another log line.
        companion.signal(libc::SIGHUP);
        in_force(&companion, "the file is rejected again", |config| config["failures"] == 2).await;
        assert_eq!(lines(&companion, why), 1, "{}", companion.log());
        let now = companion.get("/config").await.expect("shown");
        assert_eq!((now.header("etag"), now.json()), (before.header("etag"), before.json()));
        let page = companion.metrics().await;
        assert_eq!(page.sum("penstock_config_reload_failures_total", &[]), 2.0);

        // A setting that cannot change at run time.
        let moved = right.replace("gateway: '127.0.0.1:0'", "gateway: '127.0.0.1:1'");
        write(companion.config(), &moved);
        let seen = in_force(&companion, "the file is rejected", |config| config["failures"] == 3).await;
        assert!(seen["last_error"].as_str().is_some_and(|text| text.contains("listen.gateway: ")), "{seen}");

        // The file disappears and its settings stay active; it returns and is read.
        std::fs::remove_file(companion.config()).expect("removed");
        until("the missing file is logged", || async {
            if lines(&companion, "configuration file not found: its last content stays active") == 1 {
                Ok(())
            } else {
                Err(companion.log())
            }
        })
        .await;
        write(companion.config(), &right.replace("ttl: 30s", "ttl: 45s"));
        let seen = in_force(&companion, "the change is active", |config| config["reloads"] == 1).await;
        assert_eq!((&seen["failures"], &seen["last_error"]), (&json!(3), &Value::Null));
        assert_eq!(seen["source"], companion.config().display().to_string());
        assert_eq!(lines(&companion, "pools[p].queue.ttl: 30s -> 45s"), 1, "{}", companion.log());
    });
}

#[test]
fn document_can_be_read_replaced_and_patched() {
    run(async {
        let (companion, text) = companion("").await;
        let shown = companion.get("/config").await.expect("shown");
        assert_eq!(shown.header("content-type"), "application/json");
        let first = shown.header("etag").to_owned();
        assert!(first.len() > 2 && first.starts_with('"') && first.ends_with('"'), "{first}");
        let same = companion.get_with("/config", &[("if-none-match", &first)]).await;
        assert_eq!((same.status, same.header("etag"), same.body.len()), (304, first.as_str(), 0));

        // PUT with the current document changes nothing.
        let put = async |headers: &[(&str, &str)], body: &Value| {
            companion.change("PUT", "/config", headers, &body.to_string()).await
        };
        let patch = async |headers: &[(&str, &str)], body: &Value| {
            companion.change("PATCH", "/config", headers, &body.to_string()).await
        };
        let again = put(&[("if-match", &first)], &shown.json()).await;
        assert_eq!((again.status, again.header("etag")), (200, first.as_str()), "{}", again.text());

        let ttl = |ttl: &str| json!({"pools": [{"name": "p", "queue": {"ttl": ttl}}]});
        let changed = patch(&[("if-match", &first)], &ttl("40s")).await;
        assert_eq!(changed.status, 200, "{}", changed.text());
        assert_eq!(changed.json()["pools"][0]["queue"]["ttl"], "40s");
        let second = changed.header("etag").to_owned();
        assert_ne!(first, second);
        let seen = companion.status().await["config"].clone();
        assert_eq!((&seen["source"], &seen["reloads"]), (&json!("PATCH /config"), &json!(1)));
        assert_eq!(seen["digest"], second.trim_matches('"'));

        // A change based on an outdated ETag is rejected.
        let late = patch(&[("if-match", &first)], &ttl("41s")).await;
        assert_eq!(late.status, 412, "{}", late.text());
        assert!(late.json()["error"]["message"].as_str().is_some_and(|text| text.contains(&second)));
        assert_eq!(patch(&[("if-match", "*")], &ttl("42s")).await.status, 200);

        // An invalid change gets the text of `validate`.
        for (wrong, key) in [
            (ttl("soon"), "pools[0].queue.ttl"),
            (json!({"listen": {"gateway": "127.0.0.1:1"}}), "listen.gateway"),
            (json!({"tls": {"cert": "a", "key": "b", "client_ca": "c"}}), "tls"),
            (json!({"colour": "red"}), "colour"),
            (json!({"admin": {"token_file": "/not/there"}}), "admin.token_file"),
        ] {
            let refused = patch(&[], &wrong).await;
            assert_eq!(refused.status, 422, "{wrong}: {}", refused.text());
            let message = refused.json()["error"]["message"].to_string();
            assert!(message.contains(key), "{wrong}: {message}");
        }
        let refused = put(&[], &json!({"pools": []})).await;
        assert_eq!(refused.status, 422, "{}", refused.text());
        let broken = companion.change("PATCH", "/config", &[], "{").await;
        assert_eq!(broken.status, 400, "{}", broken.text());
        let endless = format!("[\"{}\"]", "a".repeat(1 << 20));
        assert_eq!(companion.change("PUT", "/config", &[], &endless).await.status, 413);
        let yaml = [("content-type", "application/yaml")];
        assert_eq!(companion.change("PUT", "/config", &yaml, &text).await.status, 415);
        let foreign = [("host", "evil.example")];
        assert_eq!(companion.change("PUT", "/config", &foreign, "{}").await.status, 403);
        assert_eq!(companion.get_with("/config", &foreign).await.status, 403);
        let now = companion.get("/config").await.expect("shown");
        assert_eq!(now.json()["pools"][0]["queue"]["ttl"], "42s", "nothing of all that is in force");

        // The patch stays active until the file changes.
        write(companion.config(), &text.replace("ttl: 30s", "ttl: 50s"));
        in_force(&companion, "the file is active", |config| config["source"] != "PATCH /config").await;
        let now = companion.get("/config").await.expect("shown");
        assert_eq!(now.json()["pools"][0]["queue"]["ttl"], "50s");
    });
}

#[test]
fn persisted_change_is_written_to_the_file_and_not_reloaded() {
    run(async {
        let (companion, _) = companion("").await;
        let file = companion.config();
        std::fs::set_permissions(file, std::fs::Permissions::from_mode(0o640)).expect("ours");
        let patch = json!({"pools": [{"name": "p", "queue": {"ttl": "40s"}}]});
        let kept = companion.change("PATCH", "/config?persist=true", &[], &patch.to_string()).await;
        assert_eq!(kept.status, 200, "{}", kept.text());
        let mode = std::fs::metadata(file).expect("there").permissions().mode();
        assert_eq!(mode & 0o777, 0o640);
        assert!(std::fs::read_to_string(file).expect("text").contains("40s"));
        // A reload after every event that the watcher may have seen finds no change.
        companion.signal(libc::SIGHUP);
        until("the file is read", || async {
            let log = companion.log();
            if log.contains("configuration read: nothing has changed") { Ok(()) } else { Err(log) }
        })
        .await;
        let seen = companion.status().await["config"].clone();
        assert_eq!((&seen["reloads"], &seen["failures"]), (&json!(1), &json!(0)));
        assert_eq!(seen["source"], file.display().to_string());
        assert_eq!(companion.get("/config").await.expect("shown").header("etag"), kept.header("etag"));

        // The next companion starts with the persisted change.
        let mut companion = companion;
        companion.kill().await;
        companion.restart().await;
        assert_eq!(companion.get("/config").await.expect("shown").header("etag"), kept.header("etag"));
        let how = companion.change("PATCH", "/config?persist=perhaps", &[], "{}").await;
        assert_eq!(how.status, 400);
    });
}

#[test]
fn change_needs_the_token_that_is_in_the_file_now() {
    run(async {
        let folder = tempfile::tempdir().expect("a folder");
        let token = folder.path().join("token");
        std::fs::write(&token, "the-first-secret\n").expect("written");
        let (companion, text) = companion(&format!("admin: {{token_file: '{}'}}\n", token.display())).await;
        let change = async |with: Option<&str>| {
            let with = with.map(|token| format!("Bearer {token}"));
            let headers: Vec<_> = with.iter().map(|value| ("authorization", value.as_str())).collect();
            companion.change("PATCH", "/config", &headers, "{}").await.status
        };
        assert_eq!(change(None).await, 401);
        assert_eq!(change(Some("wrong-secret")).await, 401);
        assert_eq!(change(Some("the-first-secret")).await, 200);
        assert_eq!(companion.get("/config").await.expect("shown").status, 200, "reading needs none");
        std::fs::write(&token, "the-second-secret\n").expect("written");
        write(companion.config(), &text.replace("ttl: 30s", "ttl: 31s"));
        in_force(&companion, "the change is active", |config| config["reloads"] == 1).await;
        assert_eq!(change(Some("the-first-secret")).await, 401);
        assert_eq!(change(Some("the-second-secret")).await, 200);
        assert!(!companion.log().contains("secret"), "{}", companion.log());
    });
}

#[test]
fn health_checks_follow_the_endpoints() {
    run(async {
        let (companion, text) = companion("").await;
        let ready = async |count: usize| {
            until(&format!("{count} are ready"), || async {
                let pool = companion.pool("p").await?;
                let ready = pool["endpoints"].as_array().cloned().unwrap_or_default();
                let ready = ready.iter().filter(|endpoint| endpoint["ready"] == true).count();
                if ready == count { Ok(()) } else { Err(pool.to_string()) }
            })
            .await;
        };
        ready(1).await;
        let (second, third) = (
            Upstream::serving(std::time::Duration::ZERO).await,
            Upstream::serving(std::time::Duration::ZERO).await,
        );
        let more = format!("static: ['{}', '{}', ", second.address(), third.address());
        write(companion.config(), &text.replace("static: [", &more));
        ready(3).await;
        third.set_healthy(false);
        let often = json!({"pools": [{"name": "p", "health": {"interval": "50ms", "unhealthy_after": 1}}]});
        let answer = companion.change("PATCH", "/config", &[], &often.to_string()).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
        ready(2).await;
        let unchecked = json!({"pools": [{"name": "p", "health": {"path": null}}]});
        // In a patch, `null` removes a key; a whole document can set it.
        let mut document = companion.get("/config").await.expect("shown").json();
        document["pools"][0]["health"]["path"] = unchecked["pools"][0]["health"]["path"].clone();
        let answer = companion.change("PUT", "/config", &[], &document.to_string()).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
        ready(3).await;
    });
}
