//! Another configuration while requests wait: by file, SIGHUP, PUT and PATCH; and files and bodies that are refused.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use penstock_tests::gateway::{config, pool, slots};
use penstock_tests::{Ask, Companion, Gateway, Upstream, run, until};
use serde_json::{Value, json};

const FLOWS: usize = 5;
const EACH: usize = 100;
const RELOADS: usize = 100;

/// What a request says: its flow, its number, and so much that a flow's requests are all of the same class.
fn text(flow: usize, number: usize) -> String {
    format!("{flow} {number} {}", "word ".repeat(flow / 3 * 100))
}

/// As an editor does it, so that no half of it is ever read.
fn write(file: &Path, text: &str) {
    let beside = file.with_extension("new");
    std::fs::write(&beside, text).expect("written");
    std::fs::rename(&beside, file).expect("renamed");
}

/// What `/status` says of the configuration, once `is` it.
async fn in_force(pages: &penstock_tests::pages::Pages, what: &str, is: impl Fn(&Value) -> bool) -> Value {
    until(what, || async {
        let seen = pages.look("/status").await?.json()["config"].clone();
        if is(&seen) {
            Ok(seen)
        } else {
            Err(seen.to_string())
        }
    })
    .await
}

/// Policies that differ in all that says who goes next.
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
fn nothing_is_lost_and_flows_keep_their_order_through_a_hundred_reloads() {
    run(async {
        let server = Upstream::scripted().await;
        let document = |number, bound| config("", &[pool("p", "m", &[&server], &policy(number, bound))]);
        let gateway = Gateway::start(&document(0, 1)).await;
        let first = gateway.spawn(Ask::chat("m", "held").tenant("nobody"));
        let mut held = vec![server.next().await];
        let mut asked = Vec::new();
        for number in 0..EACH {
            for flow in 0..FLOWS {
                let ask = Ask::chat("m", &text(flow, number)).tenant(&format!("f{flow}"));
                asked.push(gateway.spawn(ask));
            }
            gateway.waiting("p", ((number + 1) * FLOWS) as u64).await;
        }

        let mut order = Vec::new();
        for number in 1..=RELOADS {
            // At first nobody goes; then the bound moves, and with it who runs.
            let bound = if number <= RELOADS / 2 {
                1
            } else {
                1 + number as u32 % 3
            };
            if number % 3 == 0 {
                let patch = json!({"pools": [{"name": "p", "queue": {"ttl": format!("{}s", 300 + number)}}]});
                let patch = patch.to_string();
                let answer = gateway.pages().change("PATCH", "/config", &[], &patch).await;
                assert_eq!(answer.status, 200, "{}", answer.text());
            } else {
                write(&gateway.config(), &document(number, bound));
            }
            in_force(gateway.pages(), "the next one is in force", |it| {
                it["reloads"] == number
            })
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
            // One goes when one is done: two that go together may overtake each other in Envoy.
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
            assert_eq!(
                (answer.status, answer.outcome()),
                (200, "dispatched"),
                "{}",
                answer.text()
            );
        }
        for flow in 0..FLOWS {
            let prefix = format!("{flow} ");
            let own: Vec<_> = order
                .iter()
                .filter(|it| it.starts_with(&prefix))
                .cloned()
                .collect();
            let expected: Vec<_> = (0..EACH).map(|number| text(flow, number)).collect();
            assert_eq!(own, expected, "of flow {flow}");
        }
        gateway.stock("p", 0).await;
        let page = gateway.metrics().await;
        assert_eq!(
            page.sum("penstock_arrivals_total", &[]),
            (FLOWS * EACH + 1) as f64
        );
        assert_eq!(
            page.sum("penstock_requests_total", &[]),
            (FLOWS * EACH + 1) as f64
        );
        assert_eq!(page.sum("penstock_config_reload_failures_total", &[]), 0.0);

        // `up` passes it on.
        gateway.process.signal(libc::SIGHUP);
        until("the file is read again", || async {
            let log = gateway.process.log();
            if log.contains("the configuration is as it was") {
                Ok(())
            } else {
                Err(log)
            }
        })
        .await;
    });
}

/// A companion with one pool, whose file is read back.
async fn companion(head: &str) -> (Companion, String) {
    let server = Upstream::serving(std::time::Duration::ZERO).await;
    let companion = Companion::start(head, &[pool("p", "m", &[&server], "  queue: {ttl: 30s}\n")]).await;
    let text = std::fs::read_to_string(companion.config()).expect("its file");
    // A test's server lives as long as the test's process.
    std::mem::forget(server);
    (companion, text)
}

/// Lines of its log that say this.
fn lines(companion: &Companion, what: &str) -> usize {
    companion.log().lines().filter(|it| it.contains(what)).count()
}

#[test]
fn a_wrong_file_changes_nothing_and_is_said_once() {
    run(async {
        let (companion, right) = companion("").await;
        let before = companion.look("/config").await.expect("shown");
        assert_eq!(before.json()["pools"][0]["queue"]["ttl"], "30s");

        let wrong = right.replace("ttl: 30s", "ttl: soon");
        let why = "penstock.yaml:6: pools[0].queue.ttl: ";
        write(companion.config(), &wrong);
        let seen = in_force(&companion, "it is refused", |it| it["failures"] == 1).await;
        assert!(
            seen["last_error"].as_str().is_some_and(|it| it.contains(why)),
            "{seen}"
        );
        assert_eq!(seen["reloads"], 0);
        // Told to read it again, it fails again, and says no more.
        companion.signal(libc::SIGHUP);
        in_force(&companion, "it is refused again", |it| it["failures"] == 2).await;
        assert_eq!(lines(&companion, why), 1, "{}", companion.log());
        let now = companion.look("/config").await.expect("shown");
        assert_eq!(
            (now.header("etag"), now.json()),
            (before.header("etag"), before.json())
        );
        let page = companion.metrics().await;
        assert_eq!(page.sum("penstock_config_reload_failures_total", &[]), 2.0);

        // What can't change while it runs.
        let moved = right.replace("gateway: '127.0.0.1:0'", "gateway: '127.0.0.1:1'");
        write(companion.config(), &moved);
        let seen = in_force(&companion, "it is refused", |it| it["failures"] == 3).await;
        assert!(
            seen["last_error"]
                .as_str()
                .is_some_and(|it| it.contains("listen.gateway: ")),
            "{seen}"
        );

        // It goes, and what it said stays; it comes back, and is read.
        std::fs::remove_file(companion.config()).expect("removed");
        until("that is said", || async {
            if lines(&companion, "is gone: what it said stays in force") == 1 {
                Ok(())
            } else {
                Err(companion.log())
            }
        })
        .await;
        write(companion.config(), &right.replace("ttl: 30s", "ttl: 45s"));
        let seen = in_force(&companion, "it is in force", |it| it["reloads"] == 1).await;
        assert_eq!(
            (&seen["failures"], &seen["last_error"]),
            (&json!(3), &Value::Null)
        );
        assert_eq!(seen["source"], companion.config().display().to_string());
        assert_eq!(
            lines(&companion, "pools[p].queue.ttl: 30s -> 45s"),
            1,
            "{}",
            companion.log()
        );
    });
}

#[test]
fn the_document_is_shown_replaced_and_patched() {
    run(async {
        let (companion, text) = companion("").await;
        let shown = companion.look("/config").await.expect("shown");
        assert_eq!(shown.header("content-type"), "application/json");
        let first = shown.header("etag").to_owned();
        assert!(
            first.len() > 2 && first.starts_with('"') && first.ends_with('"'),
            "{first}"
        );
        let same = companion.look_with("/config", &[("if-none-match", &first)]).await;
        assert_eq!(
            (same.status, same.header("etag"), same.body.len()),
            (304, first.as_str(), 0)
        );

        // Its own document changes nothing.
        let put = async |headers: &[(&str, &str)], body: &Value| {
            companion
                .change("PUT", "/config", headers, &body.to_string())
                .await
        };
        let patch = async |headers: &[(&str, &str)], body: &Value| {
            companion
                .change("PATCH", "/config", headers, &body.to_string())
                .await
        };
        let again = put(&[("if-match", &first)], &shown.json()).await;
        assert_eq!(
            (again.status, again.header("etag")),
            (200, first.as_str()),
            "{}",
            again.text()
        );

        let ttl = |ttl: &str| json!({"pools": [{"name": "p", "queue": {"ttl": ttl}}]});
        let changed = patch(&[("if-match", &first)], &ttl("40s")).await;
        assert_eq!(changed.status, 200, "{}", changed.text());
        assert_eq!(changed.json()["pools"][0]["queue"]["ttl"], "40s");
        let second = changed.header("etag").to_owned();
        assert_ne!(first, second);
        let seen = companion.status().await["config"].clone();
        assert_eq!(
            (&seen["source"], &seen["reloads"]),
            (&json!("PATCH /config"), &json!(1))
        );
        assert_eq!(seen["digest"], second.trim_matches('"'));

        // Whoever changes what has changed since is told so.
        let late = patch(&[("if-match", &first)], &ttl("41s")).await;
        assert_eq!(late.status, 412, "{}", late.text());
        assert!(
            late.json()["error"]["message"]
                .as_str()
                .is_some_and(|it| it.contains(&second))
        );
        assert_eq!(patch(&[("if-match", "*")], &ttl("42s")).await.status, 200);

        // What isn't allowed is told as `validate` tells it.
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
        assert_eq!(
            companion.change("PUT", "/config", &[], &endless).await.status,
            413
        );
        let yaml = [("content-type", "application/yaml")];
        assert_eq!(companion.change("PUT", "/config", &yaml, &text).await.status, 415);
        let foreign = [("host", "evil.example")];
        assert_eq!(
            companion.change("PUT", "/config", &foreign, "{}").await.status,
            403
        );
        assert_eq!(companion.look_with("/config", &foreign).await.status, 403);
        let now = companion.look("/config").await.expect("shown");
        assert_eq!(
            now.json()["pools"][0]["queue"]["ttl"],
            "42s",
            "nothing of all that is in force"
        );

        // Until the file changes.
        write(companion.config(), &text.replace("ttl: 30s", "ttl: 50s"));
        in_force(&companion, "the file is in force", |it| {
            it["source"] != "PATCH /config"
        })
        .await;
        let now = companion.look("/config").await.expect("shown");
        assert_eq!(now.json()["pools"][0]["queue"]["ttl"], "50s");
    });
}

#[test]
fn what_is_kept_is_written_to_the_file_and_not_read_again() {
    run(async {
        let (companion, _) = companion("").await;
        let file = companion.config();
        std::fs::set_permissions(file, std::fs::Permissions::from_mode(0o640)).expect("ours");
        let patch = json!({"pools": [{"name": "p", "queue": {"ttl": "40s"}}]});
        let kept = companion
            .change("PATCH", "/config?persist=true", &[], &patch.to_string())
            .await;
        assert_eq!(kept.status, 200, "{}", kept.text());
        let mode = std::fs::metadata(file).expect("there").permissions().mode();
        assert_eq!(mode & 0o777, 0o640);
        assert!(std::fs::read_to_string(file).expect("text").contains("40s"));
        // A reload is asked for after all that the watcher may have seen: it finds nothing new.
        companion.signal(libc::SIGHUP);
        until("the file is read", || async {
            let log = companion.log();
            if log.contains("the configuration is as it was") {
                Ok(())
            } else {
                Err(log)
            }
        })
        .await;
        let seen = companion.status().await["config"].clone();
        assert_eq!((&seen["reloads"], &seen["failures"]), (&json!(1), &json!(0)));
        assert_eq!(seen["source"], file.display().to_string());
        assert_eq!(
            companion.look("/config").await.expect("shown").header("etag"),
            kept.header("etag")
        );

        // A companion that comes after it begins with that.
        let mut companion = companion;
        companion.kill().await;
        companion.again().await;
        assert_eq!(
            companion.look("/config").await.expect("shown").header("etag"),
            kept.header("etag")
        );
        let how = companion
            .change("PATCH", "/config?persist=perhaps", &[], "{}")
            .await;
        assert_eq!(how.status, 400);
    });
}

#[test]
fn who_changes_the_configuration_has_the_token_that_is_in_its_file_now() {
    run(async {
        let folder = tempfile::tempdir().expect("a folder");
        let token = folder.path().join("token");
        std::fs::write(&token, "the-first-secret\n").expect("written");
        let (companion, text) = companion(&format!("admin: {{token_file: '{}'}}\n", token.display())).await;
        let change = async |with: Option<&str>| {
            let with = with.map(|it| format!("Bearer {it}"));
            let headers: Vec<_> = with.iter().map(|it| ("authorization", it.as_str())).collect();
            companion.change("PATCH", "/config", &headers, "{}").await.status
        };
        assert_eq!(change(None).await, 401);
        assert_eq!(change(Some("wrong-secret")).await, 401);
        assert_eq!(change(Some("the-first-secret")).await, 200);
        assert_eq!(
            companion.look("/config").await.expect("shown").status,
            200,
            "reading needs none"
        );
        std::fs::write(&token, "the-second-secret\n").expect("written");
        write(companion.config(), &text.replace("ttl: 30s", "ttl: 31s"));
        in_force(&companion, "it is in force", |it| it["reloads"] == 1).await;
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
                let ready = ready.iter().filter(|it| it["ready"] == true).count();
                if ready == count {
                    Ok(())
                } else {
                    Err(pool.to_string())
                }
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
        let answer = companion
            .change("PATCH", "/config", &[], &often.to_string())
            .await;
        assert_eq!(answer.status, 200, "{}", answer.text());
        ready(2).await;
        let unchecked = json!({"pools": [{"name": "p", "health": {"path": null}}]});
        // `null` in a patch is how a key is taken out; a whole document can say it.
        let mut document = companion.look("/config").await.expect("shown").json();
        document["pools"][0]["health"]["path"] = unchecked["pools"][0]["health"]["path"].clone();
        let answer = companion
            .change("PUT", "/config", &[], &document.to_string())
            .await;
        assert_eq!(answer.status, 200, "{}", answer.text());
        ready(3).await;
    });
}
